"""First and last frames of every stack at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.callstacks.sites import NOWHERE, first_in_stack, last_in_stack, last_place, only_places
from memviz.trace.model import Frames, Stacks

FRAMES = 4


def stacks_of(lists: list[list[int]]) -> Stacks:
    names = np.arange(FRAMES, dtype=np.int32)
    offsets = np.cumsum([0, *map(len, lists)])
    return Stacks(Frames(names, names, names), offsets, np.array(sum(lists, []), dtype=np.int32))


some_stacks = st.lists(st.lists(st.integers(0, FRAMES - 1), max_size=4), max_size=5)
some_frames = st.lists(st.booleans(), min_size=FRAMES, max_size=FRAMES).map(np.array)


@given(some_stacks, some_frames)
def test_places_are_those_a_loop_finds(lists, frames):
    stacks, first, last, at = stacks_of(lists), [], [], 0
    for each in lists:
        places = [at + i for i, frame in enumerate(each) if frames[frame]]
        first.append(places[0] if places else NOWHERE)
        last.append(places[-1] if places else NOWHERE)
        at += len(each)
    assert first_in_stack(stacks, frames).tolist() == first
    assert last_in_stack(stacks, frames).tolist() == last
    assert last_place(stacks, frames[stacks.indices]).tolist() == last


@given(some_stacks, some_frames)
def test_stacks_keep_their_numbers_when_frames_are_left_out(lists, frames):
    stacks = stacks_of(lists)
    left = only_places(stacks, frames[stacks.indices])
    kept = [left.of(i).tolist() for i in range(len(left))]
    assert kept == [[frame for frame in each if frames[frame]] for each in lists]
