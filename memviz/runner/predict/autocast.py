"""`torch.autocast("cuda")` on tensors without data: casts by CUDA's lists, with its cache of cast weights.

torch casts above autograd, in kernels that know only tensors of a real device. The same is done here at the place
next below it, and only from the moment on when a program first asks for autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.patches import Patches

aten = torch.ops.aten
Kernel = Callable[..., Any]

TO_HALF = {
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "prelu"),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
    *("convolution", "scaled_dot_product_attention"),
}
TO_SINGLE = {
    *("exp", "expm1", "log", "log2", "log10", "log1p", "reciprocal", "rsqrt", "pow.Tensor_Scalar", "pow.Tensor_Tensor"),
    *("softplus", "layer_norm", "native_layer_norm", "group_norm", "nll_loss", "nll_loss2d", "kl_div", "l1_loss"),
    *("smooth_l1_loss", "huber_loss", "mse_loss", "binary_cross_entropy_with_logits", "cosine_similarity", "cdist"),
    "logsumexp",
}
ANSWER_IN_SINGLE = {
    *("softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "cumsum", "cumprod", "prod", "linalg_vector_norm"),
}
TO_WIDEST = {"addcmul", "addcdiv", "cat", "stack", "index_put"}
_Library: Any = torch.library.Library


class Autocast:
    """One for a device. `around` is for kernels of ours that stand where torch's would."""

    def __init__(self) -> None:
        self._wrapped: set[str] = set()
        self._regions: list[bool] = []
        """Whether each region that the program is in is switched on; torch itself forgets it below autograd."""
        self._library: Any = None
        self._cast: dict[int, tuple[Tensor, Tensor]] = {}
        """Weights and their casts: kept until the outermost region ends."""

    @property
    def is_on(self) -> bool:
        return bool(self._regions) and self._regions[-1]

    def begin(self, enabled: bool) -> None:
        self._regions.append(enabled)
        if enabled and self._library is None:
            self._library = _Library("aten", "IMPL")
            for name in (TO_HALF | TO_SINGLE | ANSWER_IN_SINGLE | TO_WIDEST) - self._wrapped:
                self._library.impl(name, self._below_autocast(name), "AutogradMeta")

    def end(self) -> None:
        self._regions.pop()
        if not self._regions:
            self._cast.clear()

    def close(self) -> None:
        self._cast.clear()
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def around(self, name: str, kernel: Kernel) -> Kernel:
        self._wrapped.add(name)

        def cast_before(*args: Any, **kwargs: Any) -> Any:
            if self.is_on:
                args, kwargs = self.cast(name, args, kwargs)
            return kernel(*args, **kwargs)

        return cast_before

    def _below_autocast(self, name: str) -> Kernel:
        """What torch itself has at the place where ours goes."""
        packet, _, overload = name.partition(".")
        func = getattr(getattr(aten, packet), overload or "default")
        composed = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        keys = torch._C.DispatchKey
        key = keys.CompositeImplicitAutograd if composed else keys.Autograd
        return self.around(name, lambda *args, **kwargs: func._op_dk(key, *args, **kwargs))

    def cast(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments as the operator gets them."""
        if name in TO_HALF:
            return self._all_to(torch.get_autocast_dtype("cuda"), args, kwargs)
        if name in TO_SINGLE:
            return self._all_to(torch.float32, args, kwargs)
        if name in TO_WIDEST:
            tensors = [each for each in _flat(args) if _casts(each)]
            wide = any(each.dtype == torch.float32 for each in tensors)
            return self._all_to(torch.float32 if wide else torch.get_autocast_dtype("cuda"), args, kwargs)
        if name in ANSWER_IN_SINGLE and _casts(args[0]) and kwargs.get("dtype") is None:
            if name in ("softmax.int", "log_softmax.int"):
                return (*args[:2], torch.float32), {}
            return args, {**kwargs, "dtype": torch.float32}
        return args, kwargs

    def _all_to(self, dtype: torch.dtype, args: Any, kwargs: Any) -> tuple[Any, Any]:
        changed = {key: self._to(each, dtype) for key, each in kwargs.items()}
        return tuple(self._to(each, dtype) for each in args), changed

    def _to(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._to(each, dtype) for each in value)
        if not _casts(value) or value.dtype == dtype:
            return value
        if not (value.requires_grad and value.is_leaf and value.dtype == torch.float32 and dtype != torch.float32):
            return value.to(dtype)
        if not torch.is_autocast_cache_enabled():
            return value.to(dtype)
        known = self._cast.get(id(value))
        if known is None:
            known = self._cast[id(value)] = (value, value.to(dtype))
        return known[1]


def _casts(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta and value.is_floating_point() and value.dtype != torch.float64


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


@contextmanager
def followed(autocast: Autocast) -> Iterator[None]:
    """Regions of "cuda", and of the device that our tensors name as theirs."""
    patches = Patches()
    try:
        _answer_for_our_device(patches)
        _notice_regions(patches, autocast)
        yield
    finally:
        patches.undo()
        autocast.close()


def _answer_for_our_device(patches: Patches) -> None:
    for owner in (torch, torch.amp, torch.amp.autocast_mode):
        for name in ("is_autocast_enabled", "get_autocast_dtype", "is_autocast_available", "set_autocast_dtype"):
            there = vars(owner).get(name)
            if there is not None:
                patches.replace(owner, name, _with_device_renamed(there))
    patches.replace(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)


def _with_device_renamed(there: Kernel) -> Kernel:
    return lambda *args: there(*("cuda" if each == "meta" else each for each in args))


def _notice_regions(patches: Patches, autocast: Autocast) -> None:
    region: Any = torch.amp.autocast_mode.autocast
    init, enter, leave = region.__init__, region.__enter__, region.__exit__

    def begins(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(self, "cuda" if device_type == "meta" else device_type, *args, **kwargs)

    def entered(self: Any) -> Any:
        if self.device == "cuda":
            autocast.begin(self._enabled)
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        if self.device == "cuda":
            autocast.end()
        return leave(self, *error)

    for name, function in (("__init__", begins), ("__enter__", entered), ("__exit__", left)):
        patches.replace(region, name, function)
