"""The call site of a stack: the frame that a person would call theirs, or the next best, and which it is.

Each distinct frame is looked at once; a stack is then an array lookup, however many allocations share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.callstacks.frames import (
    FrameKind,
    first_in_stack,
    frame_kinds,
    last_in_stack,
    path_of,
)
from memviz.trace.model import Ints4, Ints8, Trace


class SiteKind(StrEnum):
    USER = "user"
    LIBRARY = "library"
    TORCH = "torch"
    BACKWARD = "backward"
    NATIVE = "native"
    NONE = "none"


@dataclass(frozen=True)
class Site:
    kind: SiteKind
    function: str
    path: str = ""
    """The whole path, as recorded but with forward slashes; empty below Python."""
    line: int = 0
    label: str = ""
    """'train.py:118 train_step': as much of the path as tells this trace's files apart."""

    @property
    def key(self) -> str:
        """Tells sites apart also where their labels are alike."""
        if self.path:
            return f"{with_line(self.path, self.line)} {self.function}"
        return self.label if self.kind is SiteKind.NONE else f"{self.kind} {self.function}"


NO_SITE = Site(SiteKind.NONE, "", label="no stack recorded")


@dataclass(frozen=True, eq=False)
class Sites:
    sites: tuple[Site, ...]
    of_stack: Ints4
    """Index into `sites` per stack. One longer than the stacks, so that NO_STACK (-1) finds NO_SITE."""
    frame: Ints4
    """The frame that made each stack's site, -1 for NO_STACK; as long as `of_stack`."""

    def of(self, stack: int) -> Site:
        return self.sites[int(self.of_stack[stack])]


_PREFERENCE = (
    (FrameKind.USER, SiteKind.USER, first_in_stack),
    (FrameKind.LIBRARY, SiteKind.LIBRARY, first_in_stack),
    (FrameKind.TORCH, SiteKind.TORCH, last_in_stack),
    (FrameKind.NODE, SiteKind.BACKWARD, first_in_stack),
    (FrameKind.ENGINE, SiteKind.BACKWARD, first_in_stack),
    (FrameKind.OPERATOR, SiteKind.NATIVE, first_in_stack),
    (FrameKind.NATIVE, SiteKind.NATIVE, first_in_stack),
    (FrameKind.RELAY, SiteKind.TORCH, first_in_stack),
    (FrameKind.PLUMBING, SiteKind.NATIVE, first_in_stack),
)
"""The site is the frame of the first of these kinds that a stack has."""
_SITE_KIND = {kind: site_kind for kind, site_kind, _ in _PREFERENCE}


@cached
def sites(trace: Trace) -> Sites:
    frame = np.append(_site_frames(trace), -1).astype(np.int32)
    chosen, inverse = np.unique(frame, return_inverse=True)
    unnamed = [site_of_frame(trace, int(code)) if code >= 0 else NO_SITE for code in chosen]
    short = shortest_tails({site.path for site in unnamed})
    numbers: dict[Site, int] = {}
    of_chosen = []
    for site in unnamed:
        if site is not NO_SITE:
            place = f"{with_line(short[site.path], site.line)} " if site.path else ""
            site = replace(site, label=f"{place}{site.function}")
        of_chosen.append(numbers.setdefault(site, len(numbers)))
    return Sites(tuple(numbers), np.array(of_chosen, dtype=np.int32)[inverse], frame)


def _site_frames(trace: Trace) -> Ints4:
    stacks, kinds = trace.stacks, frame_kinds(trace)
    place = np.full(len(stacks), -1)
    for kind, _, find in _PREFERENCE:
        open_stacks = place < 0
        if not open_stacks.any():
            break
        place[open_stacks] = find(stacks, kinds == kind)[open_stacks]
    frame = np.full(len(stacks), -1, dtype=np.int32)
    frame[place >= 0] = stacks.indices[place[place >= 0]]
    return frame


def site_of_frame(trace: Trace, frame: int) -> Site:
    """One frame as a site, without a label: that needs to know the other files of the trace."""
    frames, kind = trace.stacks.frames, FrameKind(frame_kinds(trace)[frame])
    name = trace.strings[frames.name[frame]]
    if _SITE_KIND[kind] is SiteKind.NATIVE:
        # An operator's entries, `call` and `redispatch`, are one place.
        return Site(SiteKind.NATIVE, short_native(name).removesuffix("::call").removesuffix("::redispatch"))
    if kind is FrameKind.ENGINE:
        return Site(SiteKind.BACKWARD, "autograd engine (backward)")
    if kind is FrameKind.NODE:
        return Site(SiteKind.BACKWARD, f"{_node_name(name)} (backward)")
    path = path_of(trace.strings[frames.filename[frame]])
    return Site(_SITE_KIND[kind], name, path, int(frames.line[frame]))


def with_line(path: str, line: int) -> str:
    """Code that is compiled at run time has frames without a line."""
    return f"{path}:{line}" if line else path


def _node_name(name: str) -> str:
    """torch::autograd::generated::AddmmBackward0::apply(...) -> AddmmBackward0."""
    parts = short_native(name).split("::")
    last = parts[-1].removesuffix("_apply_functional")
    return parts[-2] if last == "apply" and len(parts) > 1 else last


def short_native(name: str) -> str:
    """A C++ function without its result, template arguments and parameters."""
    plain = name.replace("(anonymous namespace)::", "")
    cut = min((at for at in (plain.find("("), plain.find("<")) if at > 0), default=len(plain))
    return plain[:cut].split(" ")[-1] or name


def shortest_tails(paths: Iterable[str]) -> dict[str, str]:
    """For each path as few of its last parts as no other path ends with; the whole one where that cannot be."""
    parts = {path: [part for part in path.split("/") if part] for path in paths}
    tails: dict[str, str] = {}
    waiting, depth = sorted(parts), 1
    while waiting:
        groups: dict[str, list[str]] = {}
        for path in waiting:
            groups.setdefault("/".join(parts[path][-depth:]), []).append(path)
        for tail, group in groups.items():
            tails.update((path, tail) for path in group if len(group) == 1 or depth >= len(parts[path]))
        waiting, depth = [path for path in waiting if path not in tails], depth + 1
    return tails


NO_OPERATOR = -1
_OPERATOR = "at::_ops::"


@cached
def operators(trace: Trace) -> Ints8:
    """Per stack the text of its operator. One longer than the stacks, so that NO_STACK (-1) finds NO_OPERATOR."""
    stacks = trace.stacks
    place = first_in_stack(stacks, frame_kinds(trace) == FrameKind.OPERATOR)
    operator_of = np.full(len(stacks) + 1, NO_OPERATOR)
    known = np.flatnonzero(place >= 0)
    operator_of[known] = stacks.frames.name[stacks.indices[place[known]]]
    return operator_of


def operator_name(trace: Trace, text: int) -> str:
    """at::_ops::_to_copy::call(...) -> _to_copy."""
    if text == NO_OPERATOR:
        return ""
    return short_native(trace.strings[text]).removeprefix(_OPERATOR).partition("::")[0]
