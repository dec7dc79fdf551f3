"""The fast replay equals the step-by-step model, to the last entry of the history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memviz.allocator import recorded_replay, replay
from memviz.allocator.recorded_replay import replay_as_recorded
from memviz.allocator.replay import source_of
from memviz.allocator.replay_result import Replayed
from memviz.allocator.replayer import RequestReplay
from memviz.allocator.settings import parse_settings
from memviz.allocator.what_if import CardMemory, figures_on, replay_on
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from tests.allocator.driver import MiB
from tests.allocator.programs import SETTINGS, programs, take
from tests.allocator.recording import Recorder

SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*.pickle.gz"))


@contextmanager
def step_by_step() -> Iterator[None]:
    """Replay every event through its handler instead of the fast path."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (recorded_replay, replay):
            patch.setattr(module, "run_quickly", RequestReplay.run_events)
        yield


def all_of(replayed: Replayed) -> list[object]:
    (device,) = replayed.trace.devices
    tables = (device.events, device.segments, device.blocks)
    columns = [column.tolist() for table in tables for _, column in table.columns()]
    figures = [replayed.peak_requested_bytes, replayed.peak_allocated_bytes, replayed.peak_reserved_bytes]
    ends = [replayed.reserved_end_bytes, replayed.retries, replayed.oom, replayed.agreement]
    return [columns, np.asarray(replayed.sources).tolist(), figures, ends]


def outcomes(trace: Trace, text: str, card: CardMemory | None) -> list[object]:
    source, wanted = source_of(trace), parse_settings(text)
    recorded = all_of(replay_as_recorded(source))
    if wanted.per_process_memory_fraction < 1 and card is None:
        card = CardMemory(4000 * MiB, 0)
    kept, anew = (replay_on(source, wanted, card, afresh=afresh) for afresh in (False, True))
    return [recorded, all_of(kept), all_of(anew), figures_on(source, wanted, card, afresh=True)]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SETTINGS),
    st.sampled_from(SETTINGS[:5]),
    st.sampled_from([None, 90 * MiB, 300 * MiB]),
    st.integers(0, 8),
    programs,
)
def test_random_programs_end_alike(text, recorded_with, memory, left_out, program):
    run, live = Recorder(recorded_with, card=4000 * MiB), []
    for step in program:
        take(run, live, step)
    kept = len(run.events) - left_out
    if kept > 0:
        trace, card = run.trace(kept), None if memory is None else CardMemory(memory, 0)
        quickly = outcomes(trace, text, card)
        with step_by_step():
            assert quickly == outcomes(trace, text, card)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("text", ["", "expandable_segments:True", "max_split_size_mb:21"])
def test_recordings_end_alike(path, text):
    trace = load_trace(path)
    quickly = outcomes(trace, text, CardMemory(2048 * MiB, 0))
    with step_by_step():
        assert quickly == outcomes(trace, text, CardMemory(2048 * MiB, 0))


def test_nearly_all_of_a_recording_goes_the_quick_way(monkeypatch):
    trace = load_trace(next(path for path in SAMPLES if path.name == "training.pickle.gz"))
    slow = 0
    for name in ("malloc", "free"):
        step = getattr(RequestReplay, name) if name == "free" else getattr(replay.OtherSettings, name)

        def counted(*args, step=step):
            nonlocal slow
            slow += 1
            return step(*args)

        monkeypatch.setattr(replay.OtherSettings, name, counted)
    source = source_of(trace)
    figures_on(source, parse_settings("expandable_segments:True"), afresh=True)
    assert 0 < slow < 0.2 * len(source.device.events)
