"""Holders: which variable, container, hook or autograd graph keeps the storage of a tensor alive.

The walk starts at the program's variables and goes breadth first along the references of Python objects, so that the
shortest path to a storage is found. From a tensor it goes on into its autograd graph: what the nodes there have saved
is invisible to Python's garbage collector. Nothing is kept by the walk, and it runs no code of the program: saved
tensors are looked at without unpacking them, which could compute a checkpoint again.
"""

from __future__ import annotations

import ast
import contextvars
import functools
import gc
import inspect
import linecache
import sys
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, islice, pairwise, repeat, zip_longest
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import Node

from memviz.predictor.compat import without_functions
from memviz.predictor.ledger import Ledger, LiveAllocation
from memviz.predictor.position import is_installed, short_path
from memviz.trace.intern import Interner
from memviz.trace.model import GRAPH_SUFFIX, HolderKind, Holders, Stage

MOST_SECONDS = 2.0
_MOST_ITEMS = 100_000
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
    place: str = ""
    """Line of the program that stores it there, such as `train.py:41`; empty where none is known."""


class _Step(NamedTuple):
    kind: HolderKind
    text: str
    is_late: bool = False
    """Followed after all others: an optimizer has the parameters too, and a model names them better."""


_Visit = tuple[Any, int, Any]
"""An object, the index of the visit from which it was reached (at a root, -1 less the root's number), and how: a
`_Step`, or None for a reference of a plain container or object, which is put into words only if it is needed."""


class _Root(NamedTuple):
    name: str
    scope: str
    """Text such as `local of train`."""
    kind: HolderKind
    value: Any
    file: str = ""
    function: str = ""
    line: int = 0
    """The line that its function is at."""


MOMENTS = (("backward", Stage.START), ("optimizer step", Stage.END))
"""When holders are noted: activations wait for backward, and what a step leaves behind stays."""


class _Wanted:
    """Keys of the storages that are still to be found; all that there are, where none are named."""

    def __init__(self, keys: Iterable[int] | None) -> None:
        self.keys = None if keys is None else set(keys)
        self._found: set[int] = set()

    def take(self, key: int | None) -> bool:
        if key is None or key in self._found or self.keys is not None and key not in self.keys:
            return False
        self._found.add(key)
        if self.keys is not None:
            self.keys.remove(key)
        return True

    @property
    def is_over(self) -> bool:
        return self.keys is not None and not self.keys


class FoundHolders(dict[int, Holder]):
    is_cut = False  # True if the time limit ended the search: storages that are not here may have a holder.


def find_holders(
    wanted: Iterable[int] | None, storage_of: Callable[[torch.Tensor], int | None], *, seconds: float
) -> FoundHolders:
    """Return the holder of each wanted storage, as far as they are found within `seconds`.

    Args:
        wanted: Keys of storages; None for all that `storage_of` gives.
        storage_of: From a tensor to the key of its storage; None where it is not one to look for.
    """
    missing = _Wanted(wanted)
    found = FoundHolders()
    with without_functions(), _collection_waits():
        deadline = time.monotonic() + seconds
        walk = _Walk(deadline)
        for key, index in walk.find(_roots(), missing, storage_of):
            found[key] = walk.holder(index)
        walk.forget()
        if walk.is_complete and not missing.is_over:
            found.update(_holders_outside_program(missing, storage_of, walk, deadline))
        found.is_cut = not missing.is_over and (not walk.is_complete or time.monotonic() > deadline)
    return found


@contextmanager
def _collection_waits() -> Iterator[None]:
    """A walk makes many objects, and a collection would look through all of them again and again."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


class _Through(Enum):
    """How a walk goes on from objects of a class. Lists, dictionaries and plain objects are most of a program."""

    NOTHING = 1
    REFERENTS = 2
    DICTIONARY = 3
    RULES = 4
    TENSOR = 5


class _Walk:
    def __init__(self, deadline: float) -> None:
        self.visits: list[_Visit] = []
        self.seen: set[int] = set()
        self.is_complete = False
        self._deadline = deadline
        self._roots: list[_Root] = []
        self._late: deque[_Visit] = deque()
        self._ways: dict[type, _Through] = {}
        self._names: dict[int, dict[int, Any]] = {}
        """Keys of what a container refers to, by the index of its visit: a long list is looked through once."""

    def find(
        self, roots: Iterable[_Root], missing: _Wanted, storage_of: Callable[[torch.Tensor], int | None]
    ) -> Iterator[tuple[int, int]]:
        """Yield key and visit of each missing storage, and take it from `missing`."""
        # A paused walk has references to all it has seen, and Python collects no cycles meanwhile.
        with closing(self._tensors(roots)) as steps:
            for index in () if missing.is_over else steps:
                key = storage_of(self.visits[index][0])
                if key is not None and missing.take(key):
                    yield key, index
                    if missing.is_over:
                        return

    def _tensors(self, roots: Iterable[_Root]) -> Generator[int, None, None]:
        """Visit all reachable objects, the nearest to a variable first, and yield the tensors."""
        self._roots.clear()
        visits, ways = self.visits, self._ways
        index = len(visits)
        for root in roots:
            if self._add(root.value, -1 - len(self._roots), root):
                self._roots.append(root)
        while True:
            if index == len(visits):
                if not self._late:
                    break
                self._add(*self._late.popleft())
                continue
            if not index % _VISITS_BETWEEN_LOOKS and (time.monotonic() > self._deadline or index > _MOST_VISITS):
                return
            value = visits[index][0]
            kind = type(value)
            way = ways.get(kind) or self._way_through(kind)
            if way is _Through.TENSOR:
                yield index
            if way is _Through.REFERENTS:
                self._add_all(gc.get_referents(value), index)
            elif way is not _Through.NOTHING:
                # Another thread may change what is looked at; what was seen until then is used.
                with suppress(RuntimeError):
                    self._expand(value, index, way)
            index += 1
        self.is_complete = True

    def _expand(self, value: Any, index: int, way: _Through) -> None:
        if way is _Through.DICTIONARY:
            self._add_all(list(value.values()), index)
            self._late += [(key, index, _key_step(key)) for key in list(value) if gc.is_tracked(key)]
            return
        for step, child in () if _is_own(value) else _references(value):
            if step.is_late:
                self._late.append((child, index, step))
            else:
                self._add(child, index, step)

    def _add_all(self, items: list[Any], index: int) -> None:
        seen, visits, is_tracked = self.seen, self.visits, gc.is_tracked
        for item in items:
            # What Python's collector does not track refers to nothing.
            if is_tracked(item) and id(item) not in seen:
                seen.add(id(item))
                visits.append((item, index, None))

    def _way_through(self, kind: type) -> _Through:
        if issubclass(kind, torch.Tensor):
            way = _Through.TENSOR
        elif issubclass(kind, _LEAVES):
            way = _Through.NOTHING
        elif kind is dict:
            way = _Through.DICTIONARY
        else:
            way = _Through.REFERENTS if kind is list or kind is tuple or _is_plain(kind) else _Through.RULES
        self._ways[kind] = way
        return way

    def _add(self, value: Any, parent: int, how: Any) -> bool:
        # Python's collector does not track a frame that runs, or of a generator that waits.
        if id(value) in self.seen or not (gc.is_tracked(value) or _is_instance(value, types.FrameType)):
            return False
        self.seen.add(id(value))
        self.visits.append((value, parent, how))
        return True

    def holder(self, index: int) -> Holder:
        root, way = self._way(index)
        steps = [step for _, step in way[1:]]
        kinds = [root.kind, *(step.kind for step in steps)]
        kind = next((kind for kind in _TELLING if kind in kinds), kinds[-1])
        # Name `model.0` and `optimizer.state` apart, and what a graph has saved; elements of one list are together.
        # The `__dict__` of an object may be a step of its own, without a text.
        written = [step for step in steps if step.text][:1]
        attribute = "".join(step.text for step in written if step.kind is HolderKind.ATTRIBUTE)
        owner = root.name + (f"{attribute}{GRAPH_SUFFIX}" if kind is HolderKind.AUTOGRAD_GRAPH else attribute)
        inside = ((value, step) for (value, _), (_, step) in pairwise(way) if step.kind is HolderKind.CONTAINER)
        length = next((f", {type(of).__name__} of {len(of)}" for of, _ in inside if type(of) in _GROWS), "")
        return Holder(kind, owner, f"{_joined_steps(root.name, steps)} ({root.scope}){length}", _place(root, way))

    def _way(self, index: int) -> tuple[_Root, list[tuple[Any, _Step]]]:
        """Return the root, and each object from there with the step that led to it."""
        way: list[tuple[Any, _Step]] = []
        while index >= 0:
            value, parent, how = self.visits[index]
            if parent < 0:
                how = _Step(how.kind, how.name)
            elif how is None:
                how = self._plain_step(parent, value)
            way.append((value, how))
            index = parent
        return self._roots[-1 - index], way[::-1]

    def _plain_step(self, parent: int, value: Any) -> _Step:
        """Name the reference from a list, tuple, dictionary or plain object."""
        holder, above, _ = self.visits[parent]
        is_row = type(holder) is list or type(holder) is tuple
        names = holder if is_row or type(holder) is dict else _dict_of(holder)
        if value is names:
            # The dictionary of an object, as an object of its own.
            return _Step(HolderKind.ATTRIBUTE, "")
        if parent not in self._names:
            items = enumerate(list(names)) if is_row else list(names.items())
            self._names[parent] = {id(item): name for name, item in items}
        name = self._names[parent].get(id(value), "…")
        if is_row:
            return _Step(HolderKind.CONTAINER, f"[{name}]")
        is_attribute = names is not holder or above >= 0 and _dict_of(self.visits[above][0]) is names
        return _attribute_step(str(name)) if is_attribute else _Step(HolderKind.CONTAINER, f"[{_key_text(name)}]")

    def path_below(self, index: int) -> tuple[Any, str]:
        root, way = self._way(index)
        return root.value, _joined_steps(root.name, [step for _, step in way[1:]])

    def forget(self) -> None:
        """Drop all references, but remember what was visited."""
        self.visits.clear()
        self._roots.clear()
        self._late.clear()
        self._names.clear()


_VISITS_BETWEEN_LOOKS = 64
_MOST_VISITS = 4_000_000  # About 150 bytes each.
_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class written in Python, with few exceptions."""
_GROWS = (list, dict, set, deque)
_CONTAINERS = (dict, list, tuple, deque, set, frozenset, type)


def _is_plain(kind: type) -> bool:
    """Return whether objects of a class have all that they refer to in `__dict__`."""
    is_special = any(issubclass(kind, special) for special, _ in _REFERENCES) or issubclass(kind, _CONTAINERS)
    # A C type may refer to more than its dictionary.
    is_heap = all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
    has_slots = any(_slots(kind))
    return is_heap and kind.__dictoffset__ != 0 and not is_special and not _is_own_class(kind) and not has_slots


def _key_step(key: Any) -> _Step:
    return _Step(HolderKind.CONTAINER, f" → key {_key_text(key)}", is_late=True)


def _attribute_step(name: str) -> _Step:
    return _Step(HolderKind.HOOK if "hook" in name else HolderKind.ATTRIBUTE, f".{name}")


_TELLING = (
    HolderKind.EXCEPTION, HolderKind.NOTEBOOK_OUTPUT, HolderKind.AUTOGRAD_GRAPH, HolderKind.HOOK, HolderKind.CLOSURE,
)  # fmt: skip
"""Kinds that describe a whole path, the first before the others."""
_LEAVES = (
    str, bytes, bytearray, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size,
    types.ModuleType, types.CodeType, types.BuiltinFunctionType, weakref.ref, range, slice,
)  # fmt: skip


def _is_instance(value: Any, kinds: Any) -> bool:
    """Return what isinstance would, without asking the object: a proxy answers with code of its own."""
    return issubclass(type(value), kinds)


def _is_own(value: Any) -> bool:
    """Return whether an object is memviz's own, which keeps nothing of the program."""
    if _is_instance(value, types.FrameType | types.GeneratorType):
        frame = value if _is_instance(value, types.FrameType) else value.gi_frame
        return frame is not None and _is_own_frame(frame)
    return _is_own_class(type(value))


def _is_own_class(kind: type) -> bool:
    return _text_or_empty(type.__getattribute__(kind, "__module__")).startswith(_OWN)


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


def _joined_steps(name: str, steps: list[_Step]) -> str:
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
    """Yield the objects that an object refers to, each with its source text such as `.name` or `[3]`."""
    kind = type(value)
    references = next((references for kinds, references in _REFERENCES if issubclass(kind, kinds)), None)
    if references is not None:
        yield from references(value)
        return
    if _is_instance(value, dict):
        for key, item in islice(list(value.items()), _MOST_ITEMS):
            yield _Step(HolderKind.CONTAINER, f"[{_key_text(key)}]"), item
            yield _key_step(key), key
    elif _is_instance(value, list | tuple | deque):
        for number, item in enumerate(islice(list(value), _MOST_ITEMS)):
            yield _Step(HolderKind.CONTAINER, f"[{number}]"), item
    elif _is_instance(value, set | frozenset):
        for item in islice(list(value), _MOST_ITEMS):
            yield _Step(HolderKind.CONTAINER, " → element"), item
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


def _key_text(key: Any) -> str:
    if _is_instance(key, str | int | float | bool | None):
        text = repr(key)
        return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}…"
    return "parameter" if _is_instance(key, nn.Parameter) else type(key).__name__


def _of_object(value: Any) -> Iterator[tuple[_Step, Any]]:
    if _is_instance(value, type):
        if not is_library_module(type.__getattribute__(value, "__module__")):
            yield from _attributes(vars(value))
        return
    attributes = _dict_of(value)
    yield from _attributes(attributes)
    for name in _slots(type(value)):
        with suppress(AttributeError):
            yield _Step(HolderKind.ATTRIBUTE, f".{name}"), object.__getattribute__(value, name)
    if not _is_instance(value, dict | list | tuple | deque | set | frozenset) and not attributes:
        # Objects of C code, such as iterators.
        for item in gc.get_referents(value):
            if not _is_instance(item, type):
                yield _Step(HolderKind.ATTRIBUTE, f" → {type(value).__name__}"), item


def _attributes(attributes: Mapping[str, Any]) -> Iterator[tuple[_Step, Any]]:
    for name, item in list(attributes.items()):
        yield _attribute_step(name), item


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names = (slots,) if _is_instance(slots, str) else slots
        yield from (name for name in names if isinstance(base.__dict__.get(name), types.MemberDescriptorType))


def _of_module(module: nn.Module) -> Iterator[tuple[_Step, Any]]:
    """Parameters, buffers and children are written as attributes, as they are read."""
    for attribute, item in list(_dict_of(module).items()):
        if attribute in ("_parameters", "_buffers", "_modules") and _is_instance(item, dict):
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
            for number, saved in enumerate(raw if _is_instance(raw, tuple | list) else [raw]):
                several = f"[{number}]" if _is_instance(raw, tuple | list) else ""
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
        yield _Step(HolderKind.CLOSURE, f" → {name} in the closure of {function.__name__}"), cell
    defaults = function.__defaults__ or ()
    code = function.__code__
    for name, value in zip(
        code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True
    ):
        yield _Step(HolderKind.CLOSURE, f" → {name}, default argument of {function.__name__}"), value
    yield from _attributes(function.__kwdefaults__ or {})
    yield from _attributes(function.__dict__)


def _of_cached_function(function: Any) -> Iterator[tuple[_Step, Any]]:
    for item in gc.get_referents(function):
        yield _Step(HolderKind.CONTAINER, " → cached results" if type(item) is dict else " → cached result"), item


def _of_thread_local(value: threading.local) -> Iterator[tuple[_Step, Any]]:
    yield from _attributes(value.__dict__)
    for item in gc.get_referents(value):
        yield _Step(HolderKind.ATTRIBUTE, " → of another thread"), item


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
    (functools.partial, lambda one: _attributes({"func": one.func, "args": one.args, "keywords": one.keywords})),
    (type(functools.cache(print)), _of_cached_function),
    (threading.local, _of_thread_local),
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
        scope = _scope(frame.f_globals.get("__name__"))
        yield from _variables(list(frame.f_globals.items()), scope, frame.f_code.co_filename)
    for frame in own:
        code = frame.f_code
        if code.co_flags & inspect.CO_OPTIMIZED:
            where = code.co_filename, code.co_name, frame.f_lineno
            yield from _variables(list(_locals(frame).items()), f"local of {code.co_name}", *where)
    for name in ("last_exc", "last_value"):
        if (error := getattr(sys, name, None)) is not None:
            yield _Root("the last exception", f"sys.{name}", HolderKind.EXCEPTION, error)
    for variable, value in contextvars.copy_context().items():
        yield _Root(variable.name, "context variable", HolderKind.VARIABLE, value)
    for name, module in list(sys.modules.items()):
        is_own = name.partition(".")[0] in ("memviz", "builtins")
        if type(module) is types.ModuleType and not is_own and not is_library_module(name):
            values = [(key, value) for key, value in vars(module).items() if key != "__builtins__"]
            yield from _variables(values, _scope(name), _text_or_empty(vars(module).get("__file__")))


def _scope(module: Any) -> str:
    return f"global of {module}" if type(module) is str and module != "__main__" else "global"


def _variables(values: Iterable[tuple[str, Any]], scope: str, *place: Any) -> Iterator[_Root]:
    for name, value in values:
        is_shown = name == "Out" or name.startswith("_") and name.strip("_").isdecimal() or name in ("_", "__", "___")
        kind = HolderKind.EXCEPTION if _is_instance(value, BaseException) else HolderKind.VARIABLE
        yield _Root(name, scope, HolderKind.NOTEBOOK_OUTPUT if is_shown else kind, value, *place)


def _text_or_empty(value: Any) -> str:
    return value if type(value) is str else ""


def _place(root: _Root, way: list[tuple[Any, _Step]]) -> str:
    """Return the innermost line of the program that stores an object of the path."""
    lines = [(root.file, *_storing_line(root.file, root.function, root.name), False)]
    for (holder, _), (_, step) in pairwise(way):
        if step.kind is HolderKind.EXCEPTION:
            # The variables of a traceback are right as they are: the line that keeps the exception is not.
            break
        name = step.text.removeprefix(" → ").partition(" ")[0].rstrip(",")
        if name.removeprefix(".").isidentifier():
            # The program may set an attribute of a library's object.
            file, function = _source_of(holder)
            file = file or root.file
            lines.append((file, *_storing_line(file, function, name), step.kind is HolderKind.CLOSURE))
    for file, line, adds, is_closed_over in reversed(lines):
        # What a function closes over is right too, unless it grows: what keeps the function is not.
        if line and (adds or not is_closed_over):
            return f"{short_path(file)}:{line}"
    return f"{short_path(root.file)}:{root.line}" if root.line else ""


def _source_of(value: Any) -> tuple[str, str]:
    """Return the file of the program that stores attributes or variables of an object, and the function if known."""
    function = ""
    if _is_instance(value, types.FrameType):
        file, function = value.f_code.co_filename, value.f_code.co_name
    elif _is_instance(value, types.FunctionType):
        file = value.__code__.co_filename
    else:
        file = _file_of(type(value))
    return ("", "") if is_installed(file) else (file, function)


_GROWING = {"add", "append", "appendleft", "extend", "insert", "put", "register_buffer", "setdefault", "update"}
_LONGEST_SOURCE = 1 << 20


def _storing_line(file: str, function: str, name: str) -> tuple[int, bool]:
    """Return the line that stores under a name, by preference one that adds to a container, and whether it does.

    The line is 0 if there is none.
    """
    stores = _stores_in_file(file).get(name, []) if file else []
    here = [store for store in stores if function in ("", store[0])] or stores
    adding = [store for store in here if store[2]] or here
    return (adding[-1][1], adding[-1][2]) if adding else (0, False)


@functools.lru_cache(maxsize=64)
def _stores_in_file(file: str) -> dict[str, list[tuple[str, int, bool]]]:
    """Return function, line and whether it adds to a container, of each store in a source file, by name."""
    source = "".join(linecache.getlines(file))
    found: dict[str, list[tuple[str, int, bool]]] = {}
    if len(source) > _LONGEST_SOURCE:
        return found
    try:
        waiting: list[tuple[ast.AST, str]] = [(ast.parse(source), "")]
    except (SyntaxError, ValueError, RecursionError):
        return found
    while waiting:
        node, function = waiting.pop()
        for name, adds in _stored_names(node):
            found.setdefault(name, []).append((function, getattr(node, "lineno", 0), adds))
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
    for stores in found.values():
        stores.sort(key=lambda store: store[1])
    return found


def _stored_names(node: ast.AST) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWING:
        yield from ((name, True) for name, _ in _target_names(node.func.value))
    elif isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name:
        yield node.name, False
    targets = getattr(node, "targets", None) if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets or ():
        yield from _target_names(target)


def _target_names(target: Any) -> Iterator[tuple[str, bool]]:
    """Yield the names that a target of an assignment stores to (`.name` of an attribute), and whether an element is."""
    match target:
        case ast.Name(id=name):
            yield name, False
        case ast.Attribute(attr=name):
            yield f".{name}", False
        case ast.Subscript(value=value):
            yield from ((name, True) for name, _ in _target_names(value))
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                yield from _target_names(element)


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


def _holders_outside_program(
    missing: _Wanted, storage_of: Callable[[torch.Tensor], int | None], walk: _Walk, deadline: float
) -> Iterator[tuple[int, Holder]]:
    """Name the holders of storages that no variable of the program leads to."""
    # The list of all objects refers to each of them, so it is deleted before referrers are listed.
    objects = gc.get_objects()
    # Nodes of the autograd graph are Python objects while they are looked at: others have the same `id` afterwards.
    walk.seen.intersection_update(map(id, objects))
    strays = [value for value in objects if _is_instance(value, torch.Tensor) and id(value) not in walk.seen]
    del objects
    places = {id(stray): place for place, stray in enumerate(strays)}
    found: dict[int, tuple[int, str]] = {}
    # A tensor that no object refers to lives on in C++, as one that a graph has saved: the others lead to it.
    referred = {id(item) for one in gc.get_referrers(*strays) if one is not strays for item in gc.get_referents(one)}
    for is_first in (True, False):
        roots = [_Root("tensor", "", HolderKind.VARIABLE, one) for one in strays if (id(one) in referred) is is_first]
        for key, index in walk.find(roots, missing, storage_of):
            value, path = walk.path_below(index)
            found[key] = places[id(value)], path
            del value
        del roots
    walk.forget()
    above: dict[int, Holder] = {}
    for key, (place, path) in found.items():
        if time.monotonic() > deadline:
            return
        if place not in above:
            above[place] = _holder_upwards(strays[place], {id(strays)}, deadline)
        below = "" if path == "tensor" else f"{path} ← "
        yield key, replace(above[place], chain=below + above[place].chain)
    for key in missing.keys or ():
        yield key, IN_CPP


_IN_CYCLE = "unreachable: gc.collect() would free it"
IN_CPP = Holder(HolderKind.OUTSIDE_PYTHON, "PyTorch, in C++", "no Python tensor refers to it")


def _holder_upwards(tensor: torch.Tensor, own: set[int], deadline: float) -> Holder:
    """Follow references from a tensor back to a library's variables; a cycle has none.

    Each level looks through all objects of the process once. That is less than to walk down from all libraries.
    """
    level: list[Any] = [tensor]
    names: list[str] = []
    place = ""
    seen: set[int] = set()
    is_cycle = False
    own |= {id(seen), id(names)}
    # Not of a frame that only a traceback or a generator keeps.
    running = {id(frame) for frame in _frames()}
    while level and time.monotonic() < deadline:
        own.add(id(level))
        seen.update(map(id, level))
        all_referrers = [one for one in gc.get_referrers(*level) if id(one) not in own and not _is_own(one)]
        own.add(id(all_referrers))
        referrers = [one for one in all_referrers if id(one) not in seen]
        own.add(id(referrers))
        is_cycle = is_cycle or len(referrers) < len(all_referrers)
        for one in referrers:
            if id(one) in running:
                place = f"local of {one.f_code.co_name}, {short_path(one.f_code.co_filename)}:{one.f_lineno}"
                return Holder(HolderKind.VARIABLE, f"a {place}", " ← ".join([*names, place]))
            if type(one) is dict and type(name := one.get("__name__")) is str and "__spec__" in one:
                return Holder(HolderKind.VARIABLE, f"module {name}", " ← ".join([*names, f"global of {name}"]))
        if referrers:
            told = next((one for one in referrers if any(_source_of(one))), referrers[0])
            # The attributes of an object are named by the object.
            names += [] if type(told) is dict else [type(told).__name__]
            place = place or _class_line(type(told))
        level = referrers
    if level:
        return Holder(HolderKind.CONTAINER, "a library", " ← ".join([*names, "not followed further"]))
    if not is_cycle:
        return IN_CPP
    return Holder(HolderKind.UNCOLLECTED_CYCLE, "cycle awaiting collection", " ← ".join([*names, _IN_CYCLE]), place)


def _file_of(kind: type) -> str:
    module = sys.modules.get(_text_or_empty(type.__getattribute__(kind, "__module__")))
    return _text_or_empty(getattr(module, "__file__", ""))


def _class_line(kind: type) -> str:
    file = _file_of(kind)
    line = 0 if is_installed(file) else _storing_line(file, "", kind.__name__)[0]
    return f"{short_path(file)}:{line}" if line else ""


_MOST_SECONDS_IN_ALL = 60.0
_KEPT = "kept by PyTorch, outside Python, until the process ends"
_WORKSPACES = Holder(HolderKind.OUTSIDE_PYTHON, "cuBLAS workspaces", _KEPT)


class HolderLog:
    """Holders of the live storages at marked moments of a predicted program."""

    def __init__(self, ledger: Ledger, interner: Interner, workspaces: Callable[[], Iterable[LiveAllocation]]) -> None:
        self._ledger = ledger
        self._interner = interner
        self._workspaces = workspaces
        """Live allocations that belong to no storage."""
        self._rows: list[tuple[int, ...]] = []
        self._last: dict[int, tuple[HolderKind, str]] = {}
        """Kind and owner that were noted last, by the number of the allocation."""
        self._seconds_left = _MOST_SECONDS_IN_ALL
        self.cut = 0
        """Moments at which the search was ended by its time limit."""

    def note(self) -> None:
        """Find what holds each live storage now; what is held as before gets no row."""
        if self._seconds_left <= 0:
            self.cut += 1
            return
        live, start = dict(self._ledger.live), time.monotonic()

        def storage_of(tensor: torch.Tensor) -> int | None:
            wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            has_storage = tensor.is_meta and tensor.layout is torch.strided and not wrapped
            return int(tensor.untyped_storage()._cdata) if has_storage else None

        found = find_holders(live, storage_of, seconds=min(MOST_SECONDS, self._seconds_left))
        self.cut += found.is_cut
        held = [(live[key], holder) for key, holder in found.items()]
        for allocation, holder in chain(held, zip(self._workspaces(), repeat(_WORKSPACES))):
            if self._last.get(allocation.number) != (holder.kind, holder.owner):
                self._last[allocation.number] = holder.kind, holder.owner
                texts = [self._interner.string(text) for text in (holder.owner, holder.chain, holder.place)]
                at = len(self._ledger.cards[allocation.card].history)
                self._rows.append((allocation.card, at, allocation.block.address, holder.kind, *texts))
        self._seconds_left -= time.monotonic() - start

    def columns(self, card: int = 0) -> Holders | None:
        rows = [row[1:] for row in self._rows if row[0] == card]
        return Holders.typed(*zip(*rows, strict=True)) if rows else None
