"""Holders: which variable, container, hook or autograd graph keeps the storage of a tensor alive.

The walk starts at the program's variables and goes breadth first along the references of Python objects, so that the
shortest way to a storage is found. From a tensor it goes on into its autograd graph: what the nodes there have saved
is invisible to Python's garbage collector. Nothing is kept by the walk, and it runs no code of the program: saved
tensors are looked at without unpacking them, which could compute a checkpoint again.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice, repeat, zip_longest
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import Node

from memviz.predictor.compat import without_functions
from memviz.predictor.ledger import Ledger, LiveAllocation
from memviz.predictor.position import is_installed, short_path
from memviz.trace.intern import Interner
from memviz.trace.model import HolderKind, Holders

MOST_SECONDS = 2.0
_MOST_ITEMS = 100_000
"""Elements of one container that are followed."""
_LONGEST_KEY = 40
_SAVED = "_raw_saved_"
_OWN = "memviz."


@dataclass(frozen=True)
class Holder:
    """The variable that keeps a storage alive, and the path from there."""

    kind: HolderKind
    owner: str
    """The name by which holders are grouped: `losses`, `model`, `the graph of loss`."""
    chain: str
    length: int = 0
    """Elements of the innermost container on the way; 0 if there is none."""


class _Step(NamedTuple):
    """A reference from one object to another."""

    kind: HolderKind
    text: str
    is_late: bool = False
    """Followed after all others: an optimizer has the parameters too, and a model names them better."""


class _Visit(NamedTuple):
    value: Any
    parent: int
    """Index of the visit from which this one came, or -1 at a root."""
    step: _Step


class _Root(NamedTuple):
    name: str
    place: str
    kind: HolderKind
    value: Any


def find_holders(
    wanted: Iterable[int],
    storage_of: Callable[[torch.Tensor], int | None],
    *,
    seconds: float = MOST_SECONDS,
    skipped: Callable[[Any], bool] = lambda value: False,
) -> dict[int, Holder]:
    """Return the holder of each wanted storage, as far as they are found within `seconds`.

    Args:
        wanted: Keys of storages.
        storage_of: From a tensor to the key of its storage; None where it is not one to look for.
        skipped: True for objects that are not the program's.
    """
    missing = set(wanted)
    found: dict[int, Holder] = {}
    with without_functions():
        deadline = time.monotonic() + seconds
        walk = _Walk(deadline, skipped)
        steps = walk.run()
        for index in steps:
            value = walk.visits[index].value
            if _is(value, torch.Tensor) and (key := storage_of(value)) in missing:
                missing.discard(key)
                found[key] = walk.holder(index)
                if not missing:
                    break
        # A walk that stands still has references to all it has seen, and Python collects no cycles meanwhile.
        steps.close()
        walk.visits.clear()
        if missing and walk.is_complete:
            found.update(_others(missing, storage_of, walk.seen, deadline))
    return found


class _Walk:
    def __init__(self, deadline: float, skipped: Callable[[Any], bool]) -> None:
        self.visits: list[_Visit] = []
        self.seen: set[int] = set()
        self.is_complete = False
        self._deadline = deadline
        self._skipped = skipped
        self._roots: list[_Root] = []

    def run(self) -> Generator[int, None, None]:
        """Visit all reachable objects, the nearest to a variable first."""
        waiting: deque[int] = deque()
        late: deque[tuple[Any, int, _Step]] = deque()
        for root in _roots():
            if self._add(root.value, -1 - len(self._roots), _Step(root.kind, root.name)):
                waiting.append(len(self.visits) - 1)
                self._roots.append(root)
        while waiting or late:
            if not waiting:
                if self._add(*late.popleft()):
                    waiting.append(len(self.visits) - 1)
                continue
            index = waiting.popleft()
            yield index
            if time.monotonic() > self._deadline:
                return
            for step, child in _references(self.visits[index].value):
                if step.is_late:
                    late.append((child, index, step))
                elif self._add(child, index, step):
                    waiting.append(len(self.visits) - 1)
        self.is_complete = True

    def _add(self, value: Any, parent: int, step: _Step) -> bool:
        if id(value) in self.seen or _is(value, _LEAVES) or _is_own(value) or self._skipped(value):
            return False
        self.seen.add(id(value))
        self.visits.append(_Visit(value, parent, step))
        return True

    def holder(self, index: int) -> Holder:
        """Describe the way to a visit."""
        way: list[_Visit] = []
        while index >= 0:
            way.append(self.visits[index])
            index = way[-1].parent
        root = self._roots[-1 - index]
        steps = [visit.step for visit in reversed(way[:-1])]
        lengths = (_length(visit.value) for visit in way[1:])
        kind = root.kind if not steps or root.kind is not HolderKind.VARIABLE else steps[-1].kind
        kind = next((step.kind for step in steps if step.kind in _TELLING), kind)
        owner = root.name + _owner_suffix(steps)
        return Holder(kind, owner, f"{_joined(root.name, steps)} ({root.place})", next(filter(None, lengths), 0))


_TELLING = (HolderKind.AUTOGRAD_GRAPH, HolderKind.HOOK, HolderKind.CLOSURE)
_LEAVES = (
    str, bytes, bytearray, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size,
    types.ModuleType, types.CodeType, types.BuiltinFunctionType, weakref.ref, range, slice,
)  # fmt: skip


def _is(value: Any, kinds: Any) -> bool:
    """Return what isinstance would, without asking the object: a proxy answers with code of its own."""
    return issubclass(type(value), kinds)


def _is_own(value: Any) -> bool:
    """Return whether an object is memviz's own, which keeps nothing of the program."""
    if _is(value, types.FrameType | types.GeneratorType):
        frame = value if _is(value, types.FrameType) else value.gi_frame
        return frame is not None and _is_own_frame(frame)
    module = type.__getattribute__(type(value), "__module__")
    return type(module) is str and module.startswith(_OWN)


def _is_own_frame(frame: types.FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    return type(module) is str and f"{module}.".startswith(_OWN)


def _dict_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object; none where its class has no such dictionary."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return attributes if type(attributes) is dict else {}


def _length(value: Any) -> int:
    return len(value) if _is(value, list | tuple | dict | set | frozenset | deque) else 0


def _owner_suffix(steps: list[_Step]) -> str:
    """Name `model.0` and `optimizer.state` apart, and what a graph has saved; elements of one list are together."""
    attribute = "".join(step.text for step in steps[:1] if step.kind is HolderKind.ATTRIBUTE)
    is_saved = any(step.kind is HolderKind.AUTOGRAD_GRAPH for step in steps)
    return f"{attribute} (autograd graph)" if is_saved else attribute


def _joined(name: str, steps: list[_Step]) -> str:
    """Write steps one after the other; of a stretch of autograd nodes, only the last."""
    text, nodes = name, 0
    for step, following in zip_longest(steps, steps[1:]):
        if step.text.startswith(_NODE):
            nodes += 1
            if following is not None and following.text.startswith(_NODE):
                continue
            between = " → …" if nodes > 1 else ""
            text += f" → grad_fn{between} → {step.text.removeprefix(_NODE)}"
            nodes = 0
        else:
            text += step.text
    return text


_NODE = "\0node "


def _references(value: Any) -> Iterator[tuple[_Step, Any]]:
    """Yield what an object refers to, with the way to write each reference."""
    kind = type(value)
    references = next((references for kinds, references in _REFERENCES if issubclass(kind, kinds)), None)
    if references is not None:
        yield from references(value)
        return
    yield from _of_container(value)
    yield from _of_object(value)


def _of_method(method: types.MethodType) -> Iterator[tuple[_Step, Any]]:
    yield _Step(HolderKind.ATTRIBUTE, ".__self__"), method.__self__
    yield _Step(HolderKind.ATTRIBUTE, ""), method.__func__


def _of_cell(cell: types.CellType) -> Iterator[tuple[_Step, Any]]:
    with suppress(ValueError):
        yield _Step(HolderKind.CLOSURE, ""), cell.cell_contents


def _of_frame(frame: types.FrameType) -> Iterator[tuple[_Step, Any]]:
    for name, item in _locals(frame).items():
        yield _Step(HolderKind.VARIABLE, f" → {name} in {frame.f_code.co_name}"), item


def _of_generator(generator: types.GeneratorType[Any, Any, Any]) -> Iterator[tuple[_Step, Any]]:
    if generator.gi_frame is not None:
        yield _Step(HolderKind.VARIABLE, ""), generator.gi_frame


def _of_partial(value: functools.partial[Any]) -> Iterator[tuple[_Step, Any]]:
    yield from _attributes({"func": value.func, "args": value.args, "keywords": value.keywords})


def _of_container(value: Any) -> Iterator[tuple[_Step, Any]]:
    if _is(value, dict):
        for key, item in islice(list(value.items()), _MOST_ITEMS):
            yield _Step(HolderKind.CONTAINER, f"[{_key(key)}]"), item
            yield _Step(HolderKind.CONTAINER, f" → key {_key(key)}", is_late=True), key
    elif _is(value, list | tuple | deque):
        for number, item in enumerate(islice(list(value), _MOST_ITEMS)):
            yield _Step(HolderKind.CONTAINER, f"[{number}]"), item
    elif _is(value, set | frozenset):
        for item in islice(list(value), _MOST_ITEMS):
            yield _Step(HolderKind.CONTAINER, " → element"), item


def _key(key: Any) -> str:
    if _is(key, str | int | float | bool | None):
        text = repr(key)
        return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}…"
    return "parameter" if _is(key, nn.Parameter) else type(key).__name__


def _of_object(value: Any) -> Iterator[tuple[_Step, Any]]:
    if _is(value, type):
        if not is_library_module(type.__getattribute__(value, "__module__")):
            yield from _attributes(vars(value))
        return
    attributes = _dict_of(value)
    yield from _attributes(attributes)
    for name in _slots(type(value)):
        with suppress(AttributeError):
            yield _Step(HolderKind.ATTRIBUTE, f".{name}"), object.__getattribute__(value, name)
    if not _is(value, dict | list | tuple | deque | set | frozenset) and not attributes:
        # Objects of C code, such as iterators.
        for item in gc.get_referents(value):
            if not _is(item, type):
                yield _Step(HolderKind.ATTRIBUTE, f" → {type(value).__name__}"), item


def _attributes(attributes: Mapping[str, Any]) -> Iterator[tuple[_Step, Any]]:
    for name, item in list(attributes.items()):
        kind = HolderKind.HOOK if "hook" in name else HolderKind.ATTRIBUTE
        yield _Step(kind, f".{name}"), item


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names = (slots,) if _is(slots, str) else slots
        yield from (name for name in names if isinstance(base.__dict__.get(name), types.MemberDescriptorType))


def _of_module(module: nn.Module) -> Iterator[tuple[_Step, Any]]:
    """Parameters, buffers and children are written as attributes, as they are read."""
    for attribute, item in list(_dict_of(module).items()):
        if attribute in ("_parameters", "_buffers", "_modules") and _is(item, dict):
            yield from _attributes(item)
        else:
            yield from _attributes({attribute: item})


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[tuple[_Step, Any]]:
    for step, item in _attributes(_dict_of(optimizer)):
        yield step._replace(is_late=step.text == ".param_groups"), item


def _of_tensor(tensor: torch.Tensor) -> Iterator[tuple[_Step, Any]]:
    # The gradient of others is None, and reading it warns.
    if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
        yield _Step(HolderKind.ATTRIBUTE, ".grad"), tensor.grad
    if tensor.grad_fn is not None:
        yield _node_step(tensor.grad_fn), tensor.grad_fn
    yield from _attributes(_dict_of(tensor))
    hooks = getattr(tensor, "_backward_hooks", None)
    if hooks:
        yield _Step(HolderKind.HOOK, "._backward_hooks"), hooks


def _node_step(node: Any) -> _Step:
    return _Step(HolderKind.AUTOGRAD_GRAPH, f"{_NODE}{node.name()}")


def _of_node(node: Any) -> Iterator[tuple[_Step, Any]]:
    for name in dir(node):
        if not name.startswith(_SAVED):
            continue
        # A graph that was gone through backward has freed what it saved, and says so by raising.
        with suppress(RuntimeError, AttributeError):
            raw = getattr(node, name)
            for number, saved in enumerate(raw if _is(raw, tuple | list) else [raw]):
                several = f"[{number}]" if _is(raw, tuple | list) else ""
                # The tensor itself, or what a hook has packed it into; nothing is unpacked.
                yield _Step(HolderKind.AUTOGRAD_GRAPH, f" saved {name.removeprefix(_SAVED)}{several}"), saved.data
    if (variable := getattr(node, "variable", None)) is not None:
        yield _Step(HolderKind.AUTOGRAD_GRAPH, " of"), variable
    for following, _ in node.next_functions:
        if following is not None:
            yield _node_step(following), following
    yield from _attributes(_dict_of(node))


def _of_function(function: types.FunctionType) -> Iterator[tuple[_Step, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield _Step(HolderKind.CLOSURE, f" → {name}, which {function.__name__} closes over"), cell
    for number, value in enumerate(function.__defaults__ or ()):
        yield _Step(HolderKind.CLOSURE, f" → default {number} of {function.__name__}"), value
    yield from _attributes(function.__kwdefaults__ or {})
    yield from _attributes(function.__dict__)


def _of_exception(error: BaseException) -> Iterator[tuple[_Step, Any]]:
    traceback = error.__traceback__
    while traceback is not None:
        yield _Step(HolderKind.EXCEPTION, " → traceback"), traceback.tb_frame
        traceback = traceback.tb_next
    for name in ("__cause__", "__context__"):
        if getattr(error, name) is not None:
            yield _Step(HolderKind.EXCEPTION, f".{name}"), getattr(error, name)
    yield from _attributes(_dict_of(error))
    yield _Step(HolderKind.ATTRIBUTE, ".args"), error.args


_REFERENCES: list[tuple[Any, Callable[[Any], Iterator[tuple[_Step, Any]]]]] = [
    (torch.Tensor, _of_tensor),
    (Node, _of_node),
    (nn.Module, _of_module),
    (torch.optim.Optimizer, _of_optimizer),
    (types.FunctionType, _of_function),
    (types.MethodType, _of_method),
    (types.CellType, _of_cell),
    (types.FrameType, _of_frame),
    (types.GeneratorType, _of_generator),
    (functools.partial, _of_partial),
    (BaseException, _of_exception),
]


def _locals(frame: types.FrameType) -> dict[str, Any]:
    """Return the variables of a frame, without a copy of them staying in the frame."""
    names = dict(frame.f_locals)
    snapshot: Any = frame.f_locals
    is_snapshot = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and type(snapshot) is dict
    # Before Python 3.13 the snapshot stays with the frame, and keeps what its variables let go of. One that the
    # program has asked for itself, by locals(), is its own: this name, the frame and the call are the other three.
    if is_snapshot and sys.getrefcount(snapshot) <= 3:
        snapshot.clear()
    return names


def _roots() -> Iterator[_Root]:
    """Yield the variables of the program: globals, then locals, of the outermost call first."""
    own = [frame for frame in _frames() if not is_installed(frame.f_code.co_filename)]
    spaces: dict[int, types.FrameType] = {}
    for frame in own:
        spaces.setdefault(id(frame.f_globals), frame)
    for frame in spaces.values():
        place = f"global of {short_path(frame.f_code.co_filename)}"
        yield from (_variable(name, value, place) for name, value in list(frame.f_globals.items()))
    yield from _locals_of(own)
    for name in ("last_exc", "last_value"):
        if (error := getattr(sys, name, None)) is not None:
            yield _Root("the last exception", f"sys.{name}", HolderKind.EXCEPTION, error)
    yield from _globals_of_modules()


def _locals_of(frames: Iterable[types.FrameType]) -> Iterator[_Root]:
    for frame in frames:
        code = frame.f_code
        if code.co_flags & inspect.CO_OPTIMIZED:
            place = f"local of {code.co_name}, {short_path(code.co_filename)}:{frame.f_lineno}"
            yield from (_variable(name, value, place) for name, value in _locals(frame).items())


def _globals_of_modules() -> Iterator[_Root]:
    for name, module in list(sys.modules.items()):
        is_own = name.partition(".")[0] in ("memviz", "builtins")
        if type(module) is types.ModuleType and not is_own and not is_library_module(name):
            values = list(vars(module).items())
            yield from (_variable(key, value, f"global of {name}") for key, value in values if key != "__builtins__")


def _variable(name: str, value: Any, place: str) -> _Root:
    is_shown = name == "Out" or name.startswith("_") and name.strip("_").isdecimal() or name in ("_", "__", "___")
    kind = HolderKind.EXCEPTION if _is(value, BaseException) else HolderKind.VARIABLE
    return _Root(name, place, HolderKind.NOTEBOOK_OUTPUT if is_shown else kind, value)


def _frames() -> list[types.FrameType]:
    """Return the frames of all threads without memviz's, the outermost of each first."""
    found: list[types.FrameType] = []
    threads = list(sys._current_frames().values())
    while threads:
        stack: list[types.FrameType] = []
        here: types.FrameType | None = threads.pop()
        while here is not None:
            if not _is_own_frame(here):
                stack.append(here)
            # At the end it is None: a frame that had itself among its variables would be a cycle, and keep all others.
            here = here.f_back
        found += reversed(stack)
    return found


def is_library_module(name: Any) -> bool:
    top = name.partition(".")[0] if type(name) is str else ""
    if top in sys.stdlib_module_names:
        return top != "__main__"
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is None and top != "__main__" or file is not None and is_installed(file)


def _others(
    missing: set[int], storage_of: Callable[[torch.Tensor], int | None], visited: set[int], deadline: float
) -> Iterator[tuple[int, Holder]]:
    """Name the holders of storages that no variable of the program leads to."""
    for value in gc.get_objects():
        if _is(value, torch.Tensor) and id(value) not in visited and (key := storage_of(value)) in missing:
            missing.discard(key)
            yield key, _holder_upwards(value, deadline)
    for key in missing:
        yield key, Holder(HolderKind.OUTSIDE_PYTHON, "PyTorch, in C++", "no Python object has it")


_IN_CYCLE = "no variable leads here: gc.collect() would free it"


def _holder_upwards(tensor: torch.Tensor, deadline: float) -> Holder:
    """Follow references from a tensor back to a library's variables; a cycle has none.

    Each level looks through all objects of the process once. That is less than to walk down from all libraries.
    """
    level: list[Any] = [tensor]
    names: list[str] = []
    seen: set[int] = set()
    while level and time.monotonic() < deadline:
        seen |= {id(level), id(seen), id(names), *map(id, level)}
        referrers = [one for one in gc.get_referrers(*level) if id(one) not in seen and not _is_own(one)]
        for one in referrers:
            if _is(one, types.FrameType):
                place = f"local of {one.f_code.co_name}, {short_path(one.f_code.co_filename)}:{one.f_lineno}"
                return Holder(HolderKind.VARIABLE, f"a {place}", " ← ".join([*names, place]))
            if type(one) is dict and type(name := one.get("__name__")) is str and "__spec__" in one:
                return Holder(HolderKind.VARIABLE, f"module {name}", " ← ".join([*names, f"global of {name}"]))
        seen.add(id(referrers))
        if referrers:
            names.append(type(referrers[0]).__name__)
        level = referrers
    if level:
        return Holder(HolderKind.CONTAINER, "a library", " ← ".join([*names, "not followed further"]))
    return Holder(HolderKind.UNCOLLECTED_CYCLE, "cycle awaiting collection", " ← ".join([*names, _IN_CYCLE]))


_MOST_SECONDS_IN_ALL = 60.0
_WORKSPACES = Holder(
    HolderKind.OUTSIDE_PYTHON, "cuBLAS workspaces", "kept by PyTorch, outside Python, until the process ends"
)


class HolderLog:
    """Holders of the live storages at marked moments of a predicted program."""

    def __init__(
        self, ledger: Ledger, interner: Interner, workspaces: Callable[[], Iterable[LiveAllocation]] = tuple
    ) -> None:
        self._ledger = ledger
        self._interner = interner
        self._workspaces = workspaces
        """Live allocations that belong to no storage."""
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._last: dict[int, tuple[HolderKind, str]] = {}
        """Kind and owner that were noted last, by the number of the allocation."""
        self._seconds_left = _MOST_SECONDS_IN_ALL

    def note(self) -> None:
        """Find what holds each live storage now; what is held as before gets no row."""
        if self._seconds_left <= 0:
            return
        live, start = dict(self._ledger.live), time.monotonic()

        def storage_of(tensor: torch.Tensor) -> int | None:
            if not tensor.is_meta or tensor.layout is not torch.strided:
                return None
            return int(tensor.untyped_storage()._cdata)

        found = find_holders(live, storage_of, seconds=min(MOST_SECONDS, self._seconds_left))
        at = len(self._ledger.history)
        held = [(live[key], holder) for key, holder in found.items()]
        for allocation, holder in chain(held, zip(self._workspaces(), repeat(_WORKSPACES))):
            if self._last.get(allocation.number) != (holder.kind, holder.owner):
                self._last[allocation.number] = holder.kind, holder.owner
                texts = self._interner.string(holder.owner), self._interner.string(holder.chain)
                self._rows.append((at, allocation.block.address, holder.kind, *texts))
        self._seconds_left -= time.monotonic() - start

    def columns(self) -> Holders | None:
        return Holders.typed(*zip(*self._rows, strict=True)) if self._rows else None
