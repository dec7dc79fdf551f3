"""Random programs for the allocator: what hypothesis draws, and how it is run."""

from contextlib import suppress

from hypothesis import strategies as st

from memviz.allocator.blocks import AllocationFailed, Block
from tests.allocator.driver import Driver, MiB
from tests.allocator.recording import Recorder

SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "max_split_size_mb:40",
    "expandable_segments:True,large_segment_size_mb:32,roundup_power2_divisions:8",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.5",
]

Step = tuple[str, int, int]

_sizes = st.integers(1, 3 * MiB) | st.integers(1, 60 * MiB) | st.sampled_from([512, MiB, MiB + 1, 10 * MiB, 20 * MiB])
programs = st.lists(
    st.tuples(st.just("malloc"), _sizes, st.sampled_from([0, 0, 7]))
    | st.tuples(st.sampled_from(["free", "share"]), st.integers(0, 1000), st.sampled_from([0, 7, 9]))
    | st.tuples(st.sampled_from(["finish", "empty_cache"]), st.just(0), st.sampled_from([0, 7, 9])),
    max_size=60,
)


def played(run: Recorder, program: list[Step]) -> Recorder:
    """Return the recorder after a program, each step of which is on a line of its own."""
    live: list[Block] = []
    for step in program:
        run.line += 1
        take(run, live, step)
    return run


def take(run: Driver, live: list[Block], step: Step) -> None:
    action, number, stream = step
    if action == "malloc":
        with suppress(AllocationFailed):
            live.append(run.malloc(number, stream=stream))
    elif action == "free" and live:
        run.free(live.pop(number % len(live)))
    elif action == "share" and live:
        run.allocator.record_stream(live[number % len(live)], stream)
    elif action == "finish":
        run.allocator.pending.finish(stream)
    elif action == "empty_cache":
        run.allocator.empty_cache()
