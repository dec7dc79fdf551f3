"""Records the allocations of each operator in the ledger, with phase, module, stack and category."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from memviz.allocator.blocks import DeviceMemory
from memviz.allocator.settings import Settings
from memviz.runner.predict.arguments import tensors_among
from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.default_values import IndexTensors
from memviz.runner.predict.evidence import (
    COLLECTIVES,
    CUBLAS_NUMBER,
    NCCL_NUMBER,
    NO_RULE,
    RULES,
    Counted,
    Standing,
    likely_and_most,
    rule_of,
)
from memviz.runner.predict.host import Host, PinnedHost
from memviz.runner.predict.ledger import Ledger, LiveAllocation, Place
from memviz.runner.predict.named_devices import on_card
from memviz.runner.predict.operator_treatments import COPIES, Instead, OperatorTotals, Treatment, tensors_in
from memviz.runner.predict.prediction_errors import OF_SPARSE, not_predicted, users_name
from memviz.runner.predict.program_frames import NoStacks, StackTable
from memviz.runner.predict.program_position import ACCUMULATE, NO_TASK, ProgramPosition
from memviz.runner.predict.shapes import ShapeKey
from memviz.runner.predict.workspaces import LT_KEPT_SINCE, RECURRENT, WorkspaceSizes, uses_lt, workspace_sizes
from memviz.trace.intern import Interner
from memviz.trace.model import NO_STACK, Category, Phase

BlasHandle = tuple[bool, int]
"""True in backward, and the stream. Each thread has its own handles, and on a card backward runs in another thread."""


class BlasWorkspaces:
    """`take` is told how much, for which operator and by which rule."""

    def __init__(
        self,
        card: KnownCard,
        release: tuple[int, int],
        take: Callable[[int, str, int], LiveAllocation],
        free: Callable[[LiveAllocation], None],
    ) -> None:
        self._card = card
        self._release = release
        self._take = take
        self._free = free
        self._kept: dict[tuple[BlasHandle, bool], LiveAllocation] = {}
        """Live workspaces by handle and library; True is cublasLt."""
        self._told: dict[str, Any] = {}
        """Sizes set by the program, since torch 2.13; they override the environment."""

    @property
    def sizes(self) -> WorkspaceSizes:
        return replace(self._from_environment, **self._told) if self._told else self._from_environment

    @cached_property
    def _from_environment(self) -> WorkspaceSizes:
        """torch reads it at the first product, and never again."""
        return workspace_sizes(self._card, self._release, os.environ)

    def need(self, handle: BlasHandle, treatment: Treatment, *, is_lt: bool = False) -> None:
        """One that is large enough is used again; if the program has asked for more since, a larger one replaces it."""
        size = self.sizes.lt if is_lt else self.sizes.cublas
        kept = self._kept.get((handle, is_lt))
        if not size or (kept is not None and kept.requested >= size):
            return
        rule = treatment.rule if is_lt else CUBLAS_NUMBER
        self._kept[handle, is_lt] = self._take(size, treatment.name, rule)
        if kept is not None:
            self._free(kept)

    def clear(self) -> None:
        """They are made again when they are needed."""
        while self._kept:
            self._free(self._kept.popitem()[1])

    def functions(self) -> dict[str, Callable[..., int | None]]:
        """Replacements for the `torch._C` functions behind `torch.backends.cuda.cublas_workspace_size` and its like."""
        return {
            "_cuda_getCublasWorkspaceSize": lambda: self.sizes.cublas,
            "_cuda_setCublasWorkspaceSize": lambda size: self._tell("cublas", size),
            "_cuda_resetCublasWorkspaceSize": lambda: self._forget("cublas"),
            "_cuda_getCublasLtWorkspaceSize": lambda: self.sizes.lt_said,
            "_cuda_setCublasLtWorkspaceSize": lambda size: self._tell("lt_told", size),
            "_cuda_resetCublasLtWorkspaceSize": lambda: self._forget("lt_told"),
            "_cuda_clearCublasWorkspaces": self.clear,
        }

    def _tell(self, which: str, size: int) -> None:
        if size < 0:
            raise RuntimeError(f"The size of a workspace is {size}; it is 0 at least.")
        self._told[which] = size

    def _forget(self, which: str) -> None:
        self._told.pop(which, None)


_UNKNOWN = int(Category.UNKNOWN)
_NEWEST = (99, 0)
"""A release after all whose rules are known to differ."""
_COPY_OVER = "_to_copy"
"""From the host, outside of models, it brings in what they are given; weights are known by themselves."""


class CategoryColumn:
    """Category of each allocation, by its number. Most categories are known only after the allocation.

    In the forward pass the free decides: an allocation freed within the module call that made it was temporary; one
    freed later is an activation. The same holds in backward for what a checkpoint recomputes.
    """

    def __init__(self) -> None:
        self.values = bytearray()
        self._undecided: dict[int, int] = {}
        """Allocations of the forward pass, with the module call that made each."""
        self._outside: set[int] = set()
        """Made outside of modules before a backward that may use them; what it does not free it did not keep."""

    def allocated(self, category: Category, *, may_be_kept: bool, call: int) -> None:
        """The next number's. `call` is that of the innermost module, 0 outside of all."""
        if may_be_kept:
            self._undecided[len(self.values)] = call
        self.values.append(category)

    def freed(self, number: int, open_calls: Sequence[int]) -> None:
        made_in = self._undecided.pop(number, 0)
        if number in self._outside and self.values[number] == _UNKNOWN:
            self.values[number] = Category.ACTIVATION
        self._outside.discard(number)
        if self.values[number] == _UNKNOWN:
            handed_on = made_in and made_in not in open_calls
            self.values[number] = Category.ACTIVATION if handed_on else Category.TEMPORARY

    def backward_goes_on(self) -> None:
        """Treat live allocations of the forward pass as saved for backward."""
        for number, made_in in self._undecided.items():
            if not made_in:
                self._outside.add(number)
            elif self.values[number] == _UNKNOWN:
                self.values[number] = Category.ACTIVATION
        self._undecided.clear()


@dataclass
class AllocationColumns:
    """Data of each allocation, by its number."""

    category: CategoryColumn = field(default_factory=CategoryColumn)
    module: array[int] = field(default_factory=lambda: array("i"))
    phase: bytearray = field(default_factory=bytearray)
    forward_stack: array[int] = field(default_factory=lambda: array("i"))
    rule: bytearray = field(default_factory=bytearray)
    """Rule of `evidence`, where more than a shape decides the size."""


class AllocationRecorder:
    def __init__(
        self,
        card: KnownCard,
        settings: Settings,
        interner: Interner,
        assumptions: Assumptions | None = None,
        memory: DeviceMemory | None = None,
        *,
        release: tuple[int, int] = _NEWEST,
        figures_only: bool = False,
    ) -> None:
        self.card = card
        self.release = release
        self.stacks: StackTable | NoStacks = NoStacks() if figures_only else StackTable(interner)
        self.position = ProgramPosition(interner)
        self.columns = AllocationColumns()
        self.categories = self.columns.category
        stack_of_free = self.stacks.here if figures_only else self._stack_of_free
        self.ledger = Ledger(settings, stack_of_free, memory)
        self.launched: Callable[[], None] = lambda: None
        """Told of every operator that the card runs."""
        self.ledger.freed = lambda allocation: self.categories.freed(allocation.number, self.position.calls)
        self.host = Host()
        self.pinned = PinnedHost()
        self.choices = IndexTensors()
        self.assumptions = Assumptions() if assumptions is None else assumptions
        self.totals = OperatorTotals()
        self.operators: set[str] = set()
        self.dtypes: set[torch.dtype] = set()
        """Dtypes of the tensors on the device."""
        self._watched: Any = WeakIdKeyDictionary()
        """Parameters, and the hook that tells when their gradient is done."""
        self.placed: Category | None = None
        """Category of the tensors being moved to the device, during the move."""
        self.workspaces = BlasWorkspaces(card, release, self._take_workspace, self.ledger.free)
        self._stack: int | None = None
        """Stack of the running operator."""
        self.missing: dict[int, tuple[int | None, int | None]] = {}
        """Bytes not predicted, by rule: likely bytes and an upper bound, the largest at any one time."""
        self._rule = NO_RULE
        """Rule of the next allocation."""
        self.instead: Mapping[Any, Instead] = {}
        """Operators that are answered otherwise, such as those that send something to other ranks."""
        self.making_nowhere = False
        """While a function runs that was told to make something on `meta`."""

    def arrived(self, treatment: Treatment, args: Any) -> None:
        """Before an operator runs: where it is called, and which parameters it uses."""
        position = self.position
        task = position.graph_task()
        if task != position.task and position.turned(task) or task != NO_TASK and not torch.is_grad_enabled():
            self.categories.backward_goes_on()
        self._stack = None
        if position.nodes_are_new():
            self._stack = self.stacks.here(treatment.name)
            position.made_nodes(self._stack)
        for argument in args:
            if type(argument) is Parameter:
                self._uses(argument)

    def ran(self, treatment: Treatment, args: Any, kwargs: Any, out: Any, shapes: ShapeKey | None = None) -> None:
        """`shapes` are those of the arguments, where the operator's work follows from them."""
        self.operators.add(treatment.name)
        if treatment.launches and any(tensor.is_meta for tensor in tensors_in(out)):
            self.launched()
        self._takes(treatment, args, kwargs, out)
        self._rule = treatment.rule
        if treatment.rule != NO_RULE and RULES[treatment.rule].standing is Standing.MISSING and is_on_device(out):
            self._misses(treatment.rule, args, out)
        if treatment.gives_new or treatment.writes:
            self.totals.add(treatment, args, kwargs, out, shapes)
            if treatment.name in COPIES:
                self.totals.copied(out, args)
        takes_more = treatment.uses_cublas or treatment.temporaries is not None
        if takes_more and self._is_here(args[0] if out is None else out):
            self._takes_beside(treatment, args, kwargs, out)
        self._rule = NO_RULE

    def _takes(self, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        """The memory of its results."""
        if treatment.gives_new:
            there = [arg for arg in tensors_in(args) if arg.is_meta]
            known = {arg.untyped_storage()._cdata for arg in there if arg.layout is torch.strided}
            for number, tensor in enumerate((out,) if type(out) is torch.Tensor else tensors_in(out)):
                if tensor.is_meta:
                    self._rule = _rule_of_result(treatment.rule, number)
                    self._has(tensor, treatment, there, known, kwargs)
        elif treatment.resizes:
            for tensor in tensors_in(out):
                if tensor.is_meta:
                    self.resized(tensor.untyped_storage(), treatment.name)

    def _takes_beside(self, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        sizes = () if treatment.temporaries is None else treatment.temporaries(args, kwargs, out, self.card)
        lt = self.workspaces.sizes.lt if treatment.name == "addmm" and uses_lt(args, kwargs) else 0
        kept = self.release >= LT_KEPT_SINCE
        self._for_a_moment(sizes if kept else (*sizes, lt), treatment)
        if lt and kept:
            self.workspaces.need(self._handle, treatment, is_lt=True)

    def left(self, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        """A copy went to the host, and what it takes here is over."""
        with self.by_rule(treatment.rule):
            self._takes_beside(treatment, args, kwargs, out)

    def _misses(self, rule: int, args: Any, out: Any) -> None:
        figures = likely_and_most(RULES[rule].name, args, out)
        if None not in figures:
            known = self.missing.get(rule, (0, 0))
            figures = max(known[0] or 0, figures[0] or 0), max(known[1] or 0, figures[1] or 0)
        self.missing[rule] = figures

    def resized(self, storage: torch.UntypedStorage, operator: str) -> None:
        known = self.ledger.knows(storage)
        if known is None or known.requested != storage.nbytes():
            stack = self._describe_next(operator, Category.UNKNOWN)
            self.ledger.replace(storage, stack)

    def module_called(self, module: nn.Module) -> None:
        if isinstance(module, nn.RNNBase):
            self.operators.add(RECURRENT)
            self.missing[rule_of(RECURRENT)] = (None, None)

    def model_returned(self, output: Any) -> None:
        """An outermost module's output; an input that is handed through stays an input."""
        for tensor in tensors_among(output):
            number = self._number_of(tensor)
            if number is not None and self.categories.values[number] == _UNKNOWN:
                self.categories.values[number] = Category.OUTPUT
        self.know(list(kept_for_later(output)), Category.KV_CACHE)

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self.know(list(optimizer.state.values()), Category.OPTIMIZER_STATE)
        for group in optimizer.param_groups:
            shards = [weight for weight in group["params"] if hasattr(weight, "_local_tensor")]
            self.know(shards, Category.PARAMETER)
            self.know([weight.grad for weight in shards], Category.GRADIENT)

    def know(self, value: Any, category: Category) -> None:
        """Set the category of the tensors in a value, however nested, after their allocation."""
        for tensor in tensors_among(value):
            if tensor.layout is torch.sparse_coo:
                self.know((tensor._indices(), tensor._values()), category)
                continue
            # Of a tensor that is parted among ranks, this one's part.
            number = self._number_of(getattr(tensor, "_local_tensor", tensor))
            if number is not None:
                self.categories.values[number] = category

    def _number_of(self, tensor: torch.Tensor) -> int | None:
        if not on_card(tensor) or is_functorch_wrapped_tensor(tensor):
            return None
        allocation = self.ledger.knows(tensor.untyped_storage())
        return None if allocation is None else allocation.number

    def _uses(self, parameter: Parameter) -> None:
        if parameter not in self._watched:
            self.watch(parameter)
        number = self._number_of(parameter)
        if number is not None:
            self.categories.values[number] = Category.PARAMETER

    def watch(self, parameter: Parameter) -> None:
        """Its gradient is told from other memory at the moment when it is done."""
        if self._watched.get(parameter) is None:
            leaf: Any = parameter
            hooks = parameter.requires_grad
            self._watched[parameter] = (
                leaf.register_post_accumulate_grad_hook(self._gradient_is_done) if hooks else None
            )

    def know_parameters(self) -> None:
        """Weights may have got other memory, such as one of another type."""
        for parameter in list(self._watched):
            self._uses(parameter)

    def close(self) -> None:
        self.ledger.closed = True
        for hook in self._watched.values():
            if hook is not None:
                hook.remove()

    def _gradient_is_done(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and not self.ledger.closed:
            self.know(parameter.grad, Category.GRADIENT)

    def _has(
        self, tensor: torch.Tensor, treatment: Treatment, there: list[torch.Tensor], known: set[int], kwargs: Any
    ) -> None:
        """`there` are the operator's own tensors on the device, `known` the storages of these."""
        if tensor.layout is not torch.strided:
            raise not_predicted(users_name(treatment.name), OF_SPARSE)
        storage = tensor.untyped_storage()
        ledger = self.ledger
        if ledger.knows(storage) is not None or storage.nbytes() == 0:
            return
        if storage._cdata in known:
            # A view under another name, of memory that is not on this device.
            return
        if self._is_nowhere(there, kwargs):
            self.host.nowhere.add(tensor)
            return
        comes_in = treatment.name == _COPY_OVER and not there and not self.position.modules
        self.dtypes.add(tensor.dtype)
        ledger.take(storage, self._describe_next(treatment.name, Category.INPUT if comes_in else Category.UNKNOWN))

    def _is_nowhere(self, args: list[torch.Tensor], kwargs: Any) -> bool:
        """Return whether a result is a `meta` tensor for the program too, by its device or by its arguments."""
        if self.making_nowhere:
            return True
        nowhere = self.host.nowhere
        if not len(nowhere) or not args or kwargs.get("device") is not None:
            return False
        return all(arg in nowhere for arg in args)

    def _is_here(self, out: Any) -> bool:
        """Not of what lies nowhere, which no kernel makes."""
        nowhere = self.host.nowhere
        return is_on_device(out) and not (len(nowhere) and any(tensor in nowhere for tensor in tensors_in(out)))

    @property
    def _handle(self) -> BlasHandle:
        return self.position.task != NO_TASK, self.ledger.place()[0]

    def _take_workspace(self, size: int, operator: str, rule: int) -> LiveAllocation:
        with self.by_rule(rule):
            return self.take_for(Category.WORKSPACE, size, operator)

    def _for_a_moment(self, sizes: Any, treatment: Treatment) -> None:
        """While the operator runs; its workspace comes after what it copies."""
        taken: list[LiveAllocation] = []
        try:
            for size in sizes:
                if isinstance(size, tuple):
                    self._for_a_moment(size, treatment)
                elif size > 0:
                    taken.append(self.take_for(Category.TEMPORARY, size, treatment.name))
            if treatment.uses_cublas:
                self.workspaces.need(self._handle, treatment)
        finally:
            for allocation in reversed(taken):
                self.ledger.free(allocation)

    def take_for(self, category: Category, size: int, operator: str, place: Place | None = None) -> LiveAllocation:
        """Memory of no tensor."""
        return self.ledger.malloc(size, self._describe_next(operator, category), place)

    def take_for_a_moment(self, size: int, operator: str) -> None:
        """Allocate and free temporary memory by the operator's rule."""
        with self.by_rule(rule_of(operator)):
            self.ledger.free(self.take_for(Category.TEMPORARY, size, operator))

    @contextmanager
    def by_rule(self, rule: int) -> Iterator[None]:
        before, self._rule = self._rule, rule
        try:
            yield
        finally:
            self._rule = before

    def shares_with_others(self) -> None:
        """A collective ran on the card: NCCL has memory of its own there."""
        self.operators.add(COLLECTIVES)
        self.missing[NCCL_NUMBER] = (None, None)

    def _stack_of_free(self) -> int:
        return self.stacks.here("", self.position.in_backward()[2])

    def _describe_next(self, operator: str, category: Category) -> int:
        """Notes what is known of the allocation to come; its stack."""
        position, columns = self.position, self.columns
        module, forward_stack, node = position.in_backward()
        phase = position.phase if self.placed is None else Phase.UNKNOWN
        recomputing = position.is_recomputing
        kept = (phase == Phase.FORWARD or (phase == Phase.UNKNOWN and not position.phases)) or recomputing
        if category is Category.UNKNOWN and node == ACCUMULATE:
            category = Category.GRADIENT
        placed = None if category is Category.TEMPORARY else self.placed
        self.categories.allocated(placed or category, may_be_kept=kept and self.placed is None, call=position.call)
        columns.module.append(module)
        columns.phase.append(phase)
        columns.rule.append(self._rule)
        columns.forward_stack.append(NO_STACK if recomputing else forward_stack)
        if self._stack is None or node:
            self._stack = self.stacks.here(operator, node)
        return self._stack


def _rule_of_result(rule: int, number: int) -> int:
    if rule == NO_RULE or RULES[rule].counted is Counted.BESIDE:
        return NO_RULE
    return rule if number or RULES[rule].counted is Counted.ALL else NO_RULE


def is_on_device(out: Any) -> bool:
    return any(tensor.is_meta for tensor in tensors_in(out))


def kept_for_later(output: Any) -> Iterator[torch.Tensor]:
    """Keys and values in the cache that transformers' models hand back: as `cache` since 5.24."""
    # Asked whether it has the old name, 5.24 warns.
    names = set(output) if isinstance(output, Mapping) else set()
    cache = next((output[name] for name in ("cache", "past_key_values") if name in names), None)
    for layer in getattr(cache, "layers", ()):
        yield from tensors_among((getattr(layer, "keys", None), getattr(layer, "values", None)))
