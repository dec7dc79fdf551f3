"""The quick replay gives the same history as the model step by step."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator import replayer
from memviz.allocator.event_replay import RequestReplay, _QuickReplay
from memviz.allocator.replay_result import Replayed
from memviz.allocator.replayer import CardMemory, Replayer
from memviz.allocator.settings import parse_settings
from memviz.trace.model import Trace
from tests.allocator.driver import MiB
from tests.allocator.programs import SETTINGS, played, programs
from tests.allocator.recording import Recorder
from tests.real import read_once

FOLDER = Path(__file__).parents[2] / "sample_traces"
SAMPLES_AND_SETTINGS = [("late-start", "expandable_segments:True"), ("training", ""), ("out-of-memory", "")]


@contextmanager
def step_by_step() -> Iterator[None]:
    """Put every event through its handler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_QuickReplay, "run", _run_handlers)
        yield


def _run_handlers(quick: _QuickReplay, chunk: Iterator[tuple[Any, ...]]) -> None:
    for event, step, address, requested, _, stream, pool in chunk:
        quick.replay.history.now = event
        quick.handlers[step](event, address, requested, stream, pool)


def all_of(replayed: Replayed) -> list[object]:
    (device,) = replayed.trace.devices
    tables = (device.events, device.segments, device.blocks)
    columns = [column.tolist() for table in tables for _, column in table.columns()]
    figures = [replayed.peak_requested_bytes, replayed.peak_allocated_bytes, replayed.peak_reserved_bytes]
    ends = [replayed.reserved_end_bytes, replayed.retries, replayed.oom, replayed.agreement]
    return [columns, np.asarray(replayed.sources).tolist(), figures, ends]


def outcomes(trace: Trace, text: str, card: CardMemory | None) -> list[object]:
    source, wanted = Replayer(trace), parse_settings(text)
    recorded = all_of(source.as_recorded())
    if wanted.per_process_memory_fraction < 1 and card is None:
        card = CardMemory(4000 * MiB, 0)
    kept, anew = (source.replay(wanted, card, afresh=afresh) for afresh in (False, True))
    return [recorded, all_of(kept), all_of(anew), source.figures(wanted, card, afresh=True)]


@given(
    st.sampled_from(SETTINGS),
    st.sampled_from(SETTINGS[:5]),
    st.sampled_from([None, 90 * MiB, 300 * MiB]),
    st.integers(0, 8),
    programs,
)
def test_random_programs_end_alike(text, recorded_with, memory, left_out, program):
    run = played(Recorder(recorded_with, card=4000 * MiB), program)
    kept = len(run.events) - left_out
    if kept > 0:
        trace, card = run.trace(kept), None if memory is None else CardMemory(memory, 0)
        quickly = outcomes(trace, text, card)
        with step_by_step():
            assert quickly == outcomes(trace, text, card)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("late-start", "max_split_size_mb:21"),
        *(pytest.param(name, text, marks=pytest.mark.slow) for name, text in SAMPLES_AND_SETTINGS),
    ],
)
def test_recordings_end_alike(name, text):
    trace = read_once(FOLDER / f"{name}.pickle.gz")
    quickly = outcomes(trace, text, CardMemory(2048 * MiB, 0))
    with step_by_step():
        assert quickly == outcomes(trace, text, CardMemory(2048 * MiB, 0))


def test_nearly_all_of_a_recording_goes_the_quick_way(monkeypatch):
    trace = read_once(FOLDER / "training.pickle.gz")
    slow = 0
    for name in ("malloc", "free"):
        step = getattr(RequestReplay, name) if name == "free" else getattr(replayer.OtherSettings, name)

        def counted(*args, step=step):
            nonlocal slow
            slow += 1
            return step(*args)

        monkeypatch.setattr(replayer.OtherSettings, name, counted)
    source = Replayer(trace)
    source.figures(parse_settings("expandable_segments:True"), afresh=True)
    assert 0 < slow < 0.2 * len(source.device.events)
