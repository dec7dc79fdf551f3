"""Classification of stack frames: user code, a library, torch, or machinery below Python.

Each distinct frame is classified once, by its file and function. Frames below Python are classified by name, because
only torch's own C++ is ever there.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from memviz.analysis.cache import cached
from memviz.trace.distinct import distinct
from memviz.trace.model import Bools, Bytes1, Ints8, Stacks, Trace


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
    """C++ that stands in every stack: unwinding, the allocator, the interpreter, threads."""


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
    """A FrameKind per distinct frame."""
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
    """With forward slashes, without `x/..`, and with a slash in front, so that parts are found at the start too."""
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


def last_in_stack(stacks: Stacks, frames: Bools) -> Ints8:
    """The same for the outermost one."""
    return last_place(stacks, frames[stacks.indices])


def last_place(stacks: Stacks, places: Bools) -> Ints8:
    """For each stack the outermost of these places; NOWHERE for none."""
    hits = np.append(NOWHERE, np.flatnonzero(places))
    last = hits[np.searchsorted(hits[1:], stacks.offsets[1:])]
    return np.where(last >= stacks.offsets[:-1], last, NOWHERE)


def only_places(stacks: Stacks, places: Bools) -> Stacks:
    """The same stacks with only these places."""
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(places)])
    return Stacks(stacks.frames, before[stacks.offsets], stacks.indices[places])
