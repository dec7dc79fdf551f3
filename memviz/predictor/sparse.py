"""Sparse COO tensors, such as an embedding's gradients: memory holds their indices and values.

torch runs few operators on sparse meta tensors, and in some loses the number of values. Operators of optimizers on
sparse gradients, and products with dense tensors, are decomposed here into operators on the two parts, as CUDA's
code does (SparseCUDATensor.cu, SparseCUDATensorMath.cu, SparseTensorMath.cpp); all others raise an error.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from memviz.predictor.assumptions import NOT_STATED
from memviz.predictor.cuda.machine import META
from memviz.predictor.questions import count_question
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.rules import SPARSE_PRODUCT, rule_of

aten = torch.ops.aten
_MAKE = aten._sparse_coo_tensor_with_dims_and_tensors.default
_BAGS = aten._embedding_bag_backward.default
_COPY = aten._to_copy.default
_FROM_DENSE = (aten._to_sparse.default, aten._to_sparse.sparse_dim)
_ALWAYS = {_MAKE, _BAGS, _COPY, *_FROM_DENSE}
"""Operators whose arguments do not show whether the result is sparse."""
_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
ALL_DIFFERENT = "indices that are not computed are assumed to be all different, which takes the most memory"


class Sparse:
    """`runs` maps operators to decompositions, which are tried if `may_be_sparse`.

    With a single tensor argument that tensor is sparse; others return NotImplemented without one on the device.
    """

    def __init__(self, recorder: AllocationRecorder) -> None:
        self._recorder = recorder
        self.runs: dict[Any, Callable[..., Any]] = {
            _MAKE: self._make,
            aten._coalesce.default: self._coalesced,
            _COPY: self._copied,
            **dict.fromkeys(_FROM_DENSE, self._from_dense),
            aten.clone.default: self._cloned,
            aten.add_.Tensor: self._added_to,
            aten.add.Tensor: self._added,
            aten.neg.default: self._negated,
            aten.sparse_mask.default: self._masked,
            aten._to_dense.default: self._dense,
            aten.norm.ScalarOpt_dim: self._norm,
            _BAGS: _of_bags,
            aten._sparse_addmm.default: self._product_added,
            aten.addmm.default: self._product_added,
            aten.mm.default: self._product,
            aten.mv.default: self._product_with_vector,
        }

    def _make(self, *args: Any, **kwargs: Any) -> Any:
        """Make a sparse tensor of two existing tensors, without memory of its own."""
        if args[4].is_meta:
            self._recorder.operators.add(_MAKE.overloadpacket.__name__)
        with torch._C._DisableTorchDispatch():
            return _MAKE(*args, **{**kwargs, "device": args[4].device})

    def _from_dense(self, tensor: Tensor, sparse_dim: int | None = None, *, layout: Any = None, **kwargs: Any) -> Any:
        """Take the elements that are not 0, which are all of them where values are not computed."""
        is_known_on_host = not tensor.is_meta and not self._recorder.host.is_unknown(tensor)
        is_dense = tensor.layout is torch.strided and tensor.dim() > 0
        if is_known_on_host or not is_dense or layout not in (None, torch.sparse_coo) or any(kwargs.values()):
            return NotImplemented
        dims = tensor.dim() if sparse_dim is None else sparse_dim
        rows = tensor if dims == tensor.dim() else tensor.flatten(dims).ne(0).any(-1)
        indices = rows.nonzero().t().clone(memory_format=torch.contiguous_format)
        values = tensor[tuple(indices.unbind(0))]
        options = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": values.device, "is_coalesced": True}
        return self._make(dims, tensor.dim() - dims, tensor.shape, indices, values, **options)

    def _coalesced(self, tensor: Tensor) -> Any:
        indices, values = parts_of(tensor)
        count = indices.size(1)
        if count < 2:
            return _like(tensor, indices.clone(), values.clone(), coalesced=True)
        self._recorder.operators.add(aten._coalesce.__name__)
        flat = _flat(indices) if indices.size(0) > 1 else indices.squeeze(0).clone()
        order, first = (torch.empty(count, dtype=torch.long, device=META) for _ in range(2))
        left = self._different(tensor, indices)
        flat.resize_(1, left)
        summed = values.new_empty(left, *values.shape[1:])
        values.contiguous()
        del order, first
        return _like(tensor, flat if indices.size(0) == 1 else indices.new_empty(indices.size(0), left), summed, True)

    def _different(self, tensor: Tensor, indices: Tensor) -> int:
        count, most = indices.size(1), prod(tensor.shape[: tensor.sparse_dim()])
        values = self._recorder.host.known.of(indices)
        if values is not None:
            return int(torch.unique(values, dim=1).size(1))
        assumptions = self._recorder.assumptions
        answer = assumptions.stated_answer(count_question(count, least=1))
        if answer is NOT_STATED:
            assumptions.state(ALL_DIFFERENT)
            answer = assumptions.took(min(count, most))
        return int(answer)

    def _cloned(self, tensor: Tensor, **kwargs: Any) -> Any:
        parts = parts_of(tensor)
        if not _is_handed_over(parts):
            parts = parts[0].clone(), parts[1].clone()
        return _like(tensor, *parts)

    def _copied(self, tensor: Tensor, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        """Copy to the device, or there to another dtype."""
        to = tensor.device if device is None else torch.device(device)
        if tensor.layout is not torch.sparse_coo or to.type == "cpu":
            return NotImplemented
        indices, values = parts_of(tensor)
        return _like(tensor, indices.to(META, copy=True), values.to(META, dtype, copy=True))

    def _negated(self, tensor: Tensor) -> Any:
        indices, values = parts_of(tensor)
        return _like(tensor, indices.clone(), values.neg())

    def _added_to(self, first: Tensor, second: Any, *, alpha: Any = 1) -> Any:
        if not is_sparse(second):
            return NotImplemented
        if is_sparse(first):
            first.data = self._added(first, second, alpha=alpha)
            return first
        indices, values = parts_of(second)
        if indices.size(1) and not second.is_coalesced():
            rows = prod(first.shape[: second.sparse_dim()])
            first.view(rows, -1).index_add_(0, _flat(indices), values.reshape(indices.size(1), -1), alpha=alpha)
        # One kernel adds coalesced values, which no operator here does.
        self._recorder.host.forget_values(first)
        return first

    def _added(self, first: Tensor, second: Any, *, alpha: Any = 1) -> Any:
        if not is_sparse(second):
            return NotImplemented
        if not is_sparse(first):
            return self._added_to(first.clone(), second, alpha=alpha)
        (indices, values), (more, added) = parts_of(first), parts_of(second)
        if not indices.size(1):
            return _like(second, more.clone(), added.mul(alpha))
        added = added if alpha == 1 else added.mul(alpha)
        return _like(first, torch.cat([indices, more], 1), torch.cat([values, added]), coalesced=False)

    def _masked(self, dense: Tensor, mask: Tensor) -> Any:
        if not is_sparse(mask) or is_sparse(dense):
            return NotImplemented
        indices, values = parts_of(mask)
        ones = values.new_ones(1).expand_as(values)
        gathered = dense[tuple(indices.unbind(0))]
        return _like(mask, indices.clone(), gathered.mul(ones))

    def _dense(self, tensor: Tensor, dtype: Any = None, masked_grad: Any = None) -> Any:
        return self._added_to(torch.zeros(tensor.shape, dtype=dtype or tensor.dtype, device=META), tensor)

    def _norm(self, tensor: Tensor, power: Any, dim: Any, keepdim: bool = False) -> Any:
        if dim or keepdim:
            return NotImplemented
        return (tensor if tensor.is_coalesced() else self._coalesced(tensor))._values().norm(power)

    def _product(self, tensor: Tensor, dense: Any) -> Any:
        if not is_sparse(tensor) or is_sparse(dense):
            return NotImplemented
        return self._product_added(dense.new_zeros(tensor.size(0), dense.size(1)), tensor, dense)

    def _product_with_vector(self, tensor: Tensor, vector: Any) -> Any:
        if not is_sparse(tensor):
            return NotImplemented
        return self._product(tensor, vector.unsqueeze(1)).squeeze(1)

    def _product_added(self, first: Tensor, tensor: Tensor, dense: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        """Follow cuSPARSE's layout: CSR row offsets, 32-bit column indices, and column-major results."""
        if not is_sparse(tensor) or is_sparse(dense):
            return NotImplemented
        self._recorder.assumptions.say(
            "cuSPARSE takes a workspace for products of sparse tensors; it is not predicted."
        )
        self._recorder.operators.add(SPARSE_PRODUCT)
        self._recorder.missing[rule_of(SPARSE_PRODUCT)] = (None, None)
        out = dense.new_empty(tensor.size(0), dense.size(1))
        indices = (tensor if tensor.is_coalesced() else self._coalesced(tensor))._indices()
        begins = indices.new_empty(tensor.size(0) + 1, dtype=torch.int)
        indices[0].to(torch.int)
        columns = indices[1].to(torch.int)
        turned = None if out.t().is_contiguous() else out.t().clone(memory_format=torch.contiguous_format)
        if not dense.t().is_contiguous() and dense.stride(1) != 1:
            dense.contiguous()
        del begins, columns, turned
        self._recorder.host.forget_values(out)
        return out


def _of_bags(*args: Any, **kwargs: Any) -> Any:
    """Gradients of an EmbeddingBag: `sparse` is the tenth of its arguments."""
    if not args[9] or not args[0].is_meta:
        return NotImplemented
    run = aten._embedding_bag_sparse_backward.default._op_dk
    return run(_COMPOSED, *args[:5], *args[6:9], *args[10:], **kwargs)


def new_of_sparse(args: Any, kwargs: Any) -> Any:
    """`gradient.new(indices, values, size)`, as torch's optimizers write it: no build for the host knows it."""
    if not is_sparse(args[0]) or kwargs or not all(isinstance(part, Tensor) for part in args[1:3]) or len(args) < 3:
        return NotImplemented
    return torch.sparse_coo_tensor(*args[1:], check_invariants=False)


def may_be_sparse(func: Any, args: Any) -> bool:
    return func in _ALWAYS or any(map(is_sparse, args[:2]))


def is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.sparse_coo and value.is_meta


def parts_of(tensor: Tensor) -> tuple[Tensor, Tensor]:
    return tensor._indices(), tensor._values()


def _is_handed_over(parts: tuple[Tensor, Tensor]) -> bool:
    """A gradient becomes its parameter's as it is; torch copies it only because the mode here has seen it."""
    if torch.is_grad_enabled() or not all(part.is_contiguous() for part in parts):
        return False
    node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)()
    return node is not None and node.name().endswith("AccumulateGrad")


def _like(tensor: Tensor, indices: Tensor, values: Tensor, coalesced: bool | None = None) -> Any:
    """Return a sparse tensor of the same shape with other indices and values."""
    is_coalesced = tensor.is_coalesced() if coalesced is None else coalesced
    options = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": META, "is_coalesced": is_coalesced}
    with torch._C._DisableTorchDispatch():
        return _MAKE(tensor.sparse_dim(), tensor.dense_dim(), tensor.shape, indices, values, **options)


def _flat(indices: Tensor) -> Tensor:
    """Return one number per index."""
    if indices.size(0) == 1:
        return indices.squeeze(0)
    return indices.mul(indices.new_ones(indices.size(0), 1)).sum(0)
