"""Kinds of stack frames, and the call site of a stack: the frame that a user would call theirs, or the next best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

import numpy as np

from memviz.analysis.cache import cached
from memviz.trace.intern import distinct
from memviz.trace.model import Bools, Bytes1, Ints4, Ints8, Stacks, Trace

# Classification of stack frames: user code, a library, torch, or machinery below Python.
#
# Each distinct frame is classified once, by its file and function. Frames below Python are classified by name,
# because only torch's own C++ is ever there.


class FrameKind(IntEnum):
    USER = 0
    LIBRARY = 1
    TORCH = 2
    """torch's Python, and the Python that torch.compile generates."""
    RELAY = 3
    """Python that only hands a call on: module calls, decorators, the standard library's wrappers."""
    NODE = 4
    """The C++ of one backward node."""
    ENGINE = 5
    """The loop of autograd's own thread."""
    OPERATOR = 6
    """The C++ entry of an operator, `at::_ops::...`."""
    NATIVE = 7
    PLUMBING = 8
    """C++ that is in every stack: unwinding, the allocator, the interpreter, threads."""


LAST_PYTHON_KIND = FrameKind.RELAY


# Paths are compared with forward slashes, by parts they contain.

_LIBRARIES = ("/site-packages/", "/dist-packages/")
_TORCH = (
    "/site-packages/torch/",
    "/dist-packages/torch/",
    "/pytorch/torch/",
    "/torch/nn/modules/",
    "/torch/nn/functional.py",
    "/torch/optim/",
    "/torch/autograd/",
    "/torch/_tensor.py",
    "/torchinductor_",
    "/torch_compile_debug/",
    "/<eval_with_key>",
)
_STANDARD_LIBRARY = ("/lib/python3.", "/Lib/runpy.py", "/Lib/contextlib.py", "/Lib/functools.py", "/<frozen ")
_RELAYS = (
    *("_call_impl", "_wrapped_call_impl", "wrapper", "wrapped", "inner", "decorate_context", "decorate_autocast"),
    *("_fn", "compile_wrapper", "apply", "__torch_function__"),
)
"""Functions of torch that only hand a call on."""

_INTERACTIVE = ("/<ipython-input", "/<stdin>", "/<console>", "/<command-")
_LAUNCHERS = ("/bin/", "/Scripts/")
_PYTHON_ENDINGS = (".py", ".pyw", ".pyx", ".ipynb")
_INTERPRETER_ENDINGS = (".c", ".h", ".S")
_PLUMBING_NAMES = (
    "torch::unwind",
    "torch::CapturedTraceback",
    "torch::cuda::(anonymous namespace)::gather",
    "c10::",
    "at::detail::",
    "at::TensorBase at::detail::",
    "at::native::empty",
    "at::empty",
    "at::(anonymous namespace)::create_out",
    "torch::autograd::Node::operator",
    "torch::autograd::THPVariable",
    "_object* ",
    "std::",
    "Py",
    "_Py",
    "__",
    "_start",
    "start_thread",
    "clone",
    "pthread_",
    "execute_native_thread_routine",
)
_HELPERS = ("empty", "resize", "zeros", "new_empty", "new_zeros", "zero_", "set_", "fill_")
"""Operators by which another operator gets its memory."""
_OPERATOR = "at::_ops::"
_ENGINE_NAMES = ("torch::autograd::Engine::", "torch::autograd::python::PythonEngine::")
_NODE_NAMES = ("torch::autograd::generated::", "torch::autograd::AccumulateGrad::", "torch::autograd::CopySlices::")
_NODE_CALLS = ("::apply(", "_apply_functional(")


@cached
def frame_kinds(trace: Trace) -> Bytes1:
    frames, strings = trace.stacks.frames, trace.strings
    of_file = {int(code): _file_kind(path_of(strings[code])) for code in distinct(frames.filename)}
    kinds = np.empty(len(frames), dtype=np.uint8)
    for i, (name, filename) in enumerate(zip(frames.name.tolist(), frames.filename.tolist(), strict=True)):
        kind = of_file[filename]
        if kind is None:
            kind = _native_kind(strings[name])
        elif kind is FrameKind.TORCH and strings[name] in _RELAYS:
            kind = FrameKind.RELAY
        kinds[i] = kind
    return kinds


def path_of(filename: str) -> str:
    """Normalize a path: forward slashes, no `x/..`, a leading slash so that `/part` also matches at the start."""
    path = "/" + filename.replace("\\", "/").lstrip("/")
    if "/../" in path or "/./" in path:
        parts: list[str] = []
        for part in path.split("/"):
            if part == ".." and len(parts) > 1:
                parts.pop()
            elif part not in (".", ".."):
                parts.append(part)
        path = "/".join(parts)
    return path


def _file_kind(path: str) -> FrameKind | None:
    """Return None for C++, whose kind depends on the function."""
    if path.endswith(_INTERPRETER_ENDINGS):
        return FrameKind.PLUMBING
    generated = path.startswith("/<")
    if not generated and not path.endswith(_PYTHON_ENDINGS) and not any(launcher in path for launcher in _LAUNCHERS):
        return None
    parts_of_kinds = (
        (FrameKind.USER, _INTERACTIVE),
        (FrameKind.TORCH, _TORCH),
        (FrameKind.LIBRARY, (*_LIBRARIES, ".pyx")),
        (FrameKind.RELAY, (*_STANDARD_LIBRARY, *_LAUNCHERS, "/<")),
    )
    return next((kind for kind, parts in parts_of_kinds if any(part in path for part in parts)), FrameKind.USER)


def _native_kind(name: str) -> FrameKind:
    if name.startswith(_NODE_NAMES) and any(node_call in name for node_call in _NODE_CALLS):
        return FrameKind.NODE
    if name.startswith(_ENGINE_NAMES):
        return FrameKind.ENGINE
    if name.startswith(_OPERATOR):
        return FrameKind.PLUMBING if name.startswith(_HELPERS, len(_OPERATOR)) else FrameKind.OPERATOR
    if not name or name.startswith(_PLUMBING_NAMES):
        return FrameKind.PLUMBING
    return FrameKind.NATIVE


NOWHERE = -1


def first_in_stack(stacks: Stacks, frames: Bools) -> Ints8:
    """For each stack the place of its innermost frame among these; NOWHERE for none."""
    return first_place(stacks, frames[stacks.indices])


def first_place(stacks: Stacks, places: Bools) -> Ints8:
    """For each stack the innermost of these places; NOWHERE for none."""
    hits = np.flatnonzero(places)
    # Behind all places, where no stack ends.
    first = np.append(hits, len(places))[np.searchsorted(hits, stacks.offsets[:-1])]
    return np.where(first < stacks.offsets[1:], first, NOWHERE)


def is_in_stack(stacks: Stacks, frames: Bools) -> Bools:
    """True for each stack with one of these frames. One longer than the stacks, so that NO_STACK (-1) finds False."""
    return np.append(first_in_stack(stacks, frames) >= 0, False)


def last_in_stack(stacks: Stacks, frames: Bools) -> Ints8:
    """For each stack the place of its outermost frame among these; NOWHERE for none."""
    return last_place(stacks, frames[stacks.indices])


def last_place(stacks: Stacks, places: Bools) -> Ints8:
    """For each stack the outermost of these places; NOWHERE for none."""
    hits = np.append(NOWHERE, np.flatnonzero(places))
    last = hits[np.searchsorted(hits[1:], stacks.offsets[1:])]
    return np.where(last >= stacks.offsets[:-1], last, NOWHERE)


def only_places(stacks: Stacks, places: Bools) -> Stacks:
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(places)])
    return Stacks(stacks.frames, before[stacks.offsets], stacks.indices[places])


# The call site of a stack: the frame that a person would call theirs, or the next best, and which it is.
#
# Each distinct frame is looked at once; a stack is then an array lookup, however many allocations share it.


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
    """'train.py:118 train_step', with as much of the path as distinguishes this trace's files."""

    @property
    def key(self) -> str:
        """Unique per site, even where labels are equal."""
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
    """Return one frame as a site, without a label, which depends on the other files of the trace."""
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
    """Map each path to its shortest ending that no other path has; to itself if there is none."""
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


@cached
def operators(trace: Trace) -> Ints8:
    """Per stack the text of its operator. One longer than the stacks, so that NO_STACK (-1) finds NO_OPERATOR."""
    stacks = trace.stacks
    place = first_in_stack(stacks, frame_kinds(trace) == FrameKind.OPERATOR)
    operator_of = np.full(len(stacks) + 1, NO_OPERATOR)
    has_operator = np.flatnonzero(place >= 0)
    operator_of[has_operator] = stacks.frames.name[stacks.indices[place[has_operator]]]
    return operator_of


def operator_name(trace: Trace, text: int) -> str:
    """at::_ops::_to_copy::call(...) -> _to_copy."""
    if text == NO_OPERATOR:
        return ""
    return short_native(trace.strings[text]).removeprefix(_OPERATOR).partition("::")[0]
