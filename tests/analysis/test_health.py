from pathlib import Path
from typing import Any

import pytest

from memviz.analysis.health import health, history
from memviz.trace.model import Note, Trace
from memviz.units import bytes_text as said
from tests.facts import missing
from tests.real import each_real_file, expected, read_once, requires_real
from tests.simulated_allocator import Allocator
from tests.traces import MiB, alloc, block, event, frame, free, read, segment, snapshot, trace_of

BASE = 0x7000_0000_0000
STACK = {"frames": [frame("main")]}


def found(trace: Trace) -> dict[str, Note]:
    """Notes by code, without the one that every trace has."""
    return {note.code: note for note in health(trace) if note.code != "unseen_memory"}


def sound(*more: Any, **top: Any) -> Trace:
    """A complete history with stacks, and then these events."""
    first = [event("segment_alloc", BASE, 2 * MiB, time_us=1, **STACK), alloc(BASE, 1000, time_us=2, **STACK)]
    held = [segment(BASE, 2 * MiB, [block(BASE, 1024, 1000, frames=STACK["frames"])])]
    return trace_of([*first, *more], held, **top)


def test_a_sound_trace_gets_one_note_only() -> None:
    assert [note.code for note in health(sound())] == ["unseen_memory"]
    assert history(sound().devices[0]) == "complete"


def test_no_history_says_how_to_record_one() -> None:
    trace = read([segment(BASE, 2 * MiB, [block(BASE, 1024, 1000, frames=STACK["frames"])])])
    note = found(trace)["no_history"]
    assert history(trace.devices[0]) == "none"
    assert "no history" in note.text and missing(note.text, "1000 B", "1 segment") == []
    assert "_record_memory_history(max_entries=1_000_000)" in note.remedy and "_dump_snapshot(" in note.remedy


def test_a_device_where_nothing_happened_is_no_fault() -> None:
    root = snapshot([alloc(1, 5, **STACK)], [segment(BASE, 2 * MiB, [], device=1)])
    notes = [note for note in health(read(root)) if note.code == "no_events"]
    assert [(note.level, note.text.split(";")[0]) for note in notes] == [
        ("info", "Device 1. No events were recorded here")
    ]


LATE = [alloc(BASE, 1000, time_us=1, **STACK), free(BASE, 1000, time_us=2, **STACK)]
OLD = [segment(2 * BASE, 2 * MiB, [block(2 * BASE, 1024, 1000, frames=STACK["frames"])])]


def test_what_was_there_before_is_counted() -> None:
    trace = trace_of(LATE, OLD)
    note = found(trace)["late_history"]
    assert history(trace.devices[0]) == "late"
    assert note.level == "warning"
    assert missing(note.text, "1000 B", "1 allocation") == []
    assert "the file does not say" in note.text


def test_cached_memory_from_before_is_late_too() -> None:
    trace = trace_of(LATE, [segment(BASE, 2 * MiB, [])])
    note = found(trace)["late_history"]
    assert history(trace.devices[0]) == "late"
    assert note.level == "info" and f"{said(2 * MiB)} were reserved but not live before recording started" in note.text


@pytest.mark.parametrize(
    ("events", "settings", "cause"),
    [
        ([alloc(BASE, 1)], {}, "The history is a single event"),
        (LATE, {"trace_alloc_overflowed": True}, "The ring buffer overflowed"),
        (LATE, {"trace_alloc_max_entries": 3}, "It has exactly 3 events: most likely a full ring buffer"),
        (
            [alloc(BASE + i, 1) for i in range(2000)],
            {},
            "It has exactly 2,000 events: most likely a full ring buffer",
        ),
        ([event("free_completed", BASE, 9), *LATE], {}, "It begins in the middle of a free"),
        (LATE, {"trace_alloc_max_entries": 4}, "the file does not say"),
    ],
)
def test_the_cause_of_a_late_start_is_named_as_far_as_it_is_known(events: Any, settings: Any, cause: str) -> None:
    assert cause in found(trace_of(events, OLD, allocator_settings=settings))["late_history"].text


def test_no_stacks_at_all_names_the_arguments() -> None:
    note = found(trace_of([alloc(BASE, 1)]))["no_stacks"]
    assert 'context="all"' in note.remedy and 'stacks="all"' in note.remedy


def test_bytes_without_a_stack_are_told_apart_by_their_cause() -> None:
    bare = [segment(2 * BASE, 2 * MiB, [block(2 * BASE, 1024, 1000)])]
    notes = found(trace_of([alloc(BASE, 2000), alloc(BASE + 4096, 1000, **STACK)], bare))
    assert f"{said(2000)} of {said(4000)} (50 %)" in notes["bytes_without_stack"].text
    assert f"{said(1000)} of {said(4000)} (25 %)" in notes["earlier_bytes_without_stack"].text


def test_frees_that_wait_for_a_stream_are_counted() -> None:
    later = [event("free_requested", BASE, 1000), alloc(BASE + 1024, 9), event("free_completed", BASE, 1000)]
    note = found(trace_of([alloc(BASE, 1000, **STACK), *later]))["pending_frees"]
    assert all(each in note.text for each in ("1 free (1000 B)", "1000 B were waiting at the peak", "0 B at the end"))
    assert note.level == "warning"
    assert "pending_frees" not in found(sound(*free(BASE, 1000)))


def test_a_state_without_events_has_no_first_event() -> None:
    """No block precedes an event, and there is no peak."""
    waiting = block(BASE, 1000, state="active_pending_free")
    named = block(BASE + 4096, 1000, frames=STACK["frames"])
    notes = found(read([segment(BASE, 2 * MiB, [waiting, named])]))
    assert f"{said(1000)} of {said(2000)} (50 %) live" in notes["earlier_bytes_without_stack"].text
    assert missing(notes["pending_frees"].text, "1 free", "1000 B") == [] and "peak" not in notes["pending_frees"].text


def test_private_pools_are_listed_by_size() -> None:
    pools = [segment(BASE * i, i * 2 * MiB, [], segment_pool_id=(0, i)) for i in range(8)]
    note = found(read(pools))["private_pools"]
    assert f"{said(56 * MiB)} of {said(56 * MiB)} (100 %) reserved" in note.text
    assert f"(0, 7) {said(14 * MiB)}, (0, 6) {said(12 * MiB)}" in note.text and "and 2 more" in note.text


def test_expandable_segments_are_named() -> None:
    assert "expandable_segments" in found(read([segment(BASE, 2 * MiB, [], is_expandable=True)]))
    assert "expandable_segments" in found(trace_of([event("segment_unmap", BASE, 2 * MiB), *LATE]))


OOM = {"action": "oom", "device_free": 3 * MiB, "stream": 0, **STACK}
# 40 MiB reserved; 18 MiB live.
HALF = [segment(BASE + i * 100 * MiB, 20 * MiB, [block(BASE + i * 100 * MiB, 9 * MiB)]) for i in range(2)]


@pytest.mark.parametrize(
    ("asked", "expandable", "remedy"),
    [
        (1 * MiB, False, "A free block was large enough, but in another stream or pool"),
        (20 * MiB, False, "not in one piece: try PYTORCH_ALLOC_CONF=expandable_segments:True"),
        (20 * MiB, True, "in other streams, pools or half-used pages"),
        (26 * MiB, False, "less memory must be live at that moment"),
    ],
)
def test_out_of_memory_says_whether_the_bytes_were_there(asked: int, expandable: bool, remedy: str) -> None:
    held = [{**each, "is_expandable": expandable} for each in HALF]
    note = found(trace_of([{**OOM, "size": asked}], held))["out_of_memory"]
    assert f"and of {said(40 * MiB)} reserved {said(22 * MiB)} held no live tensor." in note.text
    assert remedy in note.remedy


def test_settings_that_are_on_already_are_no_remedy() -> None:
    note = found(trace_of([{**OOM, "size": 12 * MiB}], HALF, allocator_settings={"expandable_segments": True}))
    assert "try PYTORCH" not in note["out_of_memory"].remedy


def test_out_of_memory_with_room_on_the_device_was_a_limit() -> None:
    trace = trace_of([{**OOM, "device_free": 60 * MiB, "size": 30 * MiB}], HALF)
    assert "set_per_process_memory_fraction" in found(trace)["out_of_memory"].remedy


def test_out_of_memory_without_segments_does_not_guess() -> None:
    note = found(trace_of([alloc(BASE, 5), {**OOM, "size": 9}, {**OOM, "size": 9}]))["out_of_memory"]
    facts = ("2 times", "9 B requested", f"{said(3 * MiB)} were free on the device", "reserved memory is not known")
    assert all(fact in note.text for fact in facts)


def test_fragmentation_at_the_peak_is_noted_where_it_matters() -> None:
    half = [segment(BASE + i * 200 * MiB, 100 * MiB, [block(BASE + i * 200 * MiB, 30 * MiB)]) for i in range(2)]
    note = found(read(half))["fragmentation"]
    assert f"{said(140 * MiB)} of {said(200 * MiB)} (70 %) reserved held no tensor: 0 B in" in note.text
    assert "expandable_segments:True" in note.remedy
    assert "fragmentation" not in found(read(HALF))


def test_memory_given_back_before_new_memory_is_a_close_call() -> None:
    gone = [event("segment_free", BASE * i, 2 * MiB, **STACK) for i in (2, 3)]
    calm = found(sound(*gone))["memory_given_back"]
    assert calm.level == "info"
    assert all(
        fact in calm.text for fact in (said(4 * MiB), "released to the device (1 time)", "0 of these just before")
    )
    forced = found(sound(*gone, event("segment_alloc", 5 * BASE, 2 * MiB), *gone))["memory_given_back"]
    assert forced.level == "warning"
    assert "2 times" in forced.text and "1 of these just before" in forced.text


def test_contradictions_are_counted() -> None:
    again = [alloc(BASE + 4096, 10), alloc(BASE + 4096, 20), *free(BASE, 1000), *free(BASE, 1000)]
    note = found(sound(*again))["contradictions"]
    counted = ("1 free of blocks that were free already", "1 allocation of an address that was not free")
    assert all(each in note.text for each in (*counted, "1 allocation (20 B) never freed"))


def test_live_bytes_in_no_segment_are_noted() -> None:
    trace = sound(alloc(7 * BASE, 500), *free(7 * BASE, 500))
    assert "500 B" in found(trace)["segments_do_not_fit"].text


def test_segments_beyond_what_the_events_reserve_are_no_negative_size() -> None:
    other = BASE + 200 * MiB
    twice = [event("segment_alloc", BASE, 20 * MiB)] * 2
    final = [segment(BASE, 20 * MiB, [block(BASE, MiB)]), segment(other, 100 * MiB, [])]
    trace = trace_of([alloc(other, 90 * MiB), *free(other, 90 * MiB), *twice, alloc(BASE, MiB)], final)
    assert "20.0 MiB" in found(trace)["segments_do_not_fit"].text


def test_a_file_without_segments_says_so() -> None:
    assert "no_segments" in found(trace_of([alloc(BASE, 5)]))
    all_freed = found(trace_of([alloc(BASE, 5), *free(BASE, 5)]))
    assert "no_segments" in all_freed and "segments_do_not_fit" not in all_freed


def test_times_that_go_back_and_times_that_are_missing_are_noted() -> None:
    assert "no_times" in found(trace_of([alloc(BASE, 5)]))
    assert "backwards 1 time" in found(sound(alloc(BASE + 4096, 5, time_us=1)))["times_out_of_order"].text


def test_a_simulated_run_of_the_allocator_is_sound() -> None:
    allocator = Allocator()
    held = [allocator.malloc(size) for size in (700, 3 * MiB, 25 * MiB)]
    for address in held:
        allocator.free(address)
    assert found(read(allocator.snapshot())).keys() == {"no_stacks", "no_times"}


@requires_real
@each_real_file
def test_the_history_of_real_files(path: Path) -> None:
    trace = read_once(path)
    counted = {each["dev"]: each["init_active"] for each in expected()[path.name]["devices"]}
    for device in trace.devices:
        wanted = "none" if device.device not in counted else "late" if counted[device.device] else "complete"
        assert history(device) == wanted
    codes = set(found(trace))
    assert not codes & {"contradictions", "segments_do_not_fit", "no_segments", "times_out_of_order"}
