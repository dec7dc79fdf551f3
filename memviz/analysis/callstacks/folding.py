"""Stacks without what a reader skips: a person's own frames, and the first thing that they called."""

from __future__ import annotations

import numpy as np

from memviz.analysis.cache import kept
from memviz.analysis.callstacks.frames import FrameKind, SiteRule, frame_kinds
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.callstacks.stack_places import NOWHERE, first_in_stack, last_place, only_places
from memviz.trace.model import Bools, Stacks, Trace


def folded(trace: Trace, rule: SiteRule) -> Stacks:
    """The same stacks by number. One without any user's frame keeps the frame of its site alone."""
    return kept(trace, (folded, rule), lambda: only_places(trace.stacks, _kept_places(trace, rule)))


def _kept_places(trace: Trace, rule: SiteRule) -> Bools:
    stacks, of_frame = trace.stacks, frame_kinds(trace, rule)
    kinds = of_frame[stacks.indices]
    lengths = np.diff(stacks.offsets)
    innermost = first_in_stack(stacks, of_frame == FrameKind.USER)
    keep = np.array(kinds == FrameKind.USER)

    # What the user's innermost frame called: the last library frame before it.
    library = (kinds == FrameKind.LIBRARY) | (kinds == FrameKind.TORCH)
    called = library & (np.arange(len(kinds)) < np.repeat(innermost, lengths))

    alone = np.repeat((innermost < 0), lengths) & (stacks.indices == np.repeat(sites(trace, rule).frame[:-1], lengths))
    # A frame may recur in its stack; the site stands once.
    places = np.concatenate([last_place(stacks, called), last_place(stacks, alone)])
    keep[places[places != NOWHERE]] = True
    return keep
