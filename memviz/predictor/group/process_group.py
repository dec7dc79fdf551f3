"""`torch.distributed` and DTensor for one rank: torch's own Python runs above backends that send nothing.

There is no network: rendezvous gives a store of this process, and `torch.multiprocessing.spawn` runs the predicted
rank alone, or starts all ranks where processes are predicted too. A pipeline stage learns the shapes that its
neighbours would send from its own inputs and outputs. Collectives are operators: other ranks are assumed to hold what
this rank holds, a pending one keeps its tensors as torch's ProcessGroupNCCL does, and the bytes sent are those of a
ring.

Shapes that DTensor computes for itself take no memory. For lists of DTensors, as optimizers have them, torch compares
each tensor with the whole list, which takes seconds for a model of hundreds of weights; running the same operator on
the shards gives the same result.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import _lru_cache_wrapper, wraps
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as functions
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from memviz.predictor.assumptions import Stopped
from memviz.predictor.compat import COLLECTIVES_KEEP_TENSORS_SINCE, Patches, without_functions, without_modes
from memviz.predictor.cuda.machine import META
from memviz.predictor.cuda.streams import Lane, Moment, StreamOrder
from memviz.predictor.group.ranks import GroupRank, Layout
from memviz.predictor.hooks import FOLLOWED_CHILDREN
from memviz.predictor.ledger import LiveAllocation
from memviz.predictor.position import NO_TASK
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.rules import Instead, Operator, OperatorTotals, rule_of
from memviz.predictor.shapes import FUSED_OPTIMIZERS, any_on_device, tensors_of
from memviz.trace.model import Category

_META_METHOD = "_propagate_tensor_meta_non_cached"
"""torch looks them up for tensors of the pretended card."""
_DTENSOR = "torch.distributed.tensor"


_FUNCTIONAL_COLLECTIVES = (
    *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce", "all_reduce_"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_to_all_single", "broadcast"),
)
"""Operators of `_c10d_functional`, which DTensor uses."""


def sent_bytes(func: Operator, args: Any, written: Any, count: int) -> int:
    """Return the bytes sent: all but the own part of what `count` ranks share, and twice that for an all-reduce."""
    name = func._schema.name.partition("::")[2]
    if name in ("recv_", "recv_any_source_"):
        return 0
    if name == "send":
        return _tensor_bytes(args)
    whole = max(_tensor_bytes(value) for value in (written, *args))
    return (2 if name.startswith("allreduce") else 1) * whole * (count - 1) // count


def counting_functions(totals: OperatorTotals, layout: Layout) -> dict[Operator, Instead]:
    """Return functions that count the bytes sent, and let the operators run."""

    def count(func: Operator, args: Any, kwargs: Any) -> Any:
        group: Any = [value for value in (*args, *kwargs.values()) if isinstance(value, str)][-1]
        resolved = c10d._resolve_process_group(group)
        ranks = resolved.size()
        times = {"all_gather": ranks, "all_reduce": 2}.get(func.overloadpacket.__name__[:10], 1)
        if any_on_device(args[0]):
            layout.note_communicator(resolved, None, exchanges="all_to_all" in func.overloadpacket.__name__)
            totals.link_bytes += times * _tensor_bytes(args[0]) * (ranks - 1) // ranks
        return NotImplemented

    def share(func: Any, args: Any, kwargs: Any) -> Any:
        # The wrapper of a result has no memory of its own, though its registered shapes are those of a new tensor.
        return args[0].detach()

    there: Any = torch.ops._c10d_functional
    answers = dict.fromkeys(_FUNCTIONAL_COLLECTIVES, count) | {"_wrap_tensor_autograd": share}
    return {getattr(there, name).default: answer for name, answer in answers.items() if hasattr(there, name)}


def _tensor_bytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(value))


_BASE: Any = c10d.Work


_KEPT_TENSORS = (
    "The program does not wait for the work of some collectives. Since 2.8 torch keeps their tensors until a later "
    "collective finds them done; when that is depends on the speed of the card, and is estimated."
)


class PendingCollectives:
    """Collectives in progress; those of one group end in order.

    NCCL starts a collective when the calling stream has reached it and the group's previous one is over, whichever
    stream called that, so waiting for a collective also waits for the work before earlier ones.

    Since 2.8 torch keeps the tensors of an asynchronous collective until the program waits for its work. If the program
    waits for its future or not at all, they are freed by the group's next collective after the card has run it.
    """

    def __init__(self, recorder: AllocationRecorder, order: StreamOrder) -> None:
        self._order = order
        self._recorder = recorder
        self.keeps_tensors = recorder.release >= COLLECTIVES_KEEP_TENSORS_SINCE
        self._lanes: dict[str, Lane] = {}
        """NCCL's streams, one per group."""
        self._going_on: dict[str, list[PretendedWork]] = {}
        self._made: list[PretendedWork] = []
        """All of them: C++ may wait for one at any time, and for ever if its Python object were gone."""

    def begin(
        self,
        group: str,
        held: list[torch.Tensor],
        result: list[torch.Tensor],
        buffers: list[LiveAllocation],
        *,
        is_async: bool,
    ) -> Any:
        moment: Moment = {}
        if any(tensor.is_meta for tensor in held):
            lane = self._lanes.setdefault(group, Lane(-1 - len(self._lanes), 0))
            self._order.wait(lane, self._order.moment(self._order.current))
            moment = dict(lane.knows)
        going_on = self._going_on.setdefault(group, [])
        if self.keeps_tensors:
            done = [work for work in going_on if self._order.is_seen_done(work.begun)]
            if done and self._recorder.position.task == NO_TASK:
                self._recorder.assumptions.say(_KEPT_TENSORS)
            self._release(done, going_on)
        if not is_async:
            for buffer in buffers:
                self._recorder.ledger.free(buffer)
            self._order.wait(self._order.current, moment)
            return c10d.FakeWork().boxed()
        work = PretendedWork(self, group, held, result, moment)
        work.begun, work.buffers = self._order.launches, buffers
        self._order.launched()
        going_on.append(work)
        self._made.append(work)
        return work.boxed()

    def wait(self, work: PretendedWork) -> None:
        self._order.wait(self._order.current, work.moment)
        self.end(work)

    def end(self, work: PretendedWork) -> None:
        going_on = self._going_on.get(work.group, [])
        if work in going_on:
            self._release([work] if self.keeps_tensors else going_on[: going_on.index(work) + 1], going_on)

    def pass_barrier(self) -> None:
        """Let the host wait for the card; tensors that torch keeps are freed by a later collective."""
        self._order.host_waits_for_all(self._order.current.card)
        for going_on in () if self.keeps_tensors else self._going_on.values():
            self._release(list(going_on), going_on)

    def _release(self, works: list[PretendedWork], going_on: list[PretendedWork]) -> None:
        for work in works:
            going_on.remove(work)
            for buffer in work.buffers:
                self._recorder.ledger.free(buffer)
            work.held, work.tensors, work.buffers = [], [], []


class PretendedWork(_BASE):  # type: ignore[misc]
    def __init__(
        self,
        works: PendingCollectives,
        group: str,
        held: list[torch.Tensor],
        tensors: list[torch.Tensor],
        moment: Moment,
    ) -> None:
        super().__init__()
        self._works = works
        self.group = group
        self.held = held
        self.tensors = tensors
        self.moment = moment
        self.begun = 0
        """Kernels launched before it."""
        self.buffers: list[LiveAllocation] = []

    def wait(self, timeout: Any = None) -> bool:
        self._works.wait(self)
        return True

    def synchronize(self) -> None:
        self._works.wait(self)

    def is_completed(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def get_future(self) -> Any:
        """Return a done future with the received tensors."""
        future: Any = torch.futures.Future()
        future.set_result(self.tensors)
        # Below autograd's engine C++ takes it: DDP, whose buckets stay anyway.
        if not self._works.keeps_tensors or sys._getframe(1).f_globals["__name__"] == "torch.autograd.graph":
            self._works.end(self)
        return future


aten = torch.ops.aten
_ALIKE = "Other ranks are assumed to send what this rank would send them."
Collective = Callable[[Any, Any], tuple[Any, list[Tensor]]]
"""From named arguments and the group to the operator's result besides its work, and the tensors written."""


def _for_each_pair(outputs: str, inputs: str, run: Callable[[Any, Any, Any], None]) -> Collective:
    """Run on each output with its input; single tensors are a pair by themselves."""

    def collective(args: Any, group: Any) -> Any:
        results, sent = args[outputs], args[inputs]
        if isinstance(results, Tensor):
            run(results, sent, group)
        else:
            for output, source in zip(results, sent, strict=False):
                run(output, source, group)
        return results, [*tensors_of([results])]

    return collective


class Collectives:
    """Overrides of collectives; `reduced_by` is the operation of the function that the program called last."""

    def __init__(self, recorder: AllocationRecorder, layout: Layout, order: StreamOrder) -> None:
        self._recorder = recorder
        self._host = recorder.host
        self._layout = layout
        self.works = PendingCollectives(recorder, order)
        self._buffers: list[LiveAllocation] = []
        """Memory between a list and NCCL, for the collective that runs now."""
        self.reduced_by = "SUM"

    def treatments(self) -> dict[Operator, Instead]:
        ops: Any = torch.ops.c10d
        pairwise: dict[Any, tuple[str, str, Callable[[Any, Any, Any], None]]] = {
            ops.allgather_: ("output_tensors", "input_tensors", self._gather_list),
            ops._allgather_base_: ("output_tensor", "input_tensor", self._spread),
            ops.allgather_into_tensor_coalesced_: ("outputs", "inputs", self._spread),
            ops.reduce_scatter_: ("output_tensors", "input_tensors", self._reduce_list),
            ops._reduce_scatter_base_: ("output_tensor", "input_tensor", self._reduce_gradients),
            ops.reduce_scatter_tensor_coalesced_: ("outputs", "inputs", self._reduce_part),
            ops.gather_: ("output_tensors", "input_tensors", self._copy_to_all),
            ops.scatter_: ("output_tensors", "input_tensors", self._copy_own),
        }
        others: dict[Any, Collective] = {
            ops.allgather_coalesced_: self._gather_lists,
            ops.allreduce_: self._reduce_all,
            ops.allreduce_coalesced_: self._reduce_all,
            ops.reduce_: self._reduce_all,
            ops.broadcast_: lambda args, group: (args["tensors"], args["tensors"]),
            ops.alltoall_: self._exchange,
            ops.alltoall_base_: self._exchange_base,
            ops.send: self._pass_on,
            ops.recv_: self._pass_on,
            ops.recv_any_source_: self._pass_on,
            ops.barrier: self._barrier,
            ops.monitored_barrier_: self._barrier,
        }
        collectives = {**{packet: _for_each_pair(*row) for packet, row in pairwise.items()}, **others}
        instead = {packet.default: self._instead(collective) for packet, collective in collectives.items()}
        return {**instead, **counting_functions(self._recorder.totals, self._layout)}

    def _instead(self, collective: Collective) -> Instead:
        def run(func: Operator, args: Any, kwargs: Any) -> Any:
            named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
            named.update(kwargs)
            group = c10d.ProcessGroup.unbox(named["process_group"])
            out, written = collective(named, group)
            if any_on_device(list(args)):
                self._recorder.note_nccl()
                name = func.overloadpacket.__name__
                # Ring and tree have no connection to every rank, and messages to one rank have only that.
                other = named.get("dst", named.get("src")) if name in ("send", "recv_") else None
                self._layout.note_communicator(group, other, exchanges=name.startswith(("alltoall", "send", "recv")))
            returns = func._schema.returns
            if not returns:
                return None
            is_async = named.get("async_op", True)
            if any(tensor.is_meta for tensor in written):
                self._recorder.totals.link_bytes += sent_bytes(func, args, written, group.size())
            held, buffers = list(tensors_of(list(args))), self._buffers
            self._buffers = []
            work = self.works.begin(group.group_name, held, written, buffers, is_async=is_async)
            if collective == self._barrier:
                self.works.pass_barrier()
            return (out, work) if len(returns) == 2 else work

        return run

    def _reduce_all(self, args: Any, group: Any) -> Any:
        self._are_gradients(args["tensors"])
        for tensor in args["tensors"]:
            self._sum(tensor, group.size())
        return args["tensors"], args["tensors"]

    def _pass_on(self, args: Any, group: Any) -> Any:
        """Note a message between ranks; its values are unknown, and numbers of the host stay what they are."""
        self._layout.note_chain(functions.get_process_group_ranks(group))
        return None, args["tensors"]

    def _gather_lists(self, args: Any, group: Any) -> Any:
        for outputs in args["output_lists"]:
            for output, sent in zip(outputs, args["input_list"], strict=True):
                self._copy(output, sent)
        return args["output_lists"], [*tensors_of(args["output_lists"])]

    def _gather_list(self, outputs: list[Tensor], sent: Tensor, group: Any) -> None:
        self._flattened(outputs, "allgather_")
        self._copy_to_all(outputs, sent, group)

    def _reduce_list(self, output: Tensor, sent: list[Tensor], group: Any) -> None:
        self._flattened(sent, "reduce_scatter_")
        self._copy_own(output, sent, group)
        self._sum(output, group.size())

    def _reduce_gradients(self, output: Tensor, sent: Tensor, group: Any) -> None:
        self._are_gradients([sent, output])
        self._reduce_part(output, sent, group)

    def _copy_to_all(self, outputs: list[Tensor], sent: Tensor, group: Any) -> None:
        for output in outputs:
            self._copy(output, sent)

    def _copy_own(self, output: Tensor, sent: list[Tensor], group: Any) -> None:
        self._copy(output, sent[group.rank()])

    def _exchange(self, args: Any, group: Any) -> Any:
        mine = args["input_tensors"][group.rank()]
        for output in args["output_tensors"]:
            if output.shape == mine.shape:
                self._copy(output, mine)
            else:
                self._host.forget_values(output)
        return args["output_tensors"], list(args["output_tensors"])

    def _exchange_base(self, args: Any, group: Any) -> Any:
        output, sent, size = args["output"], args["input"], group.size()
        even = not args["output_split_sizes"] and not args["input_split_sizes"] and sent.shape[:1] == output.shape[:1]
        if even and sent.dim() and sent.shape[0] % size == 0:
            mine = sent.view(size, -1, *sent.shape[1:])[group.rank()]
            self._spread(output, mine, group)
        else:
            self._host.forget_values(output)
        return None, [output]

    def _barrier(self, args: Any, group: Any) -> Any:
        if group.name() == "nccl":
            # NCCL has no barrier: a number is summed.
            self._recorder.allocate_temporary(4, "barrier")
        return None, []

    def _are_gradients(self, tensors: list[Tensor]) -> None:
        """Mark tensors that are reduced over ranks during backward as gradients."""
        if self._recorder.position.task != NO_TASK:
            self._recorder.label(tensors, Category.GRADIENT)

    def _flattened(self, tensors: list[Tensor], operator: str) -> None:
        """Allocate the buffer between a list and NCCL, which gathers and scatters one piece of memory."""
        if tensors and tensors[0].is_meta:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            if size and self.works.keeps_tensors:
                with self._recorder.by_rule(rule_of(operator)):
                    self._buffers.append(self._recorder.allocate(Category.TEMPORARY, size, operator))
            elif size:
                self._recorder.allocate_temporary(size, operator)

    def _sum(self, tensor: Tensor, count: int) -> None:
        if self.reduced_by in ("SUM", "PREMUL_SUM") and tensor.dtype != torch.bool:
            self._write(aten.mul_.Tensor, tensor, torch.tensor(count, dtype=tensor.dtype))
        elif self.reduced_by == "PRODUCT":
            self._write(aten.pow_.Scalar, tensor, count)

    def _reduce_part(self, output: Tensor, sent: Tensor, group: Any) -> None:
        if sent.is_contiguous() and sent.numel() == output.numel() * group.size():
            self._copy(output, sent.view(group.size(), -1)[group.rank()].view(output.shape))
            self._sum(output, group.size())
        else:
            self._host.forget_values(output)

    def _spread(self, output: Tensor, sent: Tensor, group: Any) -> None:
        if output.is_contiguous() and output.numel() == sent.numel() * group.size():
            self._copy(output.view(group.size(), *sent.shape), sent)
        else:
            self._host.forget_values(output)

    def _copy(self, output: Tensor, sent: Tensor) -> None:
        if output.shape != sent.shape and output.dim() == sent.dim():
            self._host.forget_values(output)
        else:
            self._write(aten.copy_.default, output, sent)

    def _write(self, func: Operator, output: Tensor, other: Any) -> None:
        host = self._host
        known = isinstance(other, Tensor) and host.is_unknown(other)
        if known or (func is not aten.copy_.default and host.is_unknown(output)):
            return host.forget_values(output)
        self._recorder.assumptions.say(_ALIKE)
        if output.is_meta:
            host.known.follow(func, (output, other), {}, output, writes=True)
        else:
            with torch.no_grad():
                func(output, other)


def follow_dtensor(patches: Patches, layout: Layout) -> None:
    """Patch DTensor and FSDP2. They are imported only here, since programs without a process group do not need them."""
    if not hasattr(torch.distributed, "tensor"):
        importlib.import_module("torch.distributed.tensor")
    from torch.distributed.tensor import _sharding_prop as propagation
    from torch.distributed.tensor.placement_types import Shard

    kind: Any = propagation.ShardingPropagator
    run = vars(kind).get(_META_METHOD)
    if run is not None:

        @wraps(run)
        def propagate(self: Any, schema: Any) -> Any:
            with without_functions(), without_modes():
                try:
                    made = schema.op(*_without_data(schema.args_schema), **_without_data(schema.kwargs_schema))
                except (RuntimeError, NotImplementedError, TypeError):
                    return run(self, schema)
                return _tensor_metas(made, propagation.TensorMeta)

        patches.replace(kind, _META_METHOD, propagate)
    whole: Any = Shard.__dict__.get("local_shard_size_and_offset")
    if isinstance(whole, staticmethod):
        shard = whole.__func__

        @wraps(shard)
        def note_parts(length: Any, parts: int, *rest: Any, **named: Any) -> Any:
            if type(length) is int:
                layout.note_uneven_parts(length, parts)
            return shard(length, parts, *rest, **named)

        patches.replace(Shard, "local_shard_size_and_offset", staticmethod(note_parts))
    sharded = importlib.import_module("torch.distributed.fsdp")
    parameters: Any = sys.modules.get(f"{sharded.__name__}._fully_shard._fsdp_param")
    if parameters is not None and hasattr(parameters, "_chunk_with_empty"):
        chunk = parameters._chunk_with_empty

        @wraps(chunk)
        def note_chunks(tensor: torch.Tensor, num_chunks: int, dim: int) -> Any:
            layout.note_uneven_parts(tensor.size(dim), num_chunks)
            return chunk(tensor, num_chunks, dim)

        patches.replace(parameters, "_chunk_with_empty", note_chunks)


def forget_meshes() -> None:
    """Meshes of two ranks may be equal while their groups have other names, and DTensor keeps what it decided."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(_DTENSOR)]
    for value in [value for module in modules for value in vars(module).values()]:
        for kept in (value, *(vars(value).values() if isinstance(value, type) else ())):
            if isinstance(kept, _lru_cache_wrapper):
                kept.cache_clear()
    whole: Any = getattr(sys.modules.get(_DTENSOR), "DTensor", None)
    if whole is not None:
        whole._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    # Newer releases have one in C++ too.
    getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()


def _without_data(arguments: Any) -> Any:
    """Replace specifications of DTensors by tensors of their whole shapes."""

    def made(value: Any) -> Any:
        if isinstance(value, torch.device):
            return META
        meta = getattr(value, "tensor_meta", None)
        if meta is None:
            return value
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=META)

    return tree_map(made, arguments, is_leaf=lambda value: hasattr(value, "tensor_meta"))


def _tensor_metas(made: Any, kind: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return kind(shape=made.shape, stride=made.stride(), dtype=made.dtype)
    if isinstance(made, tuple | list):
        return type(made)(_tensor_metas(item, kind) for item in made)
    return None


_BY_ELEMENT = (
    *("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "sqrt", "neg", "pow", "maximum", "minimum"),
    *("clamp_min", "clamp_max", "abs", "sign", "reciprocal", "copy", "zero"),
)


_ELEMENTWISE_OPERATORS = frozenset(
    getattr(packet, overload)
    for name in (*(f"_foreach_{name}{end}" for name in _BY_ELEMENT for end in ("", "_")), *FUSED_OPTIMIZERS)
    if (packet := getattr(aten, name, None)) is not None
    for overload in packet.overloads()
)


def run_on_shards(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an elementwise operator on the shards of DTensors; NotImplemented lets torch run it."""
    if func not in _ELEMENTWISE_OPERATORS or _DTENSOR not in sys.modules:
        return NotImplemented
    from torch.distributed.tensor import DTensor

    first = args[0]
    if not all(isinstance(tensor, DTensor) for tensor in first):
        return NotImplemented
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
    if not all(map(_same_placements, [first] * len(lists), lists)):
        return NotImplemented
    with mode:
        args, kwargs = (
            [_local(value) for value in args],
            {key: _local(value) for key, value in kwargs.items()},
        )
        out = func(*args, **kwargs)
    if not isinstance(out, list | tuple):
        return out
    return [DTensor(shard, like._spec, requires_grad=False) for shard, like in zip(out, first, strict=True)]


def _same_placements(first: Any, others: Any) -> bool:
    """Return whether the DTensors of two lists have equal placements; numbers and host tensors are ignored."""
    from torch.distributed.tensor import DTensor

    for one, other in zip(first, others, strict=False):
        if isinstance(other, DTensor):
            placements = other._spec.placements
            same = placements == one._spec.placements and other._spec.mesh is one._spec.mesh
            same = same and other.shape == one.shape and other.dtype == one.dtype
            if not same or any(placement.is_partial() for placement in placements):
                return False
        elif isinstance(other, torch.Tensor) and other.is_meta and other.dim():
            return False
    return True


def _local(value: Any) -> Any:
    from torch.distributed.tensor import DTensor, Replicate

    if isinstance(value, list | tuple):
        return [_local(item) if not isinstance(item, DTensor) else item._local_tensor for item in value]
    if isinstance(value, DTensor):
        everywhere = value.redistribute(placements=[Replicate()] * value.device_mesh.ndim)
        return everywhere.to_local()
    return value


_STAGE_REMEDY = (
    "A stage made with PipelineStage(..., input_args=..., output_args=...) needs no message; "
    "pass each rank its own, as tensors of one microbatch."
)


class MessageNeeded(Stopped):
    """The program needs a message from another rank, which does not run."""


def no_message(object_list: list[Any], src: int | None = None, *args: Any, **named: Any) -> None:
    sender = named.get("group_src") if src is None else src
    whose = "another rank" if sender is None else f"rank {sender}"
    raise MessageNeeded(f"recv_object_list needs a message from {whose}, but only one rank runs. {_STAGE_REMEDY}")


def follow_pipelines(patches: Patches) -> None:
    """Patch pipeline stages if the program uses them; in releases without a vote, static stages exchange nothing."""
    module: Any = sys.modules.get("torch.distributed.pipelining.stage")
    stage = getattr(module, "PipelineStage", None)
    if stage is None or not hasattr(stage, "_warmup_forward_vote"):
        return
    receive: Callable[[Any, int], Any] = stage._recv_meta

    def vote(self: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
        """The others vote as this stage does."""
        dynamic = module.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        self._inference_mode = module.InferenceMode.DYNAMIC if dynamic else module.InferenceMode.STATIC
        return torch.tensor([0 if dynamic else 1], dtype=torch.int32, device=self.device)

    def result(self: Any, received_result: Any = None) -> torch.Tensor:
        static = self._inference_mode is module.InferenceMode.STATIC
        return torch.tensor([int(static)], dtype=torch.int32, device=self.device)

    def received(self: Any, src_stage: int) -> Any:
        if src_stage < self.stage_index or self._stage_meta.outputs is None:
            return receive(self, src_stage)
        return module._StageBackwardMeta(backward_metas=module._derive_grad_metas(self._stage_meta.outputs))

    patches.replace(stage, "_warmup_forward_vote", vote)
    patches.replace(stage, "_warmup_backward_result", result)
    patches.replace(stage, "_recv_meta", received)


def follow_zero_optimizer(patches: Patches, layout: Layout) -> None:
    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        # By its name, because the import is slow and warns.
        if type(optimizer).__name__ != "ZeroRedundancyOptimizer":
            return
        by_weights: dict[Any, list[int]] = {}
        for rank, groups in enumerate(optimizer._partition_parameters_cache):
            shapes = tuple(tuple(weight.shape) for group in groups for weight in group["params"])
            by_weights.setdefault(shapes, []).append(rank)
        layout.unlike = list(by_weights.values())

    patches.callback(register_optimizer_step_post_hook(stepped).remove)


_GROUP_NEEDED = (
    "needs a rank and a world size. Predict one rank with --world-size N [--rank R], such as --world-size 8."
)


class GroupNeeded(Stopped):
    """The script is one process of a group of unknown size."""


class _SilentBackend(type):
    """Metaclass of backends by name; their objects send nothing, since collectives are overridden before."""

    backend: str

    def __call__(cls, store: Any, rank: int, size: int, options: Any = None, timeout: Any = None) -> Any:
        made = c10d.FakeProcessGroup._create_internal(rank, size)
        _silent_backends[id(made)] = made, cls.backend
        return made

    def __instancecheck__(cls, value: Any) -> bool:
        return _backend_name(value) == cls.backend


_silent_backends: dict[int, tuple[Any, str]] = {}
"""Backends with their names, by address."""


def _backend_name(backend: Any) -> str:
    return _silent_backends.get(id(backend), (None, ""))[1]


class _NcclOptions(c10d.Backend.Options):
    """Options of NCCL, which are stored and have no effect."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl")
        self.is_high_priority_stream = is_high_priority_stream
        self.config = None


def _group_of_own_part(parent_pg: Any = None, split_ranks: Any = (), *_: Any, **__: Any) -> Any:
    """Split a group as NCCL does. The backend here cannot, but the group of this rank's part is no other."""
    parent: Any = parent_pg or dist.group.WORLD
    own = next((part for part in split_ranks if parent.rank() in part), None)
    ranks = dist.get_process_group_ranks(parent)
    return None if own is None else dist.new_group([ranks[number] for number in sorted(own)])


def follow_group(
    patches: Patches, recorder: AllocationRecorder, rank: GroupRank | None, layout: Layout, order: StreamOrder
) -> None:
    """Pretend the process group; without a rank, only a script that sets its own world size continues."""
    if not dist.is_available():
        recorder.overrides = {}
        return
    collectives = Collectives(recorder, layout, order)
    recorder.overrides = collectives.treatments()
    group = _Group(patches, rank, collectives, layout)
    nccl, gloo = (
        _SilentBackend(name, (), {"backend": backend, "Options": _NcclOptions})
        for name, backend in (("ProcessGroupNCCL", "nccl"), ("ProcessGroupGloo", "gloo"))
    )
    for owner in (functions, dist):
        patches.put(owner, "ProcessGroupNCCL", nccl)
        patches.put(owner, "ProcessGroupGloo", gloo)
        patches.replace(owner, "is_nccl_available", lambda: True)
        for name in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"):
            if name in vars(owner):
                patches.replace(owner, name, group.noting_reduction(vars(owner)[name]))
        # Objects of another rank are unknown, so all stay as they are.
        patches.replace(owner, "broadcast_object_list", lambda *args, **kwargs: None)
        patches.replace(owner, "recv_object_list", no_message)
        patches.replace(owner, "scatter_object_list", group.scatter_objects)
        patches.replace(owner, "monitored_barrier", lambda *args, **kwargs: None)
    for owner in (functions, dist, device_mesh):
        patches.replace(owner, "split_group", _group_of_own_part)
    patches.put(torch._C, "_nccl_version", lambda: 2 << 32 | 27 << 16 | 5)
    patches.put(torch._C, "_nccl_version_suffix", lambda: b"")
    patches.replace(functions, "_NCCL_AVAILABLE", True)
    patches.put(functions, "default_pg_nccl_timeout", timedelta(minutes=10))
    silent = ("_set_sequence_number_for_group", "_set_default_timeout", "eager_connect_single_device")
    for name in (*silent, "abort", "shutdown"):
        patches.put(c10d.FakeProcessGroup, name, lambda *args, **kwargs: None)
    # The overrides would leave our mode before they pass "cuda".
    patches.replace(functions, "has_torch_function", lambda tensors: False)
    patches.replace(functions, "rendezvous", group.meet)
    patches.replace(functions, "_store_based_barrier", lambda *args, **kwargs: None)
    patches.replace(functions, "_new_process_group_helper", group.with_our_device(functions._new_process_group_helper))
    patches.replace(torch.distributed.utils, "_verify_param_shape_across_processes", lambda *args, **kwargs: None)
    # torch.get_device_module("meta") must return torch.cuda.
    patches.put(torch, "meta", torch.cuda)
    _follow_processes(patches, rank)
    for name, value in rank.environment.items() if rank is not None else ():
        if name in os.environ:
            patches.callback(os.environ.__setitem__, name, os.environ[name])
        else:
            patches.callback(os.environ.pop, name, None)
        os.environ[name] = value
    patches.callback(_destroy_group, sys.excepthook)


class _Group:
    def __init__(self, patches: Patches, rank: GroupRank | None, collectives: Collectives, layout: Layout) -> None:
        self._patches = patches
        self._rank = rank
        self._collectives = collectives
        self._layout = layout
        self._begun = False

    def meet(self, url: str, rank: int = -1, world_size: int = -1, **named: Any) -> Iterator[tuple[Any, int, int]]:
        """Replace the rendezvous over the network by a store of this process."""
        if self._rank is None:
            # As torch's own rendezvous, which reads what the program may have set.
            rank = rank if rank >= 0 else int(os.environ.get("RANK", -1))
            world_size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", -1))
            if rank < 0 or world_size < 1:
                raise GroupNeeded(f"torch.distributed.init_process_group {_GROUP_NEEDED}")
        elif world_size not in (-1, self._rank.world_size):
            raise GroupNeeded(
                f"torch.distributed.init_process_group expects {world_size} processes, but --world-size is "
                f"{self._rank.world_size}."
            )
        if self._rank is not None:
            rank = self._rank.number if rank < 0 else rank
            world_size = self._rank.world_size
        yield c10d.HashStore(), rank, world_size

    def with_our_device(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Register the backend for `meta` too, the device of pretended tensors to torch's C++."""

        def made(*args: Any, **kwargs: Any) -> Any:
            group, store = make(*args, **kwargs)
            if not self._begun:
                self._begun = True
                follow_dtensor(self._patches, self._layout)
                follow_pipelines(self._patches)
                # Accept any global checkpoint plan: all ranks are taken to save what this rank saves, which is no whole
                # model.
                from torch.distributed.checkpoint import default_planner

                check: Any = vars(default_planner)["_validate_global_plan"]
                # Older releases return a bool, later ones a list of errors.
                is_valid: Any = True if check.__annotations__["return"] in (bool, "bool") else []
                self._patches.replace(default_planner, check.__name__, lambda *plan: is_valid)
                follow_zero_optimizer(self._patches, self._layout)
            ranks = args[2] if len(args) > 2 else kwargs.get("global_ranks_in_group")
            if isinstance(group, dist.ProcessGroup):
                self._layout.note_group(ranks or range(group.size()))
                for device in ("cuda", "cpu"):
                    try:
                        backend = group._get_backend(torch.device(device))
                    except RuntimeError:
                        continue
                    types = dist.ProcessGroup.BackendType
                    group._register_backend(
                        META, types.NCCL if _backend_name(backend) == "nccl" else types.GLOO, backend
                    )
                    break
            return group, store

        return made

    def noting_reduction(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            of_kind = [value for value in (*args, *kwargs.values()) if isinstance(value, _KINDS)]
            if of_kind:
                operation = getattr(of_kind[0], "op", of_kind[0])
                self._collectives.reduced_by = str(operation).rpartition(".")[2]
            try:
                return run(*args, **kwargs)
            finally:
                self._collectives.reduced_by = "SUM"

        return noted

    def scatter_objects(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        """Torch's own names, which callers give."""
        given = scatter_object_input_list
        if given:
            scatter_object_output_list[0] = given[dist.get_rank(group) % len(given)]


_KINDS: Any = (c10d.ReduceOp, c10d.ReduceOp.RedOpType)


def _follow_processes(patches: Patches, rank: GroupRank | None) -> None:
    from torch import multiprocessing

    start: Any = vars(multiprocessing)["start_processes"]

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *rest: Any, **named: Any) -> Any:
        """Run the predicted rank in this process, or all where processes are predicted too."""
        if rank is not None:
            return fn(rank.number % nprocs, *args)
        if FOLLOWED_CHILDREN not in os.environ:
            raise GroupNeeded(f"torch.multiprocessing.spawn starts {nprocs} processes, and each {_GROUP_NEEDED}")
        with _numbered_processes(nprocs):
            return start(fn, args, nprocs, *rest, **named)

    for owner in (multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.replace(owner, "spawn", spawn)
        patches.replace(owner, "start_processes", spawn)


@contextmanager
def _numbered_processes(count: int) -> Iterator[None]:
    """Give each process that starts in this block its rank, as torchrun does by its environment."""
    numbers = iter(range(count))
    begin: Any = BaseProcess.start
    with Patches() as patches:

        def begin_as_rank(process: Any) -> None:
            os.environ.update(GroupRank(next(numbers), count).environment)
            begin(process)

        for name in GroupRank(0, count).environment:
            patches.restore(os.environ, name)
        patches.put(BaseProcess, "start", begin_as_rank)
        yield


def _destroy_group(hook: Any) -> None:
    # Programs often keep their group until the end of the process.
    if dist.is_initialized():
        dist.destroy_process_group()
    forget_meshes()
    sys.excepthook = hook
    _silent_backends.clear()
