"""The operator that took each allocation's memory, from the C++ part of its stack.

It is the innermost `at::_ops::` entry that is not one of the helpers by which another operator gets its memory
(`frames` says which): `_to_copy`, and not `empty_strided`.
"""

from __future__ import annotations

import numpy as np

from memviz.analysis.cache import kept
from memviz.analysis.callstacks.frames import DEFAULT_RULE, FrameKind, SiteRule, frame_kinds
from memviz.analysis.callstacks.sites import short_native
from memviz.analysis.callstacks.stack_places import first_in_stack
from memviz.trace.model import Ints8, Trace

NO_OPERATOR = -1
_OPERATOR = "at::_ops::"


def operators(trace: Trace, rule: SiteRule = DEFAULT_RULE) -> Ints8:
    """Per stack the text of its operator. One longer than the stacks, so that NO_STACK (-1) finds NO_OPERATOR."""
    return kept(trace, (operators, rule), lambda: _operators(trace, rule))


def _operators(trace: Trace, rule: SiteRule) -> Ints8:
    stacks = trace.stacks
    place = first_in_stack(stacks, frame_kinds(trace, rule) == FrameKind.OPERATOR)
    operator_of = np.full(len(stacks) + 1, NO_OPERATOR)
    known = np.flatnonzero(place >= 0)
    operator_of[known] = stacks.frames.name[stacks.indices[place[known]]]
    return operator_of


def operator_name(trace: Trace, text: int) -> str:
    """at::_ops::_to_copy::call(...) -> _to_copy."""
    if text == NO_OPERATOR:
        return ""
    return short_native(trace.strings[text]).removeprefix(_OPERATOR).partition("::")[0]
