"""The modes that a program runs in: one for torch functions, one between autograd and the kernels.

`FakeCudaMode` lets programs use "cuda", and `AllocationMode` sees every operator, in order. `follow_cuda` patches
`torch.cuda` to behave like a real card, with a table of the C++ functions below it.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, _utils, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from memviz.predictor.assumptions import (
    OF_SPARSE,
    data_needed,
    name_for_users,
    not_predicted,
    raise_as_cuda,
    refusing,
    shapes_not_registered,
    strided_nested_tensor,
)
from memviz.predictor.autocast import Autocast, Kernel
from memviz.predictor.compat import SLICES_UNTIL, Patches, function_modes, without_functions, without_modes
from memviz.predictor.cuda.machine import (
    IN_ORDER,
    META,
    FakeMachine,
    NamedDevices,
    check_generator,
    follow_generators,
    follow_machine,
    follow_profilers,
    follow_types,
    is_for_a_sampler,
    on_card,
)
from memviz.predictor.cuda.memory import (
    MemoryDevice,
    MemoryFunctions,
    MemoryHistory,
    OutOfMemoryError,
    OutOfMemoryReport,
    follow_memory,
    without_own_frames,
)
from memviz.predictor.cuda.nvml import follow_management
from memviz.predictor.cuda.peers import Peers
from memviz.predictor.cuda.streams import FakeStream, GraphPools, StreamOrder, follow_graphs, follow_streams
from memviz.predictor.decompositions import FLEX_ASSUMED, flex_attention, index_with_every_slice
from memviz.predictor.group.process_group import run_on_shards
from memviz.predictor.hooks import (
    TRITON_NOT_RUN,
    ChildProcesses,
    Mode,
    follow_bitsandbytes,
    follow_deepspeed,
    follow_threads,
    follow_triton,
    follow_workers,
    refuse_compiled_extensions,
)
from memviz.predictor.host import ON_ONE_DEVICE
from memviz.predictor.recorder import NOTHING_TO_COPY, AllocationRecorder, ModelMove, MoveTo, move_model
from memviz.predictor.rules import Operator, Treatment, treatment_of
from memviz.predictor.shapes import ShapeKey, any_on_device, is_on_device, lies_on_device, shape_key, tensors_among
from memviz.predictor.sparse import Sparse, may_be_sparse, new_of_sparse
from memviz.predictor.tensor_answers import (
    Answer,
    TensorAnswers,
    ValueReads,
    answer_lengths,
    follow_pickles,
    has_unknown_numbers,
    stop_at_unknown_numbers,
    with_dtype_of_numbers,
)
from memviz.trace.model import Category

# torch's messages for an operator without a meta kernel.
_NO_SHAPES = re.compile("no fake impl|no meta function|Meta kernel")
_PLAIN = torch.Tensor.__torch_dispatch__


class AllocationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator on tensors without data and records the memory it would take.

    Threads take turns, and an operator that finds no memory leaves nothing behind.
    """

    def __init__(
        self, recorder: AllocationRecorder, kernels: Mapping[str, Kernel], autocast: Autocast, peers: Peers | None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self._peers = peers
        self.autocast = autocast
        self._kernels = kernels
        self._treatments: dict[Operator, Treatment] = {}
        self.looks = ValueReads(recorder, self)
        self._sparse = Sparse(recorder)

    # To refuse them with a reason.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's own answer costs as much as an operator, and nothing here is compiled.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            if func.__name__ == "triton_kernel_wrapper_mutation":
                # A kernel of the program, in a graph that runs uncompiled.
                self.recorder.assumptions.say(TRITON_NOT_RUN)
                for tensor in tensors_among(kwargs["kwargs"]):
                    self.recorder.host.forget_values(tensor)
                return None
            if func.__name__ == "graphsafe_run_with_rng_state":
                # Random numbers that a compiled checkpoint draws again.
                with self:
                    return args[0](*args[1:], **{name: kwargs[name] for name in kwargs if name != "rng_state"})
            raise not_predicted(func.__name__, "it takes functions as arguments, and no rule gives their memory")
        try:
            with self.recorder.ledger.lock:
                if types and any(kind.__torch_dispatch__ is not _PLAIN for kind in types):
                    # A wrapper subclass dispatches to its own parts.
                    return run_on_shards(self, func, args, kwargs or {})
                # Function modes see no device below an operator, and would take longer than it.
                with without_functions():
                    out = self._run_operator(func, args, kwargs or {})
                    if type(out) is not Tensor or not out.is_meta:
                        self.recorder.host_memory.see(out)
                    return out
        except OutOfMemoryError as error:
            args = kwargs = None
            raise without_own_frames(error) from None

    def _run_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._peers is not None:
            with self:
                out = self._peers.by_card(func, args, kwargs)
            if out is not NotImplemented:
                return out
            self._peers.turn_to_card(func, args, kwargs)
        treatment = self._treatments.get(func)
        if treatment is None:
            treatment = treatment_of(func, self._kernels, self.autocast.release)
            instead = self.recorder.overrides.get(func, treatment.instead)
            treatment = replace(treatment, sparse=self._sparse.runs.get(func), instead=instead)
            self._treatments[func] = treatment
        self.recorder.before_op(treatment, args)
        out = self._override(func, treatment, args, kwargs)
        if out is not NotImplemented:
            return out
        if self.autocast.casts_now and torch.is_inference_mode_enabled():
            # Without autograd the operator's arguments were not cast before.
            with self:
                args, kwargs = self.autocast.cast(func.name().removeprefix("aten::"), args, kwargs)
        if treatment.body is not None:
            out = self._run_body(func, treatment, args, kwargs)
            if out is not NotImplemented:
                return out
        if treatment.parts_in is not None and self._takes_apart(func, args):
            with self, self.autocast.running(func.name().removeprefix("aten::")):
                return treatment.parts_in(*args, **kwargs)
        shapes = None if treatment.is_view or treatment.resizes else shape_key(args, kwargs)
        out = self._result(func, treatment, args, kwargs, shapes)
        if self.recorder.after_op(treatment, args, kwargs, out, shapes) or len(self.recorder.host.unknown):
            self._follow(func, treatment, args, kwargs, out)
        return out

    def _follow(self, func: Any, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        """Follow what is known of values through an operator that ran."""
        if self._peers is not None:
            self._peers.copied(treatment, args, kwargs, out)
        if not treatment.is_view:
            writes, may_say = treatment.writes, treatment.may_say
            self.recorder.host.follow(func, args, kwargs, out, writes=writes, may_say=may_say)
            if treatment.may_choose:
                self.recorder.choices.follow(func, args, out)

    def _takes_apart(self, func: Any, args: Any) -> bool:
        """Return False where a kernel of the predictor meets the host's data, which torch's own kernel computes."""
        if func is torch.ops.aten.where.self:
            return args[0].dtype is torch.uint8
        is_ours = func.name().removeprefix("aten::") in self._kernels
        return not is_ours or any_on_device(args)

    def _run_body(self, func: Any, treatment: Treatment, args: Any, kwargs: Any) -> Any:
        """Run a library's operator as it is written, or return NotImplemented where that needs more than torch."""
        try:
            with self, torch._C._EnableTorchFunction():
                return treatment.body(*args, **kwargs)  # type: ignore[misc]
        except OutOfMemoryError:
            raise
        except Exception:
            # It calls code of its own: its registered shapes have to do.
            self._treatments[func] = replace(treatment, body=None)
            return NotImplemented

    def _override(self, func: Any, treatment: Treatment, args: Any, kwargs: Any) -> Any:
        """Return the result of an operator that is answered without running on the device, or NotImplemented."""
        if treatment.sparse is not None and may_be_sparse(func, args):
            with self:
                out = treatment.sparse(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if treatment.instead is not None:
            out = treatment.instead(func, args, kwargs)
            if out is not NotImplemented:
                if not treatment.writes:
                    self.recorder.host.known.written_in_place(func, args, kwargs, out)
                return out
        if treatment.looks is not None:
            out = self.looks.answer(func, treatment, args, kwargs)
            if out is not NotImplemented:
                return out
        out = self.recorder.host.override(func, args, kwargs, moves=treatment.moves)
        if treatment.moves and out is not NotImplemented:
            self.recorder.copied_to_host(treatment, args, kwargs, out)
        if out is not NotImplemented and treatment.may_choose:
            self.recorder.choices.follow(func, args, out)
        return out

    def _result(self, func: Any, treatment: Treatment, args: Any, kwargs: Any, shapes: ShapeKey | None) -> Any:
        if func.overloadpacket in ON_ONE_DEVICE and is_on_device(args[0]):
            self.recorder.host.mixed_devices(func, args, self.recorder.ledger.card)
        rule = treatment.shape
        out = NotImplemented if rule is None or not any_on_device(args) else rule(func, args, kwargs)
        if out is not NotImplemented:
            if not treatment.writes:
                self.recorder.host.known.written_in_place(func, args, kwargs, out)
            return out
        if treatment.results is None or shapes is None:
            return self._run(func, args, kwargs)
        return treatment.results.of(func, args, kwargs, shapes, self._run)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        kwargs = _without_card(kwargs)
        at_once = bool(args) and is_on_device(args[0])
        on_device = at_once or any_on_device((*args, *kwargs.values()))
        if on_device and not at_once:
            out = self.recorder.host.mixed_devices(func, args, self.recorder.ledger.card)
            if out is not NotImplemented:
                return out
        try:
            if on_device and func.namespace != "aten":
                with answer_lengths(func, args, self.recorder.assumptions):
                    return func(*args, **kwargs)
            return func(*args, **kwargs)
        except RuntimeError as error:
            raise_as_cuda(error, func, args, self.recorder.ledger.card)
            if on_device and func.namespace != "aten" and _NO_SHAPES.search(str(error)):
                raise shapes_not_registered(func) from error
            if "NestedTensor" in str(error).partition(". ")[0]:
                raise strided_nested_tensor() from error
            unknown_shape = isinstance(error, NotImplementedError) or "INTERNAL ASSERT" in str(error)
            if not on_device or not (unknown_shape or "meta tensor" in str(error)):
                raise
            if torch.Tag.dynamic_output_shape in func.tags:
                raise data_needed(name_for_users(func)) from error
            if not unknown_shape:
                raise
            if isinstance(kwargs.get("out"), Tensor):
                # Compiled code has made it as large as the result.
                return kwargs["out"]
            reason = str(error).partition(". ")[0].strip()
            why = f"torch {torch.__version__} does not know its shapes without running it ({reason})"
            if "Sparse" in reason:
                why = OF_SPARSE
            raise not_predicted(name_for_users(func), why) from error


def _without_card(kwargs: dict[str, Any]) -> dict[str, Any]:
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    if "device" in kwargs and kwargs["device"] is not None and torch.device(kwargs["device"]).type == "cuda":
        # From torch's own C++, which the function mode does not see.
        kwargs = {**kwargs, "device": META}
    return kwargs


_HOST_WAITS = {
    *(Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__),
    *(Tensor.nonzero, torch.nonzero, torch.equal, Tensor.equal, Tensor.masked_select, torch.masked_select),
    *(Tensor.__format__, Tensor.__repr__, Tensor.numpy),
}
"""Functions that wait for the current stream."""
_COPIES = {Tensor.to, Tensor.cuda, Tensor.copy_, torch.tensor, torch.as_tensor}
"""Between the host and the card they wait for the current stream, as torch's `memcpy_and_sync` does."""
_PLAIN_TYPES = frozenset((Tensor, nn.Parameter, int, float, bool, type(None), tuple, torch.dtype))
"""Types of arguments that name no device and hold no unknown number."""


class FakeCudaMode(TorchFunctionMode):
    """Intercepts torch functions: replaces "cuda" devices by "meta", and reports tensors as on the card."""

    def __init__(
        self,
        devices: NamedDevices,
        tensors: TensorAnswers,
        order: StreamOrder,
        recorder: AllocationRecorder,
        peers: Peers | None,
    ) -> None:
        super().__init__()
        self._named = devices
        self._tensors = tensors
        self._order = order
        self._ledger = recorder.ledger
        self._recorder = recorder
        waiting = [card.allocator.pending.blocks for card in recorder.ledger.cards]
        self._waiting = waiting[0] if len(waiting) == 1 else ChainMap(*waiting)
        own: dict[Any, Any] = {
            Tensor.cuda: self._to_the_card,
            Tensor.record_stream: self._record_stream,
            Tensor.new: new_of_sparse,
            Tensor.__getitem__: self._index,
            torch._C._nn._parse_to: self._parse_move,
        }
        self._answers = {**tensors.answers, **own, **({} if peers is None else peers.answers)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            is_plain = not kwargs and not self._waiting and _PLAIN_TYPES.issuperset(map(type, args))
            if is_plain and func not in self._answers and func is not Tensor.to:
                return func(*args)
            kwargs = kwargs or {}
            return (self._wait_and_answer if self._waiting else self._answer)(func, args, kwargs)
        except OutOfMemoryError as error:
            args = kwargs = None
            raise without_own_frames(error) from None

    def _wait_and_answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in _HOST_WAITS and args and lies_on_device(args[0]):
            self._host_waits()
        out = self._answer(func, args, kwargs)
        if func in _COPIES and not (kwargs.get("non_blocking") or True in args[2:]):
            source = args[1] if len(args) > 1 and isinstance(out, Tensor) and out is args[0] else args[0]
            if lies_on_device(source) != lies_on_device(out):
                self._host_waits()
        return out

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        answer = self._answers.get(func)
        if answer is not None:
            out = answer(args, kwargs)
            if out is not NotImplemented:
                return out
        if isinstance(func, HigherOrderOperator):
            out = self._call_with_functions(func.__name__, args)
            if out is not NotImplemented:
                return out
        nowhere = self._named.is_meta_device
        # torch's own code may call an operator with the device of a pretended tensor, which is "meta".
        is_operator = isinstance(func, OpOverload)
        if not is_operator and (nowhere(kwargs.get("device")) or any(map(nowhere, args))):
            return self._tensors.run_for_programs_own_meta(func, args, kwargs)
        try:
            out = self._call(func, args, with_dtype_of_numbers(func, args, kwargs))
        except TypeError:
            # torch's message names only a size of the wrong type.
            stop_at_unknown_numbers(args, kwargs)
            raise
        if has_unknown_numbers(args, kwargs):
            # An unknown number would be 1.0 in a tensor.
            self._tensors.lose(args[0] if func is Tensor.__setitem__ else out)
        return out

    def _call_with_functions(self, operator: str, args: Any) -> Any:
        """Run operators that take functions: they are called as eager torch calls them, but for FlexAttention's."""
        if operator == "flex_attention" and args and lies_on_device(args[0]):
            self._recorder.assumptions.state(FLEX_ASSUMED)
            return flex_attention(self._tensors.lose, *args[:4])
        with self:
            if operator == "cond":
                decision, branch, otherwise, operands = args
                return (branch if decision else otherwise)(*operands)
            if operator == "while_loop":
                goes_on, body, state, rest = args
                while goes_on(*state, *rest):
                    state = tuple(body(*state, *rest))
                return state
            if operator == "map_impl":
                function, slices, rest = args
                rows = [function(*row, *rest) for row in zip(*slices, strict=True)]
                return tree_map(lambda *parts: torch.stack(parts), *rows)
            if operator == "foreach_map":
                function, *rest = args
                return function(*rest)
        return NotImplemented

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        is_own, meta = self._named.is_own, self._named.meta
        if any(map(is_own, args)):
            args = tuple(meta(arg) if is_own(arg) else arg for arg in args)
        elif func is Tensor.to and len(args) > 1 and is_own(args[1], numbers=True):
            args = (args[0], meta(args[1]), *args[2:])
        if not kwargs:
            return func(*args)
        if is_own(kwargs.get("device"), numbers=True):
            kwargs = {**kwargs, "device": meta(kwargs["device"])}
        if kwargs.get("generator") is not None:
            out = func(*args, **{**kwargs, "pin_memory": False} if "pin_memory" in kwargs else kwargs)
            if isinstance(out, Tensor):
                check_generator(kwargs["generator"], out.is_meta)
                if func is torch.randperm and out.is_meta and is_for_a_sampler():
                    with without_functions(), without_modes():
                        self._recorder.host.known.put(out, torch.arange(out.numel()))
                    self._recorder.assumptions.state(IN_ORDER)
            return self._tensors.mark_pinned(out) if kwargs.get("pin_memory") else out
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        return self._tensors.mark_pinned(func(*args, **{**kwargs, "pin_memory": False}))

    def _parse_move(self, args: Any, kwargs: Any) -> Any:
        """Weight subclasses read the target device from it, and pack themselves when moved to a card."""

        def named(value: Any) -> Any:
            # A build of torch for the host knows no card by its number.
            return self._named.device(self._named.card(value)) if type(value) is int else value

        return torch._C._nn._parse_to(*map(named, args), **{name: named(value) for name, value in kwargs.items()})

    def _to_the_card(self, args: Any, kwargs: Any) -> Any:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        self._named.check(device)
        layout = kwargs.get("memory_format", torch.preserve_format)
        return args[0].to(self._named.meta(device), memory_format=layout)

    def _index(self, args: Any, kwargs: Any) -> Any:
        index = self._tensors.with_known_bounds(args[1])
        if index is not args[1]:
            return args[0][index]
        return index_with_every_slice(args, kwargs) if self._recorder.release <= SLICES_UNTIL else NotImplemented

    def _record_stream(self, args: Any, kwargs: Any) -> None:
        stream = kwargs.get("s", args[1] if len(args) > 1 else None)
        if args[0].is_meta:
            self._ledger.used_by(args[0].untyped_storage(), stream.lane.handle)

    def _host_waits(self) -> None:
        """Complete the frees that wait for the current stream."""
        self._order.host_waits_for(self._order.current)


def follow_cuda(
    patches: Patches,
    device: MemoryDevice,
    devices: NamedDevices,
    *,
    report: OutOfMemoryReport,
    history: MemoryHistory,
    operators: Mode,
    children: ChildProcesses | None,
    peers: Peers | None,
) -> StreamOrder:
    """Pretend CUDA within the patches' block; `operators` is entered by each new thread too."""
    recorder = device.recorder
    ledger, assumptions = recorder.ledger, recorder.assumptions
    order = StreamOrder(ledger, recorder.position, assumptions, devices)
    tensors = TensorAnswers(recorder, devices)
    entered = FakeCudaMode(devices, tensors, order, recorder, peers)
    mode: Mode = lambda: entered  # noqa: E731
    follow_pickles(patches, recorder)
    patches.replace(Tensor, "__reduce_ex__", tensors.write_out(Tensor.__reduce_ex__))
    _follow_moves(patches, recorder, devices)
    machine, memory = FakeMachine(recorder.card, devices), MemoryFunctions(device, devices, report)
    follow_machine(patches, machine, memory.get_info)
    follow_management(patches, machine, memory.get_info, children)
    follow_memory(patches, device, history)
    make_generators = follow_generators(patches, devices)
    stream = follow_streams(patches, order, devices, assumptions)
    pools = GraphPools(ledger, order, recorder.host.known)
    follow_graphs(patches, pools, assumptions)

    def first_used() -> None:
        machine.begin()
        make_generators()

    functions = pretended_functions(machine, memory, history, pools, stream)
    follow_functions(patches, functions | {"_cuda_init": first_used})
    follow_types(patches, devices)
    follow_data_parallel(patches, devices)
    if peers is not None:
        peers.follow(patches)
    follow_profilers(patches)
    follow_triton(patches, tensors.lose, assumptions)
    follow_bitsandbytes(patches, assumptions)
    follow_deepspeed(patches, tensors.lose, assumptions)
    refuse_compiled_extensions(patches)
    follow_threads(patches, operators, mode)
    follow_workers(patches, recorder)
    # Between the host and a card a tensor may take over another's memory; torch would not have it with "meta".
    compatible, plain = torch._has_compatible_shallow_copy_type, {Tensor, nn.Parameter}
    takes_over = lambda one, other: {type(one), type(other)} <= plain or compatible(one, other)  # noqa: E731
    patches.replace(torch, "_has_compatible_shallow_copy_type", takes_over)
    _follow_wrapper_subclasses(patches, devices)
    _follow_addresses(patches, recorder)
    _follow_dlpack(patches, tensors.answers[Tensor.__dlpack__])
    for owner in (torch.autograd, torch.autograd.graph):
        # Hooks and checkpoints run in the engine, which torch runs without modes.
        run = vars(owner).get("_engine_run_backward")
        if run is not None:
            patches.replace(owner, "_engine_run_backward", _run_in_mode(mode, run))
    _enter_in_hooks(patches, mode)
    ledger.place, recorder.launched = order.place, order.launched
    ledger.first_used = torch.cuda._lazy_init
    patches.callback(setattr, ledger, "first_used", None)
    patches.enter_context(entered)
    return order


def _check_memory(recorder: AllocationRecorder, model: nn.Module) -> None:
    nowhere = recorder.host.on_meta
    if len(nowhere) and any(tensor in nowhere for tensor in (*nn.Module.parameters(model), *nn.Module.buffers(model))):
        raise NotImplementedError(NOTHING_TO_COPY)


def _follow_addresses(patches: Patches, recorder: AllocationRecorder) -> None:
    """Return allocator addresses from `UntypedStorage.data_ptr`, by which programs find weights that share memory."""
    address: Any = torch.UntypedStorage.data_ptr

    def data_ptr(self: torch.UntypedStorage) -> int:
        allocation = recorder.ledger.allocation_of(self)
        return int(address(self)) if allocation is None else allocation.block.address

    patches.put(torch.UntypedStorage, "data_ptr", data_ptr)


def _follow_dlpack(patches: Patches, answer: Answer) -> None:
    """Let `to_dlpack` refuse tensors without values as `Tensor.__dlpack__` does, instead of sharing zeros."""
    give: Any = vars(torch)["to_dlpack"]

    def to_dlpack(tensor: Tensor) -> Any:
        with without_functions():
            result = answer((tensor,), {})
        return give(tensor) if result is NotImplemented else result

    for owner in (torch, torch.utils.dlpack):
        patches.replace(owner, "to_dlpack", to_dlpack)


def _follow_wrapper_subclasses(patches: Patches, devices: NamedDevices) -> None:
    """Put wrapper subclasses such as quantized tensors on the pretended card."""
    make: Any = Tensor._make_wrapper_subclass

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if devices.is_own(kwargs.get("device")):
            kwargs["device"] = META
        placed = (META if isinstance(arg, torch.device) and devices.is_own(arg) else arg for arg in args)
        return make(cls, *placed, **kwargs)

    patches.put(Tensor, "_make_wrapper_subclass", staticmethod(made))


def _enter_in_hooks(patches: Patches, mode: Mode) -> None:
    """Enter the mode in saved-tensor hooks: torch calls them in an operator, where no mode is on, and in backward."""
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    begin = hooks.__init__

    def begun(self: Any, pack: Any, unpack: Any) -> None:
        begin(self, _run_in_mode(mode, pack), _run_in_mode(mode, unpack))

    patches.replace(hooks, "__init__", begun)


def _run_in_mode(mode: Mode, run: Any) -> Any:
    @wraps(run)
    def run_within(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(entered, FakeCudaMode) for entered in function_modes()):
            return run(*args, **kwargs)
        with mode():
            return run(*args, **kwargs)

    return run_within


def _follow_moves(patches: Patches, recorder: AllocationRecorder, devices: NamedDevices) -> None:
    """Move modules so that tied weights stay tied and optimizers keep their weights."""
    to = nn.Module.to
    apply: Any = nn.Module._apply

    def applied(self: nn.Module, fn: Any, recurse: bool = True) -> Any:
        if not isinstance(fn, ModelMove):
            with recorder.placing(Category.PARAMETER):
                return apply(self, fn, recurse)
        if recurse:
            for child in self.children():
                child._apply(fn)  # type: ignore[no-untyped-call]
        fn.apply_to(self)
        return self

    def moved(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        like = kwargs.get("tensor", args[0] if args else None)
        if isinstance(like, Tensor) and on_card(like):
            args, kwargs = (like.device, like.dtype), {name: kwargs[name] for name in kwargs if name != "tensor"}
        if not any(devices.is_own(value, numbers=True) for value in (*args[:1], kwargs.get("device"))):
            return to(self, *args, **kwargs)
        _check_memory(recorder, self)
        dtypes = [arg for arg in args if isinstance(arg, torch.dtype)]
        dtype, layout = kwargs.get("dtype", dtypes[0] if dtypes else None), kwargs.get("memory_format")
        wanted = args[0] if devices.is_own(args[0] if args else None, numbers=True) else kwargs["device"]
        waits = not kwargs.get("non_blocking", any(arg is True for arg in args))

        def convert(tensor: Tensor) -> Tensor:
            kept = tensor.is_floating_point() or tensor.is_complex()
            options = {} if layout is None or tensor.dim() not in (4, 5) else {"memory_format": layout}
            return tensor.to(devices.device(devices.card(wanted)), dtype if kept else None, not waits, **options)

        move_model(recorder, self, MoveTo(devices.meta(wanted), dtype, layout, waits), convert=convert)
        # Tensors that were on the card already change there.
        changes = {name: value for name, value in (("dtype", dtype), ("memory_format", layout)) if value is not None}
        return to(self, **changes) if changes else self

    def to_the_card(self: nn.Module, device_: Any = None, **kwargs: Any) -> nn.Module:
        devices.check(device := kwargs.get("device", device_))
        wanted = devices.meta(device)
        _check_memory(recorder, self)
        return move_model(recorder, self, MoveTo(wanted), convert=lambda tensor: tensor.cuda(wanted.index))

    patches.replace(nn.Module, "_apply", applied)
    patches.replace(nn.Module, "to", moved)
    patches.replace(nn.Module, "cuda", to_the_card)


# `torch.cuda` and `torch.accelerator` are Python over some hundred functions of C++ that a build for the host lacks.
# They are supplied here, so every release's own Python runs above them, with its own warnings and deprecated names.

_WITHOUT_EFFECT = (
    *("_cuda_ipc_collect", "_cuda_sleep", "_cuda_lock_mutex", "_cuda_unlock_mutex", "_cuda_releasePool"),
    *("_cuda_set_cudnn_benchmark_limit", "_cuda_cudaCachingAllocator_enable"),
    *("_cuda_resetPeakHostMemoryStats", "_cuda_resetAccumulatedHostMemoryStats"),
    *("_host_emptyCache", "_accelerator_emptyHostCache"),
)
_OWN_ALLOCATOR = ("a custom allocator (CUDAPluggableAllocator)", "its rules are unknown")
_UNSUPPORTED = {
    "_cuda_customAllocator": _OWN_ALLOCATOR,
    "_cuda_changeCurrentAllocator": _OWN_ALLOCATOR,
    "_cuda_getAllocator": _OWN_ALLOCATOR,
    "_cuda_jiterator_compile_and_launch_kernel": (
        "torch.cuda.jiterator",
        "it compiles C++ for the card, which cannot run here",
    ),
}
Checked = Callable[[Callable[[int], Any]], Callable[..., Any]]
_TUNING = "while it tunes kernels it copies their operands, as often as its timing requires"


def pretended_functions(
    machine: FakeMachine, memory: MemoryFunctions, history: MemoryHistory, pools: GraphPools, stream: type[FakeStream]
) -> dict[str, Any]:
    """Return the functions by name; `stream` is the class of `torch.Stream` on the card."""

    def checked(answer: Callable[[int], Any]) -> Callable[..., Any]:
        """For functions that are given the number of a device."""
        return lambda device=None: answer(machine.named.card(device))

    table = {
        **_machine_table(machine),
        **_memory_table(memory, history, checked),
        **_stream_table(pools, stream, checked),
    }
    return {
        **dict.fromkeys(_WITHOUT_EFFECT, lambda *args: None),
        **{name: refusing(*reason) for name, reason in _UNSUPPORTED.items()},
        **{name: answer for names, answer in table.items() for name in names.split()},
    }


def _machine_table(machine: FakeMachine) -> dict[str, Any]:
    def enable_tuning(is_on: bool) -> None:
        if is_on:
            raise not_predicted("torch.cuda.tunable", _TUNING)

    return {
        "_has_cuda _has_cudnn": True,
        "_cuda_isInBadFork": machine.is_in_fork,
        "_cuda_getDeviceCount _accelerator_deviceCount _accelerator_hooks_device_count": machine.count,
        "_cuda_getDevice _accelerator_getDeviceIndex _accelerator_hooks_get_current_device": machine.current,
        "_cuda_setDevice _accelerator_setDeviceIndex _accelerator_hooks_set_current_device": machine.named.choose,
        "_cuda_exchangeDevice _accelerator_exchangeDevice _accelerator_hooks_exchange_device": machine.exchange,
        "_cuda_maybeExchangeDevice _accelerator_maybeExchangeDevice": machine.exchange,
        "_accelerator_hooks_maybe_exchange_device": machine.exchange,
        "_get_accelerator _accelerator_getAccelerator": lambda *check_available: torch.device("cuda"),
        "_accelerator_getDeviceCapability": machine.capability,
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer and machine.has_peers,
        "_cuda_hasPrimaryContext": lambda device: True,
        "_cuda_getArchFlags": lambda: machine.architectures,
        "_cuda_getCompiledVersion": lambda: int(machine.version.replace(".", "0")) * 10,
        "_cuda_get_sync_debug_mode": lambda: machine.sync_debug_mode,
        "_cuda_set_sync_debug_mode": partial(setattr, machine, "sync_debug_mode"),
        "_cuda_getCurrentBlasHandle _cuda_getCurrentSolverHandle": lambda: 0x1,
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
        "_cuda_tunableop_enable": enable_tuning,
        "_cuda_tunableop_is_enabled": lambda: False,
    }


def _memory_table(memory: MemoryFunctions, history: MemoryHistory, checked: Checked) -> dict[str, Any]:
    device, workspaces = memory.device, memory.workspaces
    cards = device.recorder.ledger.cards
    return {
        "_cuda_memoryStats _accelerator_getDeviceStats": checked(memory.stats),
        "_cuda_hostMemoryStats": memory.host_stats,
        "_cuda_resetPeakMemoryStats _accelerator_resetPeakStats": checked(device.reset_peak),
        "_cuda_resetAccumulatedMemoryStats _accelerator_resetAccumulatedStats": checked(
            lambda card: cards[card].allocator.statistics.reset_accumulated()
        ),
        "_cuda_emptyCache _accelerator_emptyCache": device.empty_cache,
        "_cuda_setMemoryFraction": memory.set_fraction,
        "_cuda_getMemoryFraction": checked(lambda card: cards[card].allocator.settings.per_process_memory_fraction),
        "_cuda_cudaCachingAllocator_raw_alloc": memory.raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": memory.raw_delete,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_set_allocator_settings": device.set_allocator_settings,
        "_accelerator_setAllocatorSettings": device.set_allocator_settings,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_setMemoryMetadata": partial(setattr, memory, "metadata"),
        "_cuda_getMemoryMetadata": lambda: memory.metadata,
        "_cuda_attach_out_of_memory_observer": memory.report.observers.append,
        "_accelerator_getMemoryInfo": checked(memory.get_info),
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_cuda_getCublasWorkspaceSize": lambda: workspaces.sizes.cublas,
        "_cuda_setCublasWorkspaceSize": lambda size: workspaces.set_size("cublas", size),
        "_cuda_resetCublasWorkspaceSize": lambda: workspaces.reset_size("cublas"),
        "_cuda_getCublasLtWorkspaceSize": lambda: workspaces.sizes.reported_lt,
        "_cuda_setCublasLtWorkspaceSize": lambda size: workspaces.set_size("lt_told", size),
        "_cuda_resetCublasLtWorkspaceSize": lambda: workspaces.reset_size("lt_told"),
        "_cuda_clearCublasWorkspaces": workspaces.clear,
        # The recorded history
        "_cuda_record_memory_history": history.record,
        "_cuda_record_memory_history_legacy": history.record_legacy,
        "_cuda_memorySnapshot": history.snapshot,
        "_cuda_isHistoryEnabled": lambda: history.is_on,
    }


def _stream_table(pools: GraphPools, stream: type[FakeStream], checked: Checked) -> dict[str, Any]:
    order = pools.order
    return {
        "_cuda_getCurrentStream": checked(lambda card: stream.of(order.current_on(card)).key),
        "_cuda_getDefaultStream": checked(lambda card: stream.of(order.defaults[card]).key),
        "_cuda_getCurrentRawStream": checked(lambda card: order.current_on(card).handle),
        "_cuda_getStreamFromExternal": lambda pointer, device: stream.of(order.external(pointer, device)).key,
        "_cuda_setStream": lambda stream_id, device_index, device_type: order.set_current(
            order.numbered(stream_id, device_index)
        ),
        "_cuda_synchronize": checked(order.host_waits_for_all),
        "_cuda_isCurrentStreamCapturing": lambda: order.current.capture is not None,
        "_accelerator_getStream": checked(lambda card: stream.of(order.current_on(card))),
        "_accelerator_setStream": lambda stream: order.set_current(stream.lane),
        "_accelerator_synchronizeDevice": checked(order.host_waits_for_all),
        # Pools of memory
        "_graph_pool_handle": lambda: pools.new(by_user=True),
        "_cuda_beginAllocateToPool _cuda_beginAllocateCurrentThreadToPool": pools.enter,
        "_cuda_beginAllocateCurrentStreamToPool": pools.enter,
        "_cuda_endAllocateToPool _cuda_endAllocateCurrentStreamToPool": pools.leave,
    }


def follow_functions(patches: Patches, functions: dict[str, Any]) -> None:
    """Supply the functions in `torch._C`, and where torch's own Python has imported them by name."""
    patches.put_all(torch._C, functions)
    for owner in (torch.cuda.graphs, torch.cuda.memory):
        patches.put_all(owner, {name: functions[name] for name in functions.keys() & vars(owner).keys()})


def follow_data_parallel(patches: Patches, named: NamedDevices) -> None:
    """Answer the functions of C++ under `nn.DataParallel` by what they allocate (torch/csrc/cuda/comm.cpp)."""

    def moved(tensor: Tensor, index: int, stream: Any = None, **options: Any) -> Tensor:
        with stream or nullcontext():
            return tensor.to(named.device(named.card(index)), non_blocking=True, **options)

    def scatter(tensor: Any, devices: Any, sizes: Any = None, dim: int = 0, streams: Any = None) -> list[Tensor]:
        parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(sizes, dim)
        return [moved(*part) for part in zip(parts, devices, streams or repeat(None), strict=False)]

    def broadcast(tensor: Tensor, devices: Any) -> list[Tensor]:
        first = [tensor] if tensor.is_cuda else [moved(tensor, devices[0])]
        return [*first, *(moved(tensor, device, copy=True) for device in devices[1:])]

    def broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int) -> list[list[Tensor]]:
        outputs: list[list[Tensor]] = [list(tensors), *([] for _ in devices[1:])]
        order: list[Tensor] = []
        flattening: Any = _utils
        for group in _flat_groups(tensors if devices[1:] else (), buffer_size):
            order += group
            flat: list[Tensor] = broadcast(flattening._flatten_dense_tensors(group), devices)
            for output, whole in zip(outputs[1:], flat[1:], strict=True):
                output += [part.detach() for part in flattening._unflatten_dense_tensors(whole, group)]
        places = {id(tensor): place for place, tensor in enumerate(order)}
        return [outputs[0], *([output[places[id(tensor)]] for tensor in tensors] for output in outputs[1:])]

    def gather(tensors: Any, dim: int, destination: Any = None) -> Tensor:
        first, sizes = tensors[0], list(tensors[0].shape)
        sizes[dim] = sum(tensor.size(dim) for tensor in tensors)
        device = "cpu" if destination == -1 else named.device(named.card(destination))
        out, begin = torch.empty(sizes, dtype=first.dtype, device=device), 0
        for tensor in tensors:
            out.narrow(dim, begin, tensor.size(dim)).copy_(tensor, non_blocking=True)
            begin += tensor.size(dim)
        return out

    functions = {"_scatter": scatter, "_broadcast": broadcast, "_gather": gather}
    patches.put_all(torch._C, {**functions, "_broadcast_coalesced": broadcast_coalesced})
    from torch.nn.parallel import _functions

    patches.put(_functions, "_streams", None)


def _flat_groups(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Yield tensors of one dtype until they reach the limit, as torch's C++ takes them for one buffer."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        group = groups.setdefault(tensor.dtype, [])
        group.append(tensor)
        if sum(one.nbytes for one in group) >= limit:
            yield groups.pop(tensor.dtype)
    yield from groups.values()
