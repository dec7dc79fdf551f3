"""Sparse tensors, such as an embedding's gradients and the edges of a graph: memory holds their indices and values.

torch runs few operators on sparse meta tensors, and in some loses the number of values. Those below are decomposed
into operators on the parts, as CUDA's code does (SparseCUDATensor.cu, SparseCUDATensorMath.cu, SparseBlas.cpp,
SparseTensorMath.cpp, TensorConversions.cpp); all others raise an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from memviz.predictor.assumptions import NOT_STATED
from memviz.predictor.cuda.machine import META
from memviz.predictor.questions import count_question
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.rules import SPARSE_PRODUCT, rule_of
from memviz.predictor.shapes import SPARSE, is_sparse, parts_of

aten = torch.ops.aten
_MAKE = aten._sparse_coo_tensor_with_dims_and_tensors.default
_BAGS = aten._embedding_bag_backward.default
_COPY = aten._to_copy.default
_MAKE_COMPRESSED = aten.sparse_compressed_tensor.comp_plain_value_size
_TO_ROWS, _TO_COLUMNS = aten._to_sparse_csr.default, aten._to_sparse_csc.default
_FROM_DENSE = (aten._to_sparse.default, aten._to_sparse.sparse_dim)
_ALWAYS = {_MAKE, _MAKE_COMPRESSED, _BAGS, _COPY, *_FROM_DENSE, _TO_ROWS, _TO_COLUMNS, aten.cat.default}
"""Operators whose arguments do not show whether the result is sparse."""
_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
_OF_VALUES = (
    *(aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar, aten.pow.Tensor_Scalar),
    *(aten.neg.default, aten.abs.default, aten.sqrt.default, aten.relu.default, aten.sign.default),
    *(aten.sin.default, aten.tanh.default, aten.log1p.default, aten.expm1.default),
)
"""Operators that change each value, with numbers beside them."""
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
            **{operator: partial(self._of_values, operator) for operator in _OF_VALUES},
            aten.mul_.Tensor: partial(self._values_changed, aten.mul_.Tensor),
            aten.div_.Tensor: partial(self._values_changed, aten.div_.Tensor),
            aten.sum.default: lambda tensor, **kwargs: _values(tensor).sum(**kwargs),
            aten._sparse_sum.default: lambda tensor, **kwargs: _values(tensor).sum(**kwargs),
            aten._sparse_sum.dim: self._summed,
            aten._sparse_softmax.default: lambda tensor, *args: self._normalized(tensor),
            aten._sparse_softmax_backward_data.default: lambda gradient, *args: self._normalized(gradient),
            aten.t.default: self._turned,
            aten.transpose.int: self._turned,
            aten.cat.default: self._joined,
            _MAKE_COMPRESSED: self._make_compressed,
            _TO_ROWS: partial(self._compressed, torch.sparse_csr),
            _TO_COLUMNS: partial(self._compressed, torch.sparse_csc),
            aten.sparse_mask.default: self._masked,
            aten._to_dense.default: self._dense,
            aten.norm.ScalarOpt_dim: self._norm,
            _BAGS: _of_bags,
            aten._sparse_addmm.default: self._product_added,
            aten.addmm.default: self._product_added,
            aten.mm.default: self._product,
            aten.sparse_sampled_addmm.default: self._sampled,
            aten.mv.default: self._product_with_vector,
        }

    def _make(self, *args: Any, **kwargs: Any) -> Any:
        """Make a sparse tensor of two existing tensors, without memory of its own."""
        if args[4].is_meta:
            self._recorder.operators.add(_MAKE.overloadpacket.__name__)
        with torch._C._DisableTorchDispatch():
            return _MAKE(*args, **{**kwargs, "device": args[4].device})

    def _coo(self, shape: Any, indices: Tensor, values: Tensor, *, coalesced: bool = False) -> Any:
        options = {"dtype": values.dtype, "layout": torch.sparse_coo, "is_coalesced": coalesced}
        return self._make(indices.size(0), len(shape) - indices.size(0), shape, indices, values, **options)

    def _from_dense(self, tensor: Tensor, sparse_dim: int | None = None, *, layout: Any = None, **kwargs: Any) -> Any:
        """Take the elements that are not 0, which are all of them where values are not computed."""
        is_known_on_host = not tensor.is_meta and not self._recorder.host.is_unknown(tensor)
        if not is_known_on_host and tensor.layout in (torch.sparse_csr, torch.sparse_csc):
            first, second, values = parts_of(tensor)
            return _like_coo(tensor, second.new_empty(2, second.size(0)), values)
        is_dense = tensor.layout is torch.strided and tensor.dim() > 0
        if is_known_on_host or not is_dense or layout not in (None, torch.sparse_coo) or any(kwargs.values()):
            return NotImplemented
        dims = tensor.dim() if sparse_dim is None else sparse_dim
        rows = tensor if dims == tensor.dim() else tensor.flatten(dims).ne(0).any(-1)
        indices = rows.nonzero().t().clone(memory_format=torch.contiguous_format)
        values = tensor[tuple(indices.unbind(0))]
        return self._coo(tensor.shape, indices, values, coalesced=True)

    def _coalesced(self, tensor: Tensor) -> Any:
        indices, values = parts_of(tensor)
        count = indices.size(1)
        if count < 2:
            return _like(tensor, indices.clone(), values.clone(), coalesced=True)
        self._recorder.operators.add(aten._coalesce.__name__)
        flat = _flat_indices(indices) if indices.size(0) > 1 else indices.squeeze(0).clone()
        order, first = (torch.empty(count, dtype=torch.long, device=META) for _ in range(2))
        left = self._count_distinct(tensor, indices)
        flat.resize_(1, left)
        summed = values.new_empty(left, *values.shape[1:])
        values.contiguous()
        del order, first
        return _like(
            tensor, flat if indices.size(0) == 1 else indices.new_empty(indices.size(0), left), summed, coalesced=True
        )

    def _count_distinct(self, tensor: Tensor, indices: Tensor) -> int:
        count, most = indices.size(1), prod(tensor.shape[: tensor.sparse_dim()])
        values = self._recorder.host.known.of(indices)
        if values is not None:
            return int(torch.unique(values, dim=1).size(1))
        assumptions = self._recorder.assumptions
        answer = assumptions.stated_answer(count_question(count, least=1))
        if answer is NOT_STATED:
            assumptions.state(ALL_DIFFERENT, is_size=True)
            answer = assumptions.took(min(count, most))
        return int(answer)

    def _cloned(self, tensor: Tensor, **kwargs: Any) -> Any:
        if not is_sparse(tensor):
            return NotImplemented
        parts = parts_of(tensor)
        if not _is_handed_over(parts):
            parts = tuple(part.clone() for part in parts)
        return _like(tensor, *parts)

    def _copied(self, tensor: Tensor, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        """Copy between host and device, or there to another dtype."""
        to = tensor.device if device is None else torch.device(device)
        if tensor.layout not in SPARSE or (to.type == "cpu" and not tensor.is_meta):
            return NotImplemented
        to = torch.device("cpu") if to.type == "cpu" else META
        *indices, values = parts_of(tensor)
        return _like(tensor, *(part.to(to, copy=True) for part in indices), values.to(to, dtype, copy=True))

    def _of_values(self, operator: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Change each value, alone, by a number, or by the dense tensor's element at its place."""
        if not is_sparse(tensor) or kwargs or any(map(is_sparse, args)):
            return NotImplemented
        *indices, values = parts_of(tensor)
        if args and isinstance(args[0], Tensor) and args[0].dim():
            if len(indices) > 1 or args[0].shape != tensor.shape:
                return NotImplemented
            args = (args[0][tuple(indices[0].unbind(0))],)
        return _like(tensor, *(part.clone() for part in indices), operator(values, *args))

    def _values_changed(self, operator: Any, tensor: Tensor, other: Any) -> Any:
        if not is_sparse(tensor) or is_sparse(other) or (isinstance(other, Tensor) and other.dim()):
            return NotImplemented
        operator(parts_of(tensor)[-1], other)
        return tensor

    def _summed(self, tensor: Tensor, dims: Any) -> Any:
        if not is_sparse(tensor) or tensor.layout is not torch.sparse_coo:
            return NotImplemented
        indices, values = parts_of(tensor)
        gone = sorted({dim % tensor.dim() for dim in dims})
        dense = [dim - tensor.sparse_dim() + 1 for dim in gone if dim >= tensor.sparse_dim()]
        values = values.sum(dense) if dense else values.clone()
        left = [dim for dim in range(tensor.sparse_dim()) if dim not in gone]
        if not left:
            return values.sum(0)
        shape = [size for dim, size in enumerate(tensor.shape) if dim not in gone]
        return self._coo(shape, indices[left].contiguous(), values)

    def _normalized(self, tensor: Tensor) -> Any:
        """Take a softmax, or its gradient: values are sorted into pools, one per row."""
        indices, values = parts_of(tensor if tensor.is_coalesced() else self._coalesced(tensor))
        out = _like(tensor, indices.clone(), torch.zeros_like(values))
        places = [torch.empty(indices.size(1), dtype=torch.long, device=META) for _ in range(3)]
        del places
        return out

    def _turned(self, tensor: Tensor, *dims: int) -> Any:
        if not is_sparse(tensor):
            return NotImplemented
        if tensor.layout is not torch.sparse_coo:
            turned = torch.sparse_csc if tensor.layout is torch.sparse_csr else torch.sparse_csr
            return _of_layout(turned, tensor.shape[::-1], *parts_of(tensor))
        first, second = sorted(dim % tensor.dim() for dim in dims) if dims else (0, 1)
        if second >= tensor.sparse_dim():
            return NotImplemented
        indices, values = (part.clone() for part in parts_of(tensor))
        torch.zeros_like(indices[0])
        shape = list(tensor.shape)
        shape[first], shape[second] = shape[second], shape[first]
        return self._coo(shape, indices, values)

    def _joined(self, tensors: Any, dim: int = 0) -> Any:
        """Join tensors along a sparse dimension: indices and values one after the other."""
        if not all(is_sparse(tensor) and tensor.layout is torch.sparse_coo for tensor in tensors):
            return NotImplemented
        first = tensors[0]
        dim %= first.dim()
        if dim >= first.sparse_dim():
            return NotImplemented
        indices = torch.cat([tensor._indices() for tensor in tensors], 1)
        values = torch.cat([tensor._values() for tensor in tensors])
        shape = [*first.shape[:dim], sum(tensor.size(dim) for tensor in tensors), *first.shape[dim + 1 :]]
        return self._coo(shape, indices, values)

    def _make_compressed(self, first: Tensor, second: Tensor, values: Tensor, size: Any, **kwargs: Any) -> Any:
        if not values.is_meta:
            return NotImplemented
        return _of_layout(kwargs["layout"], size, first, second, values)

    def _compressed(self, layout: torch.layout, tensor: Tensor, dense_dim: int | None = None) -> Any:
        """Convert to CSR or CSC, by way of COO where a tensor is dense."""
        if not tensor.is_meta or dense_dim or tensor.dim() != 2:
            return NotImplemented
        if tensor.layout is layout:
            return tensor
        if tensor.layout in (torch.sparse_csr, torch.sparse_csc):
            first, second, values = parts_of(tensor)
            places = first.new_empty(2, values.size(0))
            order = places.select(0, 0).mul(tensor.size(0)).add_(places.select(0, 1)).argsort()
            places = places.index_select(1, order)
            begins = first.new_empty(tensor.size(int(layout is torch.sparse_csc)) + 1)
            return _of_layout(layout, tensor.shape, begins, places.select(0, 1), values.index_select(0, order))
        coo = tensor if is_sparse(tensor) else self._from_dense(tensor)
        if coo is NotImplemented:
            return coo
        indices, values = parts_of(coo if coo.is_coalesced() else self._coalesced(coo))
        columns_first = layout is torch.sparse_csc
        if columns_first:
            order = indices[1].argsort()
            indices, values = indices.index_select(1, order), values.index_select(0, order)
        begins = indices.new_empty(tensor.size(int(columns_first)) + 1)
        return _of_layout(layout, tensor.shape, begins, indices[int(not columns_first)], values)

    def _added_to(self, first: Tensor, second: Any, *, alpha: Any = 1) -> Any:
        if not is_sparse(second):
            return NotImplemented
        if is_sparse(first):
            first.data = self._added(first, second, alpha=alpha)
            return first
        indices, values = parts_of(second)
        if indices.size(1) and not second.is_coalesced():
            rows = prod(first.shape[: second.sparse_dim()])
            first.view(rows, -1).index_add_(0, _flat_indices(indices), values.reshape(indices.size(1), -1), alpha=alpha)
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
        if not is_sparse(mask):
            return NotImplemented
        indices, values = parts_of(mask)
        if is_sparse(dense):
            of_both = [_flat_indices(dense._indices()), _flat_indices(indices)]
            del of_both
            return _like(mask, indices.clone(), torch.zeros_like(values))
        ones = values.new_ones(1).expand_as(values)
        gathered = dense[tuple(indices.unbind(0))]
        return _like(mask, indices.clone(), gathered.mul(ones))

    def _dense(self, tensor: Tensor, dtype: Any = None, masked_grad: Any = None) -> Any:
        if tensor.layout is not torch.sparse_coo:
            tensor = self._from_dense(tensor)
        return self._added_to(torch.zeros(tensor.shape, dtype=dtype or tensor.dtype, device=META), tensor)

    def _norm(self, tensor: Tensor, power: Any, dim: Any, keepdim: bool = False) -> Any:
        if dim or keepdim:
            return NotImplemented
        return (tensor if tensor.is_coalesced() else self._coalesced(tensor))._values().norm(power)

    def _product(self, tensor: Any, dense: Any) -> Any:
        if is_sparse(tensor) == is_sparse(dense):
            return NotImplemented
        if is_sparse(dense):
            return self._product(self._turned(dense), tensor.t()).t()
        return self._product_added(dense.new_zeros(tensor.size(0), dense.size(1)), tensor, dense)

    def _sampled(self, tensor: Tensor, first: Tensor, second: Tensor, **factors: Any) -> Any:
        """Compute the elements of a product that the sparse tensor has."""
        self._recorder.missing[rule_of(SPARSE_PRODUCT)] = (None, None)
        out = self._cloned(tensor)
        for dense in (first, second):
            if not dense.is_contiguous() and not dense.t().is_contiguous():
                dense.contiguous()
        return out

    def _product_with_vector(self, tensor: Tensor, vector: Any) -> Any:
        if not is_sparse(tensor):
            return NotImplemented
        return self._product(tensor, vector.unsqueeze(1)).squeeze(1)

    def _product_added(self, first: Tensor, tensor: Tensor, dense: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        """Follow cuSPARSE's layout: CSR row offsets, 32-bit column indices of COO, and column-major results."""
        if not is_sparse(tensor) or is_sparse(dense):
            return NotImplemented
        self._recorder.assumptions.say(
            "cuSPARSE takes a workspace for products of sparse tensors; it is not predicted."
        )
        self._recorder.operators.add(SPARSE_PRODUCT)
        self._recorder.missing[rule_of(SPARSE_PRODUCT)] = (None, None)
        if tensor.layout is torch.sparse_csc:
            tensor = self._compressed(torch.sparse_csr, tensor)
        out = dense.new_empty(tensor.size(0), dense.size(1))
        beside: list[Tensor] = []
        if tensor.layout is torch.sparse_coo:
            indices = (tensor if tensor.is_coalesced() else self._coalesced(tensor))._indices()
            beside = [indices.new_empty(tensor.size(0) + 1, dtype=torch.int)]
            indices[0].to(torch.int)
            beside.append(indices[1].to(torch.int))
            if not out.t().is_contiguous():
                beside.append(out.t().clone(memory_format=torch.contiguous_format))
        if not dense.t().is_contiguous() and dense.stride(1) != 1:
            dense.contiguous()
        del beside
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


def _values(tensor: Tensor) -> Any:
    return parts_of(tensor)[-1] if is_sparse(tensor) else tensor


def _is_handed_over(parts: tuple[Tensor, ...]) -> bool:
    """A gradient becomes its parameter's as it is; torch copies it only because the mode here has seen it."""
    if torch.is_grad_enabled() or not all(part.is_contiguous() for part in parts):
        return False
    node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)()
    return node is not None and node.name().endswith("AccumulateGrad")


def _like(tensor: Tensor, *parts: Tensor, coalesced: bool | None = None) -> Any:
    """Return a sparse tensor of the same shape with other indices and values."""
    if tensor.layout is not torch.sparse_coo:
        return _of_layout(tensor.layout, tensor.shape, *parts)
    indices, values = parts
    return _like_coo(tensor, indices, values, tensor.is_coalesced() if coalesced is None else coalesced)


def _like_coo(tensor: Tensor, indices: Tensor, values: Tensor, coalesced: bool = True) -> Any:
    device = META if values.is_meta else values.device
    options = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": device, "is_coalesced": coalesced}
    with torch._C._DisableTorchDispatch():
        return _MAKE(indices.size(0), values.dim() - 1, tensor.shape, indices, values, **options)


def _of_layout(layout: torch.layout, shape: Any, *parts: Tensor) -> Any:
    """Return a tensor in a compressed layout of two tensors of indices and one of values."""
    first, second, values = parts
    with torch._C._DisableTorchDispatch():
        return torch.sparse_compressed_tensor(first, second, values, shape, layout=layout, check_invariants=False)


def _flat_indices(indices: Tensor) -> Tensor:
    """Return one number per index."""
    if indices.size(0) == 1:
        return indices.squeeze(0)
    return indices.mul(indices.new_ones(indices.size(0), 1)).sum(0)
