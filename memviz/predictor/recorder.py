"""Records the allocations of each operator in the ledger, with phase, module, stack and category; moves models."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import Parameter
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from memviz.allocator.blocks import DeviceMemory
from memviz.allocator.settings import Settings
from memviz.predictor.assumptions import OF_SPARSE, Assumptions, name_of_operator, not_predicted
from memviz.predictor.cards import KnownCard
from memviz.predictor.compat import LT_KEPT_SINCE, without_dispatch, without_functions, without_modes
from memviz.predictor.cuda.machine import on_card
from memviz.predictor.host import Host, HostMemory, PinnedHost
from memviz.predictor.known_values import ByStorage, IndexTensors
from memviz.predictor.ledger import AllocationColumns, Ledger, LiveAllocation, Place
from memviz.predictor.position import ACCUMULATE, NO_TASK, NoStacks, ProgramPosition, StackTable
from memviz.predictor.rules import (
    COLLECTIVES,
    COPIES,
    CUBLAS_NUMBER,
    MASK_FIRST,
    NCCL_NUMBER,
    NO_RULE,
    RULES,
    Counted,
    Instead,
    OperatorTotals,
    Standing,
    Treatment,
    rule_of,
)
from memviz.predictor.shapes import PLAIN_TENSORS, SPARSE, ShapeKey, any_on_device, parts_of, tensors_among, tensors_of
from memviz.predictor.workspaces import OperatorCall, WorkspaceSizes, uses_lt, workspace_sizes
from memviz.trace.intern import Interner
from memviz.trace.model import NO_STACK, Category, Phase

BlasHandle = tuple[bool, int, int]
"""True in backward, the card, and the stream. Each thread has handles of its own, and so has backward on a card."""


class BlasWorkspaces:
    def __init__(self, recorder: AllocationRecorder) -> None:
        self._recorder = recorder
        self._kept: dict[tuple[BlasHandle, bool], LiveAllocation] = {}
        """Live workspaces by handle and library; True is cublasLt."""
        self._chosen: dict[str, Any] = {}
        """Sizes set by the program, since torch 2.13; they override the environment."""

    @property
    def sizes(self) -> WorkspaceSizes:
        return replace(self._from_environment, **self._chosen) if self._chosen else self._from_environment

    @cached_property
    def _from_environment(self) -> WorkspaceSizes:
        # torch reads the environment at the first product, and never again.
        return workspace_sizes(self._recorder.card, self._recorder.release, os.environ)

    def need(self, handle: BlasHandle, treatment: Treatment, *, is_lt: bool = False) -> None:
        """Allocate the handle's workspace, unless it has one that is large enough."""
        size = self.sizes.lt if is_lt else self.sizes.cublas
        workspace = self._kept.get((handle, is_lt))
        if not size or (workspace is not None and workspace.requested >= size):
            return
        with self._recorder.by_rule(treatment.rule if is_lt else CUBLAS_NUMBER):
            self._kept[handle, is_lt] = self._recorder.allocate(Category.WORKSPACE, size, treatment.name)
        if workspace is not None:
            self._recorder.ledger.free(workspace)

    @property
    def live(self) -> Collection[LiveAllocation]:
        return self._kept.values()

    def clear(self) -> None:
        while self._kept:
            self._recorder.ledger.free(self._kept.popitem()[1])

    def set_size(self, which: str, size: int) -> None:
        if size < 0:
            raise RuntimeError(f"The size of a workspace must be at least 0, not {size}.")
        self._chosen[which] = size

    def reset_size(self, which: str) -> None:
        self._chosen.pop(which, None)


class AllocationRecorder:
    def __init__(
        self,
        card: KnownCard,
        settings: Settings,
        interner: Interner,
        assumptions: Assumptions,
        memory: Sequence[DeviceMemory],
        *,
        release: tuple[int, int],
        figures_only: bool,
    ) -> None:
        self.card = card
        self.release = release
        self.stacks: StackTable | NoStacks = NoStacks() if figures_only else StackTable(interner)
        self.position = ProgramPosition(interner)
        self.columns = AllocationColumns()
        self.categories = self.columns.category
        stacks, module_stack_and_node = self.stacks, self.position.module_stack_and_node
        stack_of_free = stacks.here if figures_only else lambda: stacks.here("", module_stack_and_node()[2])
        self.ledger = Ledger(settings, stack_of_free, memory, interner)
        self.without_memory: ByStorage[int] = ByStorage()
        """Cards of storages of zero bytes, where there are several cards."""
        self.launched: Callable[[], None] = lambda: None
        """Called for every operator that the card runs."""
        self.ledger.freed = lambda allocation: self.categories.freed(allocation.number, self.position.here.calls)
        self.host = Host()
        self.pinned = PinnedHost(dict(settings.others), self.ledger)
        self.host_memory = HostMemory(self.pinned, self.ledger)
        self.choices = IndexTensors()
        self.assumptions = assumptions
        self.totals = OperatorTotals()
        self.operators: set[str] = set()
        self.dtypes: set[torch.dtype] = set()
        self._watched: Any = WeakIdKeyDictionary()
        """Hook of each parameter, called when its gradient is done."""
        self.placed: Category | None = None
        """Category of the tensors being moved to the device, during the move."""
        self.workspaces = BlasWorkspaces(self)
        self._stack: int | None = None
        self.missing: dict[int, tuple[int | None, int | None]] = {}
        """Bytes not predicted, by rule: likely bytes and an upper bound, the largest at any one time."""
        self._rule = NO_RULE
        """Rule of the next allocation."""
        self.overrides: Mapping[Any, Instead] = {}
        """Results of operators that do not run here, such as those that send something to other ranks."""
        self.value_reads = 0
        """How often known or assumed values decided something: a number, a condition, a length."""
        self.making_on_meta = False
        """True while the program makes tensors on `meta`."""

    @contextmanager
    def placing(self, category: Category) -> Iterator[None]:
        """Record what is allocated here with this category."""
        before, self.placed = self.placed, category
        try:
            yield
        finally:
            self.placed = before

    def before_op(self, treatment: Treatment, args: Any) -> None:
        """Note where an operator is called and which parameters it uses."""
        position = self.position
        task = position.graph_task()
        if task != position.task and position.note_task(task) or task != NO_TASK and not torch.is_grad_enabled():
            self.categories.mark_saved()
        self._stack = None
        if position.nodes_are_new():
            self._stack = self.stacks.here(treatment.name)
            position.assign_nodes(self._stack)
        self.label_used(argument for argument in args if type(argument) is Parameter)

    def after_op(self, treatment: Treatment, args: Any, kwargs: Any, out: Any, shapes: ShapeKey | None = None) -> bool:
        """Record the memory and the work of an operator; return False if it is one of the host alone.

        `shapes` of its arguments allow to reuse the count of work.
        """
        if not any_on_device((out, args, kwargs)):
            return False
        self.operators.add(treatment.name)
        if treatment.launches and any_on_device(out):
            self.launched()
        self._allocate_results(treatment, args, kwargs, out)
        self._rule = treatment.rule
        if treatment.rule != NO_RULE and RULES[treatment.rule].standing is Standing.MISSING and any_on_device(out):
            figures = RULES[treatment.rule].missing_bytes(self._call(args, kwargs, out))
            if None not in figures:
                previous = self.missing.get(treatment.rule, (0, 0))
                figures = max(previous[0] or 0, figures[0] or 0), max(previous[1] or 0, figures[1] or 0)
            self.missing[treatment.rule] = figures
        if treatment.gives_new or treatment.writes:
            self.totals.add(treatment, args, kwargs, out, shapes)
            if treatment.name in COPIES:
                self.totals.copied(out, args)
        takes_more = treatment.uses_cublas or treatment.temporaries is not None
        if takes_more and self._is_on_card(args[0] if out is None else out):
            self._allocate_by_rule(treatment, args, kwargs, out)
        self._rule = NO_RULE
        return True

    def _allocate_results(self, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        if treatment.gives_new:
            there = [arg for arg in tensors_of(args) if arg.is_meta]
            storages = {arg.untyped_storage()._cdata for arg in there if arg.layout is torch.strided}
            counted = None if treatment.rule == NO_RULE else RULES[treatment.rule].counted
            results = list(enumerate((out,) if type(out) is torch.Tensor else tensors_of(out)))
            for number, tensor in reversed(results) if treatment.name in MASK_FIRST else results:
                if tensor.is_meta:
                    follows = counted is Counted.ALL or (number and counted not in (None, Counted.TEMPORARIES))
                    self._rule = treatment.rule if follows else NO_RULE
                    self._allocate_result(tensor, treatment, there, storages, kwargs)
        elif treatment.resizes:
            for tensor in tensors_of(out):
                if tensor.is_meta:
                    self.resized(tensor.untyped_storage(), treatment.name)

    def _allocate_by_rule(self, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        sizes = () if treatment.temporaries is None else treatment.temporaries(self._call(args, kwargs, out))
        lt = self.workspaces.sizes.lt if treatment.name == "addmm" and uses_lt(args, kwargs) else 0
        keeps_lt = self.release >= LT_KEPT_SINCE
        self._allocate_temporaries(sizes if keeps_lt else (*sizes, lt), treatment)
        if lt and keeps_lt:
            self.workspaces.need(self._handle, treatment, is_lt=True)

    def copied_to_host(self, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        with self.by_rule(treatment.rule):
            self._allocate_by_rule(treatment, args, kwargs, out)

    def _call(self, args: Any, kwargs: Any, out: Any) -> OperatorCall:
        return OperatorCall(args, kwargs, out, self.card, self.release)

    def card_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the card that a tensor is on; None if on none, or if torch hides its memory."""
        while _is_wrapper(tensor):
            wrapper: Any = tensor
            tensor = getattr(wrapper, wrapper.__tensor_flatten__()[0][0])
        if not on_card(tensor) or is_functorch_wrapped_tensor(tensor):
            return None
        if tensor.layout in SPARSE:
            return self.card_of(parts_of(tensor)[-1])
        allocation = self.ledger.allocation_of(tensor.untyped_storage())
        return self.without_memory.of(tensor) if allocation is None else allocation.card

    def resized(self, storage: torch.UntypedStorage, operator: str) -> None:
        allocation = self.ledger.allocation_of(storage)
        if allocation is None or allocation.requested != storage.nbytes():
            stack = self._label_next(operator, Category.UNKNOWN)
            self.ledger.replace(storage, stack)

    def model_returned(self, output: Any) -> None:
        """Label the output of an outermost module; an input that it hands through stays an input."""
        for tensor in tensors_among(output):
            number = self._number_of(tensor)
            if number is not None and self.categories.values[number] == Category.UNKNOWN:
                self.categories.values[number] = Category.OUTPUT
        self.label(list(cache_tensors(output)), Category.KV_CACHE)

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self.label(list(optimizer.state.values()), Category.OPTIMIZER_STATE)
        for group in optimizer.param_groups:
            shards = [weight for weight in group["params"] if hasattr(weight, "_local_tensor")]
            self.label(shards, Category.PARAMETER)
            self.label([weight.grad for weight in shards], Category.GRADIENT)

    def label(self, value: Any, category: Category) -> None:
        """Set the category of the tensors in a value, however nested, after their allocation."""
        for tensor in tensors_among(value):
            if tensor.layout in SPARSE:
                self.label(parts_of(tensor), category)
                continue
            # Of a sharded tensor, the shard of this rank.
            number = self._number_of(getattr(tensor, "_local_tensor", tensor))
            if number is not None:
                self.categories.values[number] = category

    def _number_of(self, tensor: torch.Tensor) -> int | None:
        if not on_card(tensor) or is_functorch_wrapped_tensor(tensor):
            return None
        allocation = self.ledger.allocation_of(tensor.untyped_storage())
        return None if allocation is None else allocation.number

    def label_used(self, parameters: Iterable[Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self._watched:
                self.watch(parameter)
            number = self._number_of(parameter)
            if number is not None:
                self.categories.values[number] = Category.PARAMETER

    def watch(self, parameter: Parameter) -> None:
        """Label the gradient of a parameter when it is done."""

        def label_gradient(parameter: torch.Tensor) -> None:
            if parameter.grad is not None and not self.ledger.closed:
                self.label(parameter.grad, Category.GRADIENT)

        if self._watched.get(parameter) is None:
            leaf: Any = parameter
            hooks = parameter.requires_grad
            self._watched[parameter] = leaf.register_post_accumulate_grad_hook(label_gradient) if hooks else None

    def label_parameters(self) -> None:
        # Weights may have got other memory, such as one of another type.
        self.label_used(list(self._watched))

    def close(self) -> None:
        self.ledger.closed = True
        for hook in self._watched.values():
            if hook is not None:
                hook.remove()

    def _allocate_result(
        self, tensor: torch.Tensor, treatment: Treatment, there: list[torch.Tensor], storages: set[int], kwargs: Any
    ) -> None:
        """Allocate one result; `there` are the operator's arguments on the device, `storages` theirs."""
        if tensor.layout is not torch.strided:
            raise not_predicted(name_of_operator(treatment.name), OF_SPARSE)
        storage = tensor.untyped_storage()
        ledger = self.ledger
        if ledger.allocation_of(storage) is not None:
            return
        if storage.nbytes() == 0:
            if len(ledger.cards) > 1 and tensor not in self.without_memory:
                self.without_memory.put(tensor, ledger.card)
            return
        if storage._cdata in storages:
            # A view under another name, of memory that is not on this device.
            return
        nowhere = self.host.on_meta
        of_meta = len(nowhere) and there and kwargs.get("device") is None and all(arg in nowhere for arg in there)
        if self.making_on_meta or of_meta:
            # A `meta` tensor for the program too, by its device or by the operator's arguments.
            nowhere.add(tensor)
            return
        # Outside of models inputs come from the host so; weights are labelled by `placed`.
        comes_in = treatment.name == "_to_copy" and not there and not self.position.modules
        self.dtypes.add(tensor.dtype)
        ledger.take(storage, self._label_next(treatment.name, Category.INPUT if comes_in else Category.UNKNOWN))

    def _is_on_card(self, out: Any) -> bool:
        nowhere = self.host.on_meta
        return any_on_device(out) and not (len(nowhere) and any(tensor in nowhere for tensor in tensors_of(out)))

    @property
    def _handle(self) -> BlasHandle:
        return self.position.task != NO_TASK, self.ledger.card, self.ledger.place()[0]

    def _allocate_temporaries(self, sizes: Any, treatment: Treatment) -> None:
        """Allocate temporaries while the operator runs, and its workspace after them."""
        allocations: list[LiveAllocation] = []
        try:
            for size in sizes:
                if isinstance(size, tuple):
                    self._allocate_temporaries(size, treatment)
                elif size > 0:
                    allocations.append(self.allocate(Category.TEMPORARY, size, treatment.name))
                elif size < 0:
                    self.ledger.free(allocations.pop(size))
            if treatment.uses_cublas:
                self.workspaces.need(self._handle, treatment)
        finally:
            for allocation in reversed(allocations):
                self.ledger.free(allocation)

    def allocate(self, category: Category, size: int, operator: str, place: Place | None = None) -> LiveAllocation:
        """Allocate memory that belongs to no tensor."""
        return self.ledger.malloc(size, self._label_next(operator, category), place)

    def allocate_temporary(self, size: int, operator: str) -> None:
        with self.by_rule(rule_of(operator)):
            self.ledger.free(self.allocate(Category.TEMPORARY, size, operator))

    @contextmanager
    def by_rule(self, rule: int) -> Iterator[None]:
        before, self._rule = self._rule, rule
        try:
            yield
        finally:
            self._rule = before

    def note_nccl(self) -> None:
        """Note that a collective ran on the card, where NCCL has memory of its own."""
        self.operators.add(COLLECTIVES)
        self.missing[NCCL_NUMBER] = (None, None)

    def _label_next(self, operator: str, category: Category) -> int:
        position, columns = self.position, self.columns
        module, forward_stack, node = position.module_stack_and_node()
        phase = position.phase if self.placed is None else Phase.UNKNOWN
        recomputing = position.is_recomputing
        may_be_saved = (phase == Phase.FORWARD or (phase == Phase.UNKNOWN and not position.phases)) or recomputing
        if category is Category.UNKNOWN and node == ACCUMULATE:
            category = Category.GRADIENT
        placed = None if category is Category.TEMPORARY else self.placed
        calls = position.here.calls
        self.categories.allocated(
            placed or category, may_be_saved=may_be_saved and self.placed is None, call=calls[-1] if calls else 0
        )
        columns.module.append(module)
        columns.phase.append(phase)
        columns.rule.append(self._rule)
        columns.forward_stack.append(NO_STACK if recomputing else forward_stack)
        if self._stack is None or node:
            self._stack = self.stacks.here(operator, node)
        return self._stack


def cache_tensors(output: Any) -> Iterator[torch.Tensor]:
    """Yield keys and values of the KV cache that transformers' models return: named `cache` since 5.24."""
    # A test for the old name makes 5.24 warn.
    names = set(output) if isinstance(output, Mapping) else set()
    cache = next((output[name] for name in ("cache", "past_key_values") if name in names), None)
    for layer in getattr(cache, "layers", ()):
        yield from tensors_among((getattr(layer, "keys", None), getattr(layer, "values", None)))


NOTHING_TO_COPY = (
    "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of "
    "torch.nn.Module.to() when moving module from meta to a different device."
)


@dataclass(frozen=True, slots=True)
class MoveTo:
    """Target device, dtype and memory format of tensors. One copy applies all; host tensors convert on copy."""

    device: torch.device
    dtype: torch.dtype | None = None
    """Applied to floating-point and complex tensors only."""
    layout: torch.memory_format | None = None
    """Applied to tensors of images and volumes only."""
    waits: bool = True
    """If False, dtypes change on the card."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        changes: dict[str, Any] = {"device": self.device, "non_blocking": not self.waits}
        if self.dtype is not None and (tensor.is_floating_point() or tensor.is_complex()):
            changes["dtype"] = self.dtype
        if self.layout is not None and tensor.dim() in (4, 5):
            changes["memory_format"] = self.layout
        copied: torch.Tensor = torch.ops.aten._to_copy.default(tensor.detach(), **changes)
        return copied


def move_model(
    recorder: AllocationRecorder,
    model: nn.Module,
    wanted: MoveTo,
    on_host: Collection[Parameter] = (),
    *,
    convert: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> nn.Module:
    """Move a model; tensors that are on the device already stay, so tied weights stay tied.

    Weights of `on_host` are in host memory afterwards, without values. `convert` is torch's own conversion of one
    tensor, for classes that move theirs themselves.
    """
    with without_functions():
        recorder.position.name_modules(model)
        move = ModelMove(recorder, model, wanted, frozenset(map(id, on_host)), convert or wanted.copy)
    return model._apply(move)  # type: ignore[no-untyped-call, no-any-return]


class ModelMove:
    """Function that `Module._apply` gets: modules that override it, as recurrent layers do, are moved by it too."""

    def __init__(
        self,
        recorder: AllocationRecorder,
        model: nn.Module,
        wanted: MoveTo,
        on_host: Set[int],
        convert: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._recorder = recorder
        self._wanted = wanted
        self._on_host = on_host
        self._convert = convert
        self._names = {id(module): path for path, module in nn.Module.named_modules(model)}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if _is_allocated(self._recorder, tensor, self._wanted) else self._convert(tensor)

    def apply_to(self, module: nn.Module) -> None:
        recorder = self._recorder
        path = self._names.get(id(module), "")
        with recorder.placing(Category.PARAMETER), recorder.position.inside(module), torch.no_grad():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    placed = module._parameters[name] = self._placed(parameter)
                    if isinstance(placed, UninitializedParameter):
                        # It has no memory, and takes no hooks, before the module is first called.
                        continue
                    recorder.position.own(placed, path)
                    recorder.watch(placed)
            for name, buffer in module._buffers.items():
                if isinstance(buffer, UninitializedBuffer):
                    module._buffers[name] = self._convert(buffer)
                elif buffer is not None and not _is_allocated(recorder, buffer, self._wanted):
                    with without_functions():
                        module._buffers[name] = _copied_parameter(buffer, self._wanted)

    def _placed(self, parameter: Parameter) -> Parameter:
        if _converts_itself(parameter) and id(parameter) not in self._on_host:
            converted = self._convert(parameter)
            if converted is parameter:
                return parameter
            if type(converted) is not type(parameter):
                return Parameter(converted, parameter.requires_grad)
            parameter.data = converted
            return parameter
        with without_functions():
            if id(parameter) not in self._on_host:
                if _is_allocated(self._recorder, parameter, self._wanted):
                    return parameter
                data, gradient = _copied_parameter(parameter, self._wanted), parameter.grad
                if gradient is not None and not _is_allocated(self._recorder, gradient, self._wanted):
                    gradient = _copied_parameter(gradient, self._wanted)
                if parameter.is_meta and not _is_wrapper(parameter):
                    parameter.data = data
                elif not swap_data(parameter, data):
                    parameter = Parameter(data, parameter.requires_grad)
                if gradient is not parameter.grad:
                    parameter.grad = gradient
                return parameter
            if parameter.is_meta:
                # To the program, a model that was built on `meta` is in host memory.
                with without_modes():
                    swap_data(parameter, self._recorder.host.blank_like(parameter))
            return parameter


def _converts_itself(parameter: Parameter) -> bool:
    """Return whether the class overrides `to` or `cuda`, as 4-bit weights do that are packed when moved."""
    kind: Any = type(parameter)
    return (kind.to is not torch.Tensor.to or kind.cuda is not torch.Tensor.cuda) and not _is_wrapper(parameter)


def swap_data(tensor: Any, data: Any) -> bool:
    """Give a tensor the memory of another device; the object stays, since optimizers and programs hold it.

    Return False where C++ holds the tensor too, such as a live graph.
    """
    with without_dispatch() if type(data) is torch.Tensor and type(tensor) in PLAIN_TENSORS else nullcontext():
        new = data.detach().requires_grad_(tensor.requires_grad)
        if isinstance(tensor, Parameter):
            new = Parameter(data.detach(), tensor.requires_grad)
    if _is_wrapper(tensor) and type(new) is not type(tensor):
        return False
    # Hooks stay with the object when its memory is swapped.
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    hooks = {name: getattr(tensor, name) for name in names if getattr(tensor, name, None)}
    gradient = tensor.grad if tensor.is_leaf else None
    if gradient is not None:
        # Nothing else may hold the gradient while it moves with its weight.
        tensor.grad = None
    try:
        torch._C._swap_tensor_impl(tensor, new)
    except RuntimeError:
        if gradient is not None:
            tensor.grad = gradient
        return False
    if _is_wrapper(tensor):
        tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    for name, registered in hooks.items():
        setattr(tensor, name, registered)
    if gradient is not None and gradient.is_meta != tensor.is_meta:
        # torch requires a gradient on its weight's device.
        with torch.no_grad():
            moved = torch.ops.aten._to_copy.default(gradient.detach(), device=tensor.detach().device)
            gradient = gradient if swap_data(gradient, moved) else None
    if gradient is not None:
        tensor.grad = gradient
    return True


def _copied_parameter(tensor: Any, wanted: MoveTo) -> Any:
    if not tensor.is_meta or not _is_wrapper(tensor):
        return wanted.copy(tensor)
    # Its parts are on the device already; a distributed tensor also has its mesh among them.
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}
    parts |= {name: _copied_parameter(part, wanted) for name, part in parts.items() if isinstance(part, torch.Tensor)}
    return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return bool(is_traceable_wrapper_subclass(tensor))


def _is_allocated(recorder: AllocationRecorder, tensor: torch.Tensor, wanted: MoveTo) -> bool:
    with without_functions():
        # To the program it is not on `meta`, but on the card.
        allocation = recorder.ledger.allocation_of(tensor.untyped_storage()) if tensor.is_meta else None
        return allocation is not None and allocation.card == (wanted.device.index or 0)
