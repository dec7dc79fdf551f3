"""Which stacks of several traces are the same: a person's own frames, and the operator that took the memory.

Frames of libraries between them do not count, so that another version of torch makes no other stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from memviz.analysis.callstacks.frames import FrameKind, SiteRule, frame_kinds, path_of
from memviz.analysis.callstacks.operators import NO_OPERATOR, operator_name
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.comparing.moved_lines import Lines, moved
from memviz.trace.model import Ints8, Trace

_SHOWN = 3


@dataclass(frozen=True)
class StackName:
    key: str
    label: str
    operator: str


def stack_names(
    traces: Sequence[Trace], operator_of: Sequence[Ints8], rule: SiteRule
) -> list[tuple[Ints8, list[StackName]]]:
    """Per trace the number of each stack's name (one more for NO_STACK), and the names."""
    frames = [_own_frames(trace, rule) for trace in traces]
    calls = [_calls(trace, own) for trace, own in zip(traces, frames, strict=True)]
    lines: Lines = {}
    for number, each in enumerate(calls):
        for home, line in each.values():
            lines.setdefault(home, [set() for _ in traces])[number].add(line)
    gone = moved(lines)
    texts = [
        {frame: home if home in gone else f"{home}:{line}" for frame, (home, line) in each.items()} for each in calls
    ]
    return [
        _named(trace, _sequences(trace, own), text, operator, rule)
        for trace, own, text, operator in zip(traces, frames, texts, operator_of, strict=True)
    ]


def _own_frames(trace: Trace, rule: SiteRule) -> Ints8:
    """Places in `Stacks.indices` that are a person's own."""
    return np.flatnonzero((frame_kinds(trace, rule) == FrameKind.USER)[trace.stacks.indices])


def _calls(trace: Trace, own: Ints8) -> dict[int, tuple[str, int]]:
    """Of each frame its file and function, and its line."""
    frames, strings = trace.stacks.frames, trace.strings
    return {
        frame: (f"{_file(strings[frames.filename[frame]])} {strings[frames.name[frame]]}", int(frames.line[frame]))
        for frame in np.unique(trace.stacks.indices[own]).tolist()
    }


def _file(path: str) -> str:
    return path_of(path).rpartition("/")[2]


def _sequences(trace: Trace, own: Ints8) -> list[tuple[int, ...]]:
    """Per stack its own frames, innermost first; the empty one at the end is NO_STACK's."""
    members = trace.stacks.indices[own].tolist()
    bounds = np.searchsorted(own, trace.stacks.offsets).tolist()
    return [*(tuple(members[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)), ()]


def _named(
    trace: Trace, sequences: list[tuple[int, ...]], texts: dict[int, str], operator_of: Ints8, rule: SiteRule
) -> tuple[Ints8, list[StackName]]:
    site_of = sites(trace, rule).of_stack.tolist()
    numbers: dict[tuple[tuple[int, ...], int, int], int] = {}
    names: list[StackName] = []
    of_stack = []
    for sequence, site, operator in zip(sequences, site_of, operator_of.tolist(), strict=True):
        # Without frames of one's own, the site is all that tells two stacks apart.
        same = (sequence, NO_OPERATOR if sequence else site, operator)
        if same not in numbers:
            numbers[same] = len(names)
            names.append(
                _name(trace, sequence, texts, operator_name(trace, operator), sites(trace, rule).sites[site].label)
            )
        of_stack.append(numbers[same])
    return np.array(of_stack, dtype=np.int64), names


def _name(trace: Trace, sequence: tuple[int, ...], texts: dict[int, str], operator: str, site: str) -> StackName:
    frames, strings = trace.stacks.frames, trace.strings
    full = "\n".join([operator, *(texts[frame] for frame in sequence)]) if sequence else f"{operator}\n\n{site}"
    key = blake2b(full.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    shown = [f"{_file(strings[frames.filename[frame]])}:{frames.line[frame]}" for frame in sequence[:_SHOWN]]
    return StackName(key, " ← ".join(shown) or site, operator)
