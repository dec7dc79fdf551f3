"""Shapes of results: rules for the commonest operators, cuDNN's memory formats, and a cache by argument shapes.

On tensors without data torch runs most operators in Python, at a third of a millisecond and more each: a training
step would take half a minute. A rule answers NotImplemented for any but the plain case, and torch's own rules
decide; a test compares them. cuDNN works channels last where the input or the weight does
(`cudnn_conv_suggest_memory_format`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

# Tensors in the arguments and results of operators: in lists, tuples and dicts, however nested.

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
"""Tensor types that are no custom subclass."""
_NESTED = (list, tuple, dict)


SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
"""Layouts whose operators are known."""


def parts_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the parts of a sparse tensor: its indices, two tensors in a compressed layout, and its values."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout is torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta and value.layout in SPARSE


def tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _NESTED):
        for item in value.values() if isinstance(value, dict) else value:
            # Most arguments are tensors and numbers, and a generator for each would cost more than the rest.
            if isinstance(item, Tensor):
                yield item
            elif isinstance(item, _NESTED):
                yield from tensors_of(item)


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the values in lists and tuples, however nested."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([map_tensors(change, item) for item in value])
    if isinstance(value, dict):
        return {key: map_tensors(change, item) for key, item in value.items()}
    return value


def written_arguments(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    for at, name in _written_places(func):
        yield from tensors_of(kwargs[name] if name in kwargs else args[at] if at < len(args) else ())


@cache
def _written_places(func: Any) -> tuple[tuple[int, str], ...]:
    """Return places and names, cached because torch makes its schema anew at each access."""
    arguments = enumerate(func._schema.arguments)
    return tuple((at, one.name) for at, one in arguments if one.alias_info is not None and one.alias_info.is_write)


def fills_its_storage(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill their memory without gaps or overlaps, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def lies_on_device(value: Any) -> bool:
    """Return whether a value is a tensor on the device, of any class."""
    return isinstance(value, Tensor) and value.is_meta


def any_on_device(value: Any) -> bool:
    """Return whether a tensor in lists, tuples and dicts is on the device; most often it is the first argument."""
    at_once = type(value) is tuple and bool(value) and is_on_device(value[0])
    return at_once or any(tensor.is_meta for tensor in tensors_of(value))


def is_on_device(value: Any) -> bool:
    """Return whether an argument is a plain tensor on the device."""
    return type(value) in PLAIN_TENSORS and value.is_meta


@cache
def draws(func: Any) -> bool:
    """Return whether an operator draws at random, cached because torch searches its tags each time."""
    return torch.Tag.nondeterministic_seeded in func.tags


def tensors_among(value: Any, depth: int = 6, *, with_owners: bool = False) -> Iterator[Tensor]:
    """Yield the tensors in containers and dataclasses, to a depth that no model's output exceeds.

    `with_owners` adds those of modules and optimizers.
    """
    items: Iterable[Any] = ()
    if isinstance(value, Tensor):
        yield value
    elif with_owners and isinstance(value, torch.nn.Module):
        yield from (*torch.nn.Module.parameters(value), *torch.nn.Module.buffers(value))
    elif with_owners and isinstance(value, torch.optim.Optimizer):
        yield from (weight for group in value.param_groups for weight in group["params"])
    elif isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, list | tuple | set):
        items = value
    elif is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, attribute.name, None) for attribute in fields(value)]
    for item in items if depth else ():
        yield from tensors_among(item, depth - 1, with_owners=with_owners)


_META = torch.device("meta")
_PLAIN_VALUES = (
    *(int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format),
    torch.Size,
)
_MOST_RESULTS = 1 << 14
"""Limit for a program whose shapes never repeat; then the cache is cleared."""
ShapeKey = tuple[Hashable, ...]
Make = Callable[[Any], Any]
"""From the arguments."""


def shape_key(args: Any, kwargs: Any) -> ShapeKey | None:
    """All that a result without data can depend on; None if that is uncertain, or no argument is on the device."""
    parts: list[Hashable] = [torch.get_default_dtype()]
    if not _add_to_key(parts, args):
        return None
    for name, value in kwargs.items():
        parts.append(name)
        if not _add_to_key(parts, (value,)):
            return None
    return tuple(parts)


def _add_to_key(parts: list[Hashable], values: Iterable[Any]) -> bool:
    for value in values:
        kind = type(value)
        if kind in PLAIN_TENSORS:
            if not value.is_meta or value.layout is not torch.strided or value.is_complex() or value.is_neg():
                return False
            parts += (value.shape, value.stride(), value.storage_offset(), value.dtype)
        elif kind is list or kind is tuple:
            parts.append((kind, len(value)))
            if not _add_to_key(parts, value):
                return False
        elif kind in _PLAIN_VALUES:
            # 1, 1.0 and True are equal, and make different types.
            parts.append((kind, value))
        else:
            return False
    return True


class ResultCache:
    """Cached results of one operator, by the shapes of its arguments."""

    def __init__(self) -> None:
        self._known: dict[ShapeKey, Make | None] = {}

    def of(self, func: Any, args: Any, kwargs: Any, shapes: ShapeKey, run: Callable[[Any, Any, Any], Any]) -> Any:
        """`run` gives it where it is not known yet."""
        make = self._known.get(shapes)
        if make is not None:
            return make(args)
        out = run(func, args, kwargs)
        if shapes not in self._known:
            if len(self._known) >= _MOST_RESULTS:
                self._known.clear()
            self._known[shapes] = _maker(out, args, kwargs)
        return out


class KnownResults(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators on tensors without data once for each combination of shapes: torch's own shape rules are slow."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._results: defaultdict[Any, ResultCache] = defaultdict(ResultCache)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        shapes = shape_key(args, kwargs) if self._depends_on_shapes(func) and "out" not in kwargs else None
        if shapes is None:
            return func(*args, **kwargs)
        return self._results[func].of(func, args, kwargs, shapes, lambda func, args, kwargs: func(*args, **kwargs))

    @staticmethod
    @cache
    def _depends_on_shapes(func: Any) -> bool:
        """Return False for views, and for what changes its argument's shape."""
        return isinstance(func, OpOverload) and not func.is_view and torch.Tag.inplace_view not in func.tags


def _maker(out: Any, args: Any, kwargs: Any) -> Make | None:
    """Return a function that creates an equal result; None if it is not only new tensors with separate storages.

    An argument written in place is returned as it is: operators that change shapes do not come here.
    """
    if out is None:
        return lambda args: None
    if args and out is args[0]:
        return lambda args: args[0]
    storages = {tensor.untyped_storage()._cdata for tensor in tensors_of((args, kwargs))}
    if type(out) not in (tuple, list):
        return _maker_of_one(out, storages)
    makers: list[Make] = []
    for item in out:
        make = _maker_of_one(item, storages)
        if make is None:
            return None
        makers.append(make)
    kind = type(out)
    return lambda args: kind([make(args) for make in makers])


def _maker_of_one(tensor: Any, storages: set[int]) -> Make | None:
    if type(tensor) is not Tensor:
        return (lambda args: tensor) if type(tensor) in (int, float, bool, type(None)) else None
    if not tensor.is_meta or tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_neg():
        return None
    storage = tensor.untyped_storage()
    if storage._cdata in storages or tensor.requires_grad or tensor.storage_offset():
        return None
    storages.add(storage._cdata)
    size, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype

    def make(args: Any) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=_META)

    return make if make(()).untyped_storage().nbytes() == storage.nbytes() else None


aten = torch.ops.aten


def convolution_shape(func: Any, args: Any, kwargs: Any) -> Any:
    tensor, weight = args[0], args[1]
    if not tensor.is_meta or tensor.is_contiguous() and weight.is_contiguous():
        return NotImplemented
    layout = convolution_layout(tensor, weight)
    if layout is torch.contiguous_format:
        return NotImplemented
    return torch.empty_like(func(*args, **kwargs), memory_format=layout)


def convolution_layout(tensor: Tensor, weight: Tensor) -> torch.memory_format:
    """Return the layout of a convolution; 1-D and float64 convolutions have no channels-last kernels."""
    if tensor.dim() not in (4, 5) or torch.float64 in (tensor.dtype, weight.dtype):
        return torch.contiguous_format
    layout = image_layout(tensor)
    return image_layout(weight) if layout is torch.contiguous_format else layout


def image_layout(tensor: Tensor) -> torch.memory_format:
    """Return the layout that a tensor counts as; where both would be true, strides of dimensions of size 1 decide."""
    from torch._prims_common import suggest_memory_format

    layout: torch.memory_format = suggest_memory_format(tensor)
    return layout


ShapeRule = Callable[[Any, Any, Any], Any]
"""Operator, arguments of which some are on the device, keyword arguments -> the result, or NotImplemented."""

HALVES = (torch.float16, torch.bfloat16)
MASKS = (torch.bool, torch.uint8)


def _new(size: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device=_META)


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN_TENSORS and value.is_meta and value.is_contiguous() and value.is_floating_point()


def _with_scalar(func: Any, args: Any, kwargs: Any) -> Any:
    """A tensor and a number, which may be a tensor without dimensions."""
    one, other = args[0], args[1]
    if len(args) > 2 or not isinstance(one, Tensor):
        return NotImplemented
    if not isinstance(other, Tensor):
        return _with_number(func, args, kwargs)
    if one.dim() and other.dim():
        return NotImplemented
    # Of what has no dimension only the number matters.
    tensor, number = (one, other) if one.dim() else (other, one)
    return NotImplemented if number.is_complex() else _with_number(func, (tensor,), {})


def _with_number(func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if any(isinstance(arg, Tensor | complex) for arg in args[1:]) or not tensor.is_floating_point():
        return NotImplemented
    return (
        _like_one_tensor(tensor)
        if type(tensor) in PLAIN_TENSORS and tensor.is_meta and tensor.dim()
        else NotImplemented
    )


def _like_one_tensor(tensor: Tensor) -> Any:
    """Return the result of a tensor and a number.

    It takes over where dimensions of size 1 stand among the strides, on which it depends whether it counts as channels
    last. torch's own rule for shapes does not.
    """
    shape, strides = tensor.shape, tensor.stride()
    if 1 not in shape or 0 in strides:
        return _new(shape, tensor.dtype) if tensor.is_contiguous() else NotImplemented
    result, step = [0] * len(shape), 1
    for at in sorted(range(len(shape)), key=lambda at: (strides[at], shape[at], -at)):
        result[at], step = step, step * shape[at]
    return torch.empty_strided(shape, result, dtype=tensor.dtype, device=_META)


def _product_of_dtype(func: Any, args: Any, kwargs: Any) -> Any:
    """Return a product with `out_dtype`; torch's own rule of `baddbmm` has none."""
    at = next(at for at, arg in enumerate(args) if isinstance(arg, torch.dtype))
    left, right = args[at - 2 : at]
    shape, out = (*left.shape[:-1], right.size(-1)), kwargs.get("out")
    if not (left.is_meta and right.is_meta) or left.size(-1) != right.size(-2):
        return NotImplemented
    return _new(shape, args[at]) if out is None else out if out.shape == shape else NotImplemented


def _layer_norm(func: Any, args: Any, kwargs: Any) -> Any:
    tensor, normalized = args[0], args[1]
    width = len(normalized)
    if not _is_plain(tensor) or list(tensor.shape[-width:]) != list(normalized):
        return NotImplemented
    rows = (*tensor.shape[:-width], *([1] * width))
    wide = torch.float32 if tensor.dtype in HALVES else tensor.dtype
    return _new(tensor.shape, tensor.dtype), _new(rows, wide), _new(rows, wide)


def _layer_norm_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of the input, the weight and the bias, as far as they are wanted."""
    gradient, tensor = args[0], args[1]
    weight, bias, wanted = args[5], args[6], args[7]
    if not (_is_plain(gradient) and _is_plain(tensor)):
        return NotImplemented
    return tuple(
        _new(like.shape, like.dtype) if want and like is not None else None
        for want, like in zip(wanted, (tensor, weight, bias), strict=True)
    )


def _grouped_product(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the product of grouped matrices; rows of the result are aligned to 16 bytes.

    torch's own rule accepts only bfloat16, unlike its kernels.
    """
    left, right = args[0], args[1]
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    if left.dtype != right.dtype or left.dtype == torch.bfloat16 or not left.is_meta:
        return NotImplemented
    groups = [] if left.dim() + right.dim() == 5 else [offsets.size(0) if left.dim() == 2 else left.size(0)]
    rows, columns = left.size(-2), right.size(-1)
    wide = 16 // left.element_size()
    row = -(-columns // wide) * wide
    strides = [rows * row, row, 1][-len(groups) - 2 :]
    return torch.empty_strided([*groups, rows, columns], strides, dtype=left.dtype, device=_META)


def _reduced_loss(func: Any, args: Any, kwargs: Any) -> Any:
    """Return a reduced loss in the block of the losses themselves, which CUDA resizes to one number (`Loss.cpp`)."""
    out = func(*args, **kwargs)
    if not args[0].is_meta or out.dim():
        return out
    size = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
    return out.new_empty(size).resize_(())


def _in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """Lists of tensors that are changed where they are; shapes stay."""
    lists = [arg for arg in args if isinstance(arg, list)]
    if len({tuple(tensor.shape for tensor in tensors) for tensors in lists if _all_on_device(tensors)}) != 1:
        return NotImplemented
    return None if _all_on_device(args[0]) else NotImplemented


def _all_on_device(tensors: list[Any]) -> bool:
    return all(isinstance(tensor, Tensor) and tensor.is_meta for tensor in tensors)


def _masked_fill(func: Any, args: Any, kwargs: Any) -> Any:
    """A card takes the number of a scalar tensor of the host; torch's rule for shapes wants it on the device."""
    value = args[2]
    if not args[0].is_meta or value.is_meta or value.dim():
        return NotImplemented
    return func(*args[:2], _new((), value.dtype))


_FOREACH_IN_PLACE = (
    *(aten._foreach_add_.List, aten._foreach_add_.Scalar, aten._foreach_mul_.Scalar, aten._foreach_lerp_.Scalar),
    *(aten._foreach_addcmul_.Scalar, aten._foreach_addcdiv_.ScalarList, aten._foreach_div_.ScalarList),
)


def _unpadded(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the rows of a jagged tensor, whose number backward knows; torch has no rule for it."""
    rows = args[2] if len(args) > 2 else kwargs.get("total_L")
    return NotImplemented if rows is None else args[0].new_empty((rows, *args[0].shape[2:]))


def _geqrf(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    *batch, rows, columns = args[0].shape
    return args[0].new_empty((*batch, columns, rows)).mT, args[0].new_empty((*batch, min(rows, columns)))


# Operators without a rule of torch's own, whose gradient has the shape of their input.
_GRADIENTS = (
    *(aten.multi_margin_loss_backward.default, aten.multilabel_margin_loss_backward.default),
    aten.fractional_max_pool3d_backward.default,
)


def _product_of_int4(func: Any, args: Any, kwargs: Any) -> Tensor:
    """Multiply by tiles of 8 rows; torch's own rule needs a device that only its fake tensors have."""
    return args[0].new_empty(args[0].shape[0], 8 * args[1].shape[0])  # type: ignore[no-any-return]


_QUANTIZED_WITH_MASK = (
    aten.fake_quantize_per_tensor_affine_cachemask.default,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
    aten.fake_quantize_per_channel_affine_cachemask.default,
)
_QUANTIZED_BY_LEARNED = (
    aten._fake_quantize_learnable_per_tensor_affine.default,
    aten._fake_quantize_learnable_per_channel_affine.default,
)
_GRADIENTS_OF_LEARNED = (
    aten._fake_quantize_learnable_per_tensor_affine_backward.default,
    aten._fake_quantize_learnable_per_channel_affine_backward.default,
)
FUSED_OPTIMIZERS = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
# Operators without a rule of torch's own that torch.distributions calls; arguments have one shape.
_SAMPLES = tuple(
    getattr(aten, name).default for name in ("_sample_dirichlet", "_dirichlet_grad", "_standard_gamma_grad", "binomial")
)

_OF_SOME_RELEASES = {
    "_grouped_mm": _grouped_product,
    "_padded_dense_to_jagged_forward": _unpadded,
    "_weight_int4pack_mm": _product_of_int4,
}
SHAPE_RULES: dict[Any, ShapeRule] = {
    **dict.fromkeys((aten.mul.Scalar, aten.div.Scalar, aten.add.Scalar), _with_number),
    **{getattr(aten, name).Tensor: _with_scalar for name in ("add", "sub", "mul", "div")},
    aten.geqrf.default: _geqrf,
    # The rounded tensor, and a mask of the elements in range that backward reads.
    **dict.fromkeys(
        _QUANTIZED_WITH_MASK,
        lambda func, args, kwargs: (torch.empty_like(args[0]), torch.empty_like(args[0], dtype=torch.bool)),
    ),
    **dict.fromkeys(_GRADIENTS_OF_LEARNED, lambda func, args, kwargs: tuple(map(torch.empty_like, args[1:4]))),
    **dict.fromkeys((*_QUANTIZED_BY_LEARNED, *_SAMPLES), lambda func, args, kwargs: torch.empty_like(args[0])),
    **dict.fromkeys(_GRADIENTS, lambda func, args, kwargs: torch.empty_like(args[1])),
    **{
        getattr(packet, overload): _product_of_dtype
        for packet in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)
        for overload in ("dtype", "dtype_out")
        if hasattr(packet, overload)
    },
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    **{getattr(aten, name).default: _reduced_loss for name in ("mse_loss", "smooth_l1_loss", "binary_cross_entropy")},
    **dict.fromkeys(
        (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor),
        lambda func, args, kwargs: _new(args[1].shape, args[1].dtype) if args[1].is_meta else NotImplemented,
    ),
    **{getattr(aten, name).default: rule for name, rule in _OF_SOME_RELEASES.items() if hasattr(aten, name)},
    **dict.fromkeys(_FOREACH_IN_PLACE, _in_place),
    # Optimizers in one kernel, of which torch has no rule: they write where weights and states are.
    **{
        getattr(packet, overload): lambda func, args, kwargs: None if _all_on_device(args[0]) else NotImplemented
        for packet in (getattr(aten, name) for name in FUSED_OPTIMIZERS if hasattr(aten, name))
        for overload in packet.overloads()
    },
    aten.convolution.default: convolution_shape,
    **dict.fromkeys((aten.masked_fill.Tensor, aten.masked_fill_.Tensor), _masked_fill),
}
