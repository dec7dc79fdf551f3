"""Settings of a recording whose file does not state them, or states them wrongly."""

from __future__ import annotations

import pytest

from memviz.allocator.replay import replay
from memviz.allocator.settings import settings_of
from memviz.trace.model import Trace
from tests.allocator.driver import MiB
from tests.allocator.recording import Recorder
from tests.traces import read


def recorded(text: str, settings: dict[str, object] | None, last: int | None = None) -> Trace:
    run = Recorder(text)
    block = run.malloc(30 * MiB)
    run.malloc(60 * MiB)
    run.free(block)
    run.malloc(5 * MiB)
    snapshot = run.snapshot(last)
    snapshot["allocator_settings"] = settings or {}
    return read(snapshot)


@pytest.mark.parametrize("settings", [None, {"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": ""}])
@pytest.mark.parametrize("last", [None, 4, 0])
def test_pages_that_were_mapped_say_that_segments_expanded(settings, last):
    trace = recorded("expandable_segments:True", settings, last)
    found, inferred = settings_of(trace, trace.devices[0])
    assert (found.expandable_segments, inferred) == (True, True)
    result = replay(trace)
    assert result.exact
    assert result.trace.notes[0].code == "settings_inferred"


def test_what_the_file_names_is_taken():
    trace = recorded("expandable_segments:True", {"expandable_segments": True})
    assert settings_of(trace, trace.devices[0])[1] is False


def test_whole_segments_say_nothing_of_the_kind():
    trace = recorded("", None)
    found, inferred = settings_of(trace, trace.devices[0])
    assert (found.expandable_segments, inferred) == (False, False)


def test_frees_that_waited_for_another_stream_are_named_where_that_matters():
    run = Recorder()
    block = run.malloc(30 * MiB)
    run.allocator.record_stream(block, 7)
    run.free(block)
    run.malloc(5 * MiB)
    run.allocator.pending.finish(7)
    run.malloc(5 * MiB)
    assert replay(run.trace()).trace.notes == run.trace().notes
    codes = [note.code for note in replay(run.trace(), memory=400 * MiB).trace.notes]
    assert codes[-1] == "streams_as_recorded"
