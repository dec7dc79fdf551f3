"""Collectives as operators: nothing is sent, and other ranks are assumed to hold what this rank holds.

A pending collective keeps its tensors until the program waits for it, as NCCL does. Bytes sent are those of a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d as functions

from memviz.predictor.cuda.streams import Lane, Moment, StreamOrder
from memviz.predictor.group.ranks import Layout
from memviz.predictor.position import NO_TASK
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.rules import Instead, Operator, OperatorTotals
from memviz.predictor.shapes import tensors_of
from memviz.trace.model import Category

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
        if any(tensor.is_meta for tensor in tensors_of(args[0])):
            layout.note_communicator(resolved, None, exchanges="all_to_all" in func.overloadpacket.__name__)
            totals.link_bytes += times * _tensor_bytes(args[0]) * (ranks - 1) // ranks
        return NotImplemented

    there: Any = torch.ops._c10d_functional
    return {getattr(there, name).default: count for name in _FUNCTIONAL_COLLECTIVES if hasattr(there, name)}


def _tensor_bytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(value))


_BASE: Any = c10d.Work


class PendingCollectives:
    """Collectives in progress; those of one group end in order.

    NCCL starts a collective when the calling stream has reached it and the group's previous one is over, whichever
    stream called that. So waiting for a collective also waits for the work before earlier ones.
    """

    def __init__(self, order: StreamOrder) -> None:
        self._order = order
        self._lanes: dict[str, Lane] = {}
        """NCCL's streams, one per group."""
        self._going_on: dict[str, list[PretendedWork]] = {}
        self._made: list[PretendedWork] = []
        """All of them: C++ may wait for one at any time, and for ever if its Python object were gone."""

    def begin(self, group: str, held: list[torch.Tensor], result: list[torch.Tensor], *, is_async: bool) -> Any:
        """Start a collective and return its work, boxed for C++."""
        moment = self._run(group) if any(tensor.is_meta for tensor in held) else {}
        if not is_async:
            self._order.wait(self._order.current, moment)
            return c10d.FakeWork().boxed()
        work = PretendedWork(self, group, held, result, moment)
        self._going_on.setdefault(group, []).append(work)
        self._made.append(work)
        return work.boxed()

    def _run(self, group: str) -> Moment:
        """Queue a collective of a group and return the moment of its end."""
        lane = self._lanes.setdefault(group, Lane(-1 - len(self._lanes), 0))
        self._order.wait(lane, self._order.moment(self._order.current))
        return dict(lane.knows)

    def wait(self, work: PretendedWork) -> None:
        self._order.wait(self._order.current, work.moment)
        self.end(work)

    def end(self, work: PretendedWork) -> None:
        going_on = self._going_on.get(work.group, [])
        if work in going_on:
            last = going_on.index(work)
            for over in going_on[: last + 1]:
                over.held, over.tensors = [], []
            del going_on[: last + 1]

    def end_all(self) -> None:
        for going_on in list(self._going_on.values()):
            if going_on:
                self.end(going_on[-1])


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
        self._works.end(self)
        return future


aten = torch.ops.aten
_ALIKE = "What other ranks send is taken to be what this rank would send them."
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
        self.works = PendingCollectives(order)
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
            if any(tensor.is_meta for tensor in tensors_of(list(args))):
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
            work = self.works.begin(group.group_name, list(tensors_of(list(args))), written, is_async=is_async)
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
        """Fill one list per rank, each with a part of every input."""
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
        self.works.end_all()
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
            if size:
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
