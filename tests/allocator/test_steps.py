"""The requests of a recording, separate from the allocator's reactions to them."""

from __future__ import annotations

from memviz.allocator.recorded_requests import ReplayStep, Steps, steps_of
from tests.allocator.driver import MiB
from tests.traces import alloc, event, frame, free, segment, trace_of

A, B = 0x7F1200000000, 0x7F3400000000


def steps(*events) -> Steps:
    trace = trace_of([*events])
    return steps_of(trace, trace.devices[0])


def names(found: Steps) -> list[str]:
    return [ReplayStep(step).name for step in found.step.tolist()]


def gives_back(address: int = A, **more) -> dict:
    return event("segment_free", address, 20 * MiB, **more)


def takes(address: int = B, **more) -> dict:
    return event("segment_alloc", address, 30 * MiB, **more)


def test_a_free_that_completes_at_once_is_one_step():
    assert names(steps(alloc(A, 512), free(A, 512))) == ["MALLOC", "FREE", "NOTHING"]


def test_one_that_waits_is_two():
    found = steps(alloc(A, 512), event("free_requested", A, 512), alloc(B, 512), event("free_completed", A, 512))
    assert names(found) == ["MALLOC", "REQUEST_FREE", "MALLOC", "COMPLETE_FREE"]


def test_new_pages_belong_to_the_malloc_behind_them():
    found = steps(event("segment_map", A, 20 * MiB), event("segment_map", A + 40 * MiB, 20 * MiB), alloc(A, 512))
    assert names(found) == ["NOTHING", "NOTHING", "MALLOC"]
    assert found.grown.tolist() == [0, 1, 2]


def test_pages_that_no_malloc_follows_stand_for_themselves():
    found = steps(event("segment_map", A, 20 * MiB), event("oom", 0, 30 * MiB))
    assert names(found) == ["GROW", "OUT_OF_MEMORY"]


def test_memory_given_back_before_a_new_segment_was_the_allocators_doing():
    found = steps(gives_back(), takes(), alloc(B, 30 * MiB))
    assert (found.emptied, found.ladders, found.retries) == ({}, {0: 2}, 1)


def test_before_anything_else_the_programs():
    found = steps(gives_back(), gives_back(B), alloc(B, 512))
    assert (found.emptied, found.ladders, found.retries) == ({0: frozenset({(0, 0)})}, {}, 0)


def test_two_programs_calls_apart_are_two():
    found = steps(gives_back(), alloc(A, 512), gives_back(B))
    assert list(found.emptied) == [0, 2]


def test_another_stack_than_the_mallocs_says_that_the_program_called():
    mine, other = {"frames": [frame("step")]}, {"frames": [frame("empty_cache")]}
    assert steps(gives_back(**other), takes(**mine), alloc(B, 30 * MiB, **mine)).retries == 0
    assert steps(gives_back(**mine), takes(**mine), alloc(B, 30 * MiB, **mine)).retries == 1


def test_of_what_a_program_frees_some_may_have_been_made_where_the_next_malloc_stands():
    mine, other = {"frames": [frame("step")]}, {"frames": [frame("load")]}
    found = steps(gives_back(A, **mine), gives_back(A + MiB, **other), takes(**mine), alloc(B, 30 * MiB, **mine))
    assert (list(found.emptied), found.forced) == ([0], ())


def test_frees_that_complete_in_between_belong_to_the_ladder():
    found = steps(
        alloc(A, 512),
        event("free_requested", A, 512),
        alloc(B, 512),
        event("free_completed", A, 512),
        gives_back(),
        takes(),
        alloc(B + MiB, 30 * MiB),
    )
    assert found.ladders == {3: 6}


def test_a_free_right_before_it_may_have_been_waited_for():
    found = steps(alloc(A, 512), free(A, 512), gives_back(), takes(), alloc(B, 30 * MiB))
    assert found.ladders == {2: 5}
    assert names(found)[1:3] == ["REQUEST_FREE", "COMPLETE_FREE"]


def test_running_out_counts_as_a_retry_and_ends_its_ladder():
    found = steps(gives_back(), event("oom", 0, 30 * MiB), alloc(B, 512))
    assert (found.retries, found.ladders, found.emptied) == (1, {}, {})


def test_what_changes_nothing_is_copied():
    found = steps(event("snapshot", 0, 0), event("annotate", A, 0), event("something_new", A, 0))
    assert names(found) == ["COPY", "ANNOTATE", "NOTHING"]


def test_no_events_are_no_steps():
    trace = trace_of([], [segment(A, 2 * MiB, [])])
    found = steps_of(trace, trace.devices[0])
    assert (len(found.step), found.ladders, found.emptied, found.retries) == (0, {}, {}, 0)
