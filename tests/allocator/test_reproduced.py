"""A replay is as recorded where it does all that is recorded, and not otherwise."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.recorded_replay import ensure_replayed
from memviz.allocator.replay_result import Replayed
from memviz.allocator.replayer import CardMemory, Divergence, Replayer, divergence, why_diverged
from memviz.trace.model import Action
from tests.allocator.driver import MiB
from tests.allocator.programs import played, programs
from tests.allocator.recording import Recorder, ran_out
from tests.facts import missing
from tests.house.repository import ROOT
from tests.real import each_real_file, read_once, requires_real


def limited(source: Replayer, memory: int | None) -> Replayed:
    return source.replay(None, None if memory is None else CardMemory(memory, 0))


def short() -> Recorder:
    run = Recorder(card=100 * MiB)
    run.cached(60 * MiB)
    run.malloc(80 * MiB)
    run.malloc(10 * MiB)
    return run


def test_in_what_the_process_had_the_recorded_settings_do_what_is_recorded() -> None:
    source = ensure_replayed(Replayer(short().trace()))
    memory = source.releases.memory
    assert memory is not None
    for each in (memory.least, memory.most):
        assert divergence(source, limited(source, each), each) is None
    assert divergence(source, limited(source, memory.most + 1), memory.most + 1) == Divergence(4, gives_back=True)
    assert divergence(source, limited(source, None)) == Divergence(4, gives_back=True)
    assert divergence(source, limited(source, memory.least - 2 * MiB)) == Divergence(8, gives_back=False)


def test_every_reason_names_the_event_and_the_memory() -> None:
    source = Replayer(short().trace())
    recorded = source.as_recorded()

    def why(memory: int | None) -> str:
        return why_diverged(source, recorded, limited(source, memory), memory)

    back = "it released its cache for lack of memory at event 4; "
    assert why(None) == f"{back}without a limit that is not needed"
    assert why(200 * MiB) == f"{back}in 200 MiB that is not needed"
    assert why(100 * MiB) == ""
    assert missing(why(85 * MiB), "at event 8", "in 85.0 MiB no memory is left") == []


def test_a_recording_that_ran_out_is_as_recorded_up_to_there() -> None:
    run = ran_out()
    run.malloc(10 * MiB)
    trace = run.trace()
    assert Replayer(trace).what_if(card=CardMemory(100 * MiB, 0)).divergence == ""
    assert missing(Replayer(trace).what_if().divergence, "ran out of memory at event 2", "without a limit") == []


def test_the_sample_that_runs_out_is_as_recorded_in_its_own_memory() -> None:
    trace = read_once(ROOT / "sample_traces" / "out-of-memory.pickle.gz")
    assert Replayer(trace).what_if(card=CardMemory(2400 * MiB, 0)).divergence == ""


@given(st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:24"]), st.integers(40, 200), programs)
def test_what_is_called_as_recorded_has_the_recorded_history(text: str, mebibytes: int, program: list) -> None:
    """The replayed history has the same actions and sizes in the same order."""
    run = played(Recorder(text, card=mebibytes * MiB), program)
    if not run.events:
        return
    for memory in (None, mebibytes * MiB, 2 * mebibytes * MiB):
        found = Replayer(run.trace()).what_if(card=None if memory is None else CardMemory(memory, 0))
        recorded, ours = found.recorded.trace.devices[0].events, found.base.trace.devices[0].events
        plain = recorded.action != Action.OOM
        if found.base.oom is not None:
            plain &= np.arange(len(recorded)) < found.base.oom.event
        mine = ours.action != Action.OOM
        is_alike = [*recorded.action[plain]] == [*ours.action[mine]] and [*recorded.size[plain]] == [*ours.size[mine]]
        if not found.divergence:
            assert is_alike
        elif found.base.oom is None and not (recorded.action == Action.OOM).any():
            assert not is_alike


@requires_real
@each_real_file
def test_real_recordings_are_as_recorded_without_a_limit_and_not_in_less_than_they_took(path) -> None:
    source = Replayer(read_once(path))
    assert divergence(source, limited(source, None)) is None
    if len(source.device.events) > 1:
        assert source.what_if(card=CardMemory(source.as_recorded().peak_reserved_bytes * 9 // 10, 0)).divergence
