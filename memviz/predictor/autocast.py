"""`torch.autocast("cuda")` on tensors without data: casts by CUDA's lists, with its cache of cast weights.

torch casts above autograd, in kernels that support only real devices. Here casts happen one level lower, and only
after the program first enables autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS

from memviz.predictor.compat import AUTOCAST_SINCE, Patches, without_functions
from memviz.predictor.shapes import leaves_of

aten = torch.ops.aten
Kernel = Callable[..., Any]

TO_HALF = {
    *("_convolution", "_convolution.deprecated", "convolution", "conv1d", "conv2d", "conv3d", "conv_tbc"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "prelu"),
    *("addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm"),
    *("chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    *("_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
}
TO_SINGLE = {
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log2", "log10", "log1p", "reciprocal", "rsqrt"),
    *("sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus"),
    *("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm"),
    *("nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss"),
    *("multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss"),
    *("binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
}
ANSWER_IN_SINGLE = {
    *("softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "cumsum", "cumprod", "prod", "prod.dim_int"),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
}
TO_WIDEST = {
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot"),
    "scatter_add",
}
_NORMS = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
"""Norms without a dtype argument, and the overloads that return fp32."""
_ALL = TO_HALF | TO_SINGLE | ANSWER_IN_SINGLE | TO_WIDEST | set(_NORMS)
_Library: Any = torch.library.Library


class Autocast:
    """Autocast of one device. `around` wraps our kernels that replace torch's."""

    def __init__(self, release: tuple[int, int], on_cast: Callable[[Tensor], None]) -> None:
        self.release = release
        self._on_cast = on_cast
        """Called with each cast that enters the cache."""
        self.names = {name for name in _ALL if release >= AUTOCAST_SINCE.get(name, release)}
        self._wrapped: set[str] = set()
        self._regions: list[bool] = []
        """Enabled state of each nested autocast region; torch itself forgets it below autograd."""
        self._libraries: dict[str, Any] = {}
        """Registrations, by namespace of their operators."""
        self._library_types: dict[str, torch.dtype] = {}
        self._running = 0
        """Number of cast operators that are running; their parts are not cast again."""
        self._cast: dict[int, tuple[Tensor, Tensor]] = {}
        """Weights and their casts: kept until the outermost region ends."""

    @property
    def casts_now(self) -> bool:
        return bool(self._regions) and self._regions[-1] and not self._running

    def half_type(self) -> torch.dtype | None:
        """Return the type that operators of `TO_HALF` run in now; None if they run as they are."""
        return torch.get_autocast_dtype("cuda") if self.casts_now else None

    def begin(self, enabled: bool) -> None:
        self._regions.append(enabled)
        if not enabled:
            return
        if "aten" not in self._libraries:
            self._libraries["aten"] = _Library("aten", "IMPL")
            for name in self.names - self._wrapped:
                if _operator(name) is not None:
                    self._libraries["aten"].impl(name, self._kernel_with_casts(name), "AutogradMeta")
        # Operators of libraries, such as torchvision's, that have a kernel of autocast for CUDA.
        for full_name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"):
            namespace, _, name = full_name.partition("::")
            if namespace == "aten" or full_name in self._wrapped:
                continue
            if namespace not in self._libraries:
                self._libraries[namespace] = _Library(namespace, "IMPL")
            self._libraries[namespace].impl(name, self._library_kernel(full_name), "AutogradMeta")

    def _library_kernel(self, full_name: str) -> Kernel:
        """Run in the type that Python code registered; torchvision's C++ kernels take fp32 and return their input's."""
        namespace, _, name = full_name.partition("::")
        registered = getattr(OPDEFS.get(full_name), "_autocast_dtype", {}).get("cuda")
        self.names.add(full_name)
        self._library_types[full_name] = registered or torch.float32
        run = self.wrap(full_name, _run_above_autograd(_operator(name, getattr(torch.ops, namespace))))

        def return_input_type(*args: Any, **kwargs: Any) -> Any:
            casts, out = self.casts_now, run(*args, **kwargs)
            with without_functions():
                return out.to(args[0].dtype) if casts and _casts(out) and _casts(args[0]) else out

        return run if registered else return_input_type

    def end(self) -> None:
        self._regions.pop()
        if not self._regions:
            self._cast.clear()

    def close(self) -> None:
        self._cast.clear()
        for library in self._libraries.values():
            library._destroy()
        self._libraries.clear()

    def wrap(self, name: str, kernel: Kernel) -> Kernel:
        self._wrapped.add(name)

        def cast_before(*args: Any, **kwargs: Any) -> Any:
            if not self.casts_now:
                return kernel(*args, **kwargs)
            with without_functions():
                # Backward comes here with them on, and to them our tensors are on the card.
                args, kwargs = self.cast(name, args, kwargs)
            with self.running(name):
                return kernel(*args, **kwargs)

        return cast_before

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Suspend casts while a listed operator runs; the parts of other operators are still cast."""
        inside = name in self.names
        self._running += inside
        try:
            yield
        finally:
            self._running -= inside

    def _kernel_with_casts(self, name: str) -> Kernel:
        """Wrap torch's own kernel, which ours replaces, in the casts of autocast."""
        func = _operator(name)

        def norm(tensor: Tensor, *args: Any) -> Any:
            with without_functions():
                casts = self.casts_now and _casts(tensor)
            if casts:
                return getattr(aten.norm, _NORMS[name])(tensor, *args, dtype=torch.float32)
            return func._op_dk(torch._C.DispatchKey.Autograd, tensor, *args)

        if name in _NORMS:
            return norm
        return self.wrap(name, _run_above_autograd(func))

    def cast(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if name not in self.names:
            return args, kwargs
        if name in TO_HALF:
            return self._all_to(torch.get_autocast_dtype("cuda"), args, kwargs)
        if name in TO_SINGLE:
            return self._all_to(torch.float32, args, kwargs)
        if name in self._library_types:
            return self._all_to(self._library_types[name], args, kwargs)
        if name in TO_WIDEST:
            tensors = [leaf for leaf in leaves_of(args) if _casts(leaf)]
            wide = any(tensor.dtype == torch.float32 for tensor in tensors)
            return self._all_to(torch.float32 if wide else torch.get_autocast_dtype("cuda"), args, kwargs)
        if name in ANSWER_IN_SINGLE and _casts(args[0]) and kwargs.get("dtype") is None:
            if name in ("softmax.int", "log_softmax.int"):
                # `cross_entropy` gives the dtype of its input, which counts.
                dtype = args[2] if args[2:] else None
                return (*args[:2], dtype or torch.float32), {}
            return args, {**kwargs, "dtype": torch.float32}
        return args, kwargs

    def _all_to(self, dtype: torch.dtype, args: Any, kwargs: Any) -> tuple[Any, Any]:
        cast_kwargs = {key: self._to(value, dtype) for key, value in kwargs.items()}
        return tuple(self._to(value, dtype) for value in args), cast_kwargs

    def _to(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._to(item, dtype) for item in value)
        if not _casts(value) or value.dtype == dtype:
            return value
        is_weight = value.requires_grad and value.is_leaf and not value._is_view()
        if not is_weight or value.dtype != torch.float32 or dtype == torch.float32:
            return value.to(dtype)
        if not torch.is_autocast_cache_enabled() or torch.is_inference_mode_enabled():
            return value.to(dtype)
        cached = self._cast.get(id(value))
        if cached is None:
            cached = self._cast[id(value)] = (value, value.to(dtype))
            self._on_cast(cached[1])
        return cached[1]


def _operator(name: str, namespace: Any = aten) -> Any:
    """Return the operator, or None if this release lacks it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(namespace, packet, None), overload or "default", None)


def _run_above_autograd(func: Any) -> Kernel:
    """Return the operator's own kernel for autograd, which one for a device would replace."""
    for key in ("CompositeImplicitAutograd", "Autograd"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
            dispatch_key = getattr(torch._C.DispatchKey, key)
            return lambda *args, **kwargs: func._op_dk(dispatch_key, *args, **kwargs)

    def run_without_gradient(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return func(*args, **kwargs)

    return run_without_gradient


def _casts(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta and value.is_floating_point() and value.dtype != torch.float64


def with_device_renamed(function: Kernel) -> Kernel:
    return lambda *args: function(*("cuda" if arg == "meta" else arg for arg in args))


def follow_autocast(patches: Patches, autocast: Autocast) -> None:
    patches.callback(autocast.close)
    for owner in (torch, torch.amp, torch.amp.autocast_mode):
        for name in ("is_autocast_enabled", "get_autocast_dtype", "is_autocast_available", "set_autocast_dtype"):
            function = vars(owner).get(name)
            if function is not None:
                patches.replace(owner, name, with_device_renamed(function))
    patches.replace(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    region: Any = torch.amp.autocast_mode.autocast
    init, enter, leave = region.__init__, region.__enter__, region.__exit__

    def init_for_card(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(self, "cuda" if device_type == "meta" else device_type, *args, **kwargs)

    def entered(self: Any) -> Any:
        if self.device == "cuda":
            autocast.begin(self._enabled)
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        if self.device == "cuda":
            autocast.end()
        return leave(self, *error)

    for name, method in (("__init__", init_for_card), ("__enter__", entered), ("__exit__", left)):
        patches.replace(region, name, method)
