"""Private names of torch, what is replaced while a device is in use, and what differs between releases.

The predictor runs the installed torch's Python. Where another release's, from 2.1 to 2.13, allocates differently or in
another order, `follow_release` puts that order in its place; the constants are for rules of operators, whose kernels
are C++. The Python of all releases was compared function by function: `nn/init.py`, `nn/functional.py`, `nn/modules`,
`nn/utils`, `optim`, `amp`, `functional.py`, `_tensor.py` and `utils/checkpoint.py`. Not followed, since they are rare
or a few bytes:

* before 2.3, `clip_grad_norm_` with the maximum norm takes the norms one by one;
* before 2.4, optimizers other than Adam with `capturable=True` (RMSprop, Rprop, Adadelta) do not exist;
* before 2.5, `GradScaler.step` of a fused optimizer does not multiply the scale (4 bytes);
* before 2.5, `TransformerEncoderLayer` takes its fast path although modules have hooks;
* before 2.11, a checkpoint recomputes without the default device of its forward;
* in 2.13, `multi_head_attention_forward` does not copy results whose heads are contiguous already.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional, init
from torch.nn.modules import transformer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from memviz.errors import UsageError

without_functions: Any = torch._C.DisableTorchFunction
"""Context without `__torch_function__`: tensors as they are here, not as the program sees them."""
without_modes: Any = _disable_current_modes
without_dispatch: Any = torch._C._DisableTorchDispatch
"""The same for plain tensors, in a tenth of the time: subclasses and modes entered within do not work."""
function_modes: Callable[[], list[Any]] = _get_current_function_mode_stack


def inside_operator() -> bool:
    """Return whether an operator of the program is being predicted: its mode is left until it has its result."""
    return not _get_current_dispatch_mode_stack()


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Leave the modes: torch's compiler enables functions again, so that disabling them is not enough for its code."""
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


class StandIn(type):
    """Metaclass of classes in place of torch's own: instances are those of `real`."""

    real: type

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.real)


def required(owner: Any, name: str) -> Callable[..., Any]:
    """Return a private function that the predictor cannot do without."""
    function: Callable[..., Any] | None = getattr(owner, name, None)
    if function is None:
        raise UsageError(
            f"torch {torch.__version__} has no {owner.__name__}.{name}, which the predictor needs for backward; "
            "use a release from 2.6 to 2.13."
        )
    return function


class Patches(ExitStack):
    """Attributes replaced within a `with` block."""

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute and return its old value; None if this release of torch lacks it."""
        before = vars(owner).get(name)
        if before is not None:
            self.put(owner, name, value)
        return before

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute that the owner may lack, or inherit."""
        if name in vars(owner):
            self.callback(setattr, owner, name, vars(owner)[name])
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    def restore(self, names: MutableMapping[Any, Any], name: Any) -> None:
        """Put an entry back at the end of the block, as it is now."""
        if name in names:
            self.callback(names.__setitem__, name, names[name])
        else:
            self.callback(names.pop, name, None)

    def put_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.put(owner, name, value)

    def after_import(
        self,
        name: str,
        change: Callable[[ModuleType], None],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Change a module of another library as soon as it is imported; now, if it is already."""
        module = sys.modules.get(name)
        if module is not None and not isinstance(module, LateDynamo):
            return change(module)
        finder = _Changing(name, change, around)
        sys.meta_path.insert(0, finder)
        self.callback(sys.meta_path.remove, finder)
        return None


class _Changing:
    """Finder of one module, which is changed when its own code has run, within `around`."""

    def __init__(
        self, name: str, change: Callable[[ModuleType], None], around: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._name = name
        self._change = change
        self._around = around

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with self._around():
                    run(module)
                self._change(module)

            # On the loader itself, which people and tracebacks ask for the source.
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


Release = tuple[int, int]

# Operators.

AUTOCAST_SINCE = {"rms_norm": (2, 12)}
"""The first release whose autocast casts them, where it is not as old as the predictor knows."""
EINSUM_REORDERS_SINCE = (2, 9)
"""torch swaps the operands where the result's rows are then in the order of the equation (read; the older way is
proved by recordings of torch 2.6). It decides the layout of the result, and so what the next operators copy."""
MEAN_SAVES_UNTIL = (2, 1)
"""Up to it a mean saves its input for backward. The headers of autograd's generated functions, which wheels bring, show
no other change from 2.1 to 2.13 but in `linalg_lstsq` (2.7), `nextafter` (2.13) and attention's seeds, not followed."""
SLICES_UNTIL = (2, 6)
"""Up to it every ":" of `x[:, -1, :]` makes a slice, though it shows the whole dimension, and the gradient of a slice
is padded with zeros to the size of the sliced tensor."""
CUDNN_ATTENTION_SINCE = (2, 10)
"""The first whose wheels bring a cuDNN that is preferred, 9.15.1."""
FUSED_RMS_NORM_SINCE = (2, 9)
LT_MAY_BE_SHARED_SINCE, LT_KEPT_SINCE, LT_SHARED_SINCE = (2, 7), (2, 9), (2, 11)
"""First releases with a setting to share cuBLAS's workspace with cublasLt, with a cublasLt workspace per handle and
stream instead of per call, and with cuBLAS's for both."""
WIDE_HALVES_SINCE, WIDE_SINGLES_SINCE = (2, 7), (2, 10)
"""Sums along memory read 8 elements at once; since when is estimated. It matters to rows of a few thousand."""
COLLECTIVES_KEEP_TENSORS_SINCE = (2, 8)
"""Before, tensors of a collective that nothing waits for are free once the program drops them (`record_stream`)."""

# Python.

MASK_ON_DEFAULT_DEVICE_SINCE = (2, 6)
TRUNCATED_BY_REJECTION_SINCE = (2, 12)
ATTENTION_FREES_SINCE = (2, 12)
"""`multi_head_attention_forward` deletes queries, keys and values as soon as they are used."""
_REJECTS_ABOVE = 0.3
"""Share of draws within the bounds, above which torch draws from the normal distribution."""


def follow_release(patches: Patches, release: Release) -> None:
    """Put another release's Python in the place of the installed one's, where they allocate differently."""
    if release < TRUNCATED_BY_REJECTION_SINCE:
        patches.replace(init, "_no_grad_trunc_normal_", _truncate_in_place)
    else:
        patches.replace(init, "_no_grad_trunc_normal_", _truncating_by_rejection(vars(init)["_no_grad_trunc_normal_"]))
    if release < ATTENTION_FREES_SINCE:
        attention = without_deletions(functional, "multi_head_attention_forward")
        patches.replace(functional, "multi_head_attention_forward", attention)
    if release < MASK_ON_DEFAULT_DEVICE_SINCE:
        patches.replace(transformer, "_generate_square_subsequent_mask", _mask_on_host)
    if release <= MEAN_SAVES_UNTIL:
        for owner in (torch, Tensor):
            patches.put(owner, "mean", _saving_its_input(owner.mean))
        for name in ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"):
            patches.replace(functional, name, _saving_its_input(vars(functional)[name], is_mean=_pools_to_one))


class _SavedInput(torch.autograd.Function):
    """Nothing but a saved tensor: in autograd's graph it is released after the operator that reads the result."""

    @staticmethod
    def forward(ctx: Any, saved: Tensor) -> Tensor:
        ctx.save_for_backward(saved)
        return saved.view_as(saved)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        # Read, as by the operator: a checkpoint counts what is read.
        return gradients[0] if ctx.saved_tensors else None


def _pools_to_one(input: Tensor, output_size: Any) -> bool:
    return all(size == 1 for size in (output_size if isinstance(output_size, tuple | list) else (output_size,)))


def _saving_its_input(
    installed: Callable[..., Tensor], is_mean: Callable[..., bool] = lambda *args, **kwargs: True
) -> Callable[..., Tensor]:
    @functools.wraps(installed)
    def mean(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        saves = input.requires_grad and torch.is_grad_enabled() and is_mean(input, *args, **kwargs)
        return installed(_SavedInput.apply(input) if saves else input, *args, **kwargs)  # type: ignore[no-untyped-call]

    return mean


def _share_below(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def _truncate_in_place(
    tensor: Tensor, mean: float, std: float, *bounds: float, generator: torch.Generator | None = None
) -> Tensor:
    """Draw uniformly and invert the distribution, all in place."""
    least, most = (2 * _share_below((bound - mean) / std) - 1 for bound in bounds)
    with torch.no_grad():
        drawn = tensor.uniform_(least, most, generator=generator).erfinv_()
        return drawn.mul_(std * math.sqrt(2)).add_(mean).clamp_(*bounds)


def _truncating_by_rejection(installed: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def truncate(
        tensor: Tensor, mean: float, std: float, *bounds: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw again where a draw is out of bounds, as often as so many elements are likely to need."""
        least, most = bounds
        outside = 1 - _share_below((most - mean) / std) + _share_below((least - mean) / std)
        if not tensor.is_cuda or 1 - outside <= _REJECTS_ABOVE:
            return installed(tensor, mean, std, *bounds, generator)
        with torch.no_grad():
            result, left = tensor.normal_(mean, std, generator=generator), tensor.numel() * outside
            while True:
                mask = (result < least) | (result > most)
                mask.any()
                if left < 0.5:
                    break
                result = torch.where(mask, torch.empty_like(result).normal_(mean, std, generator=generator), result)
                left *= outside
            return tensor if result is tensor else tensor.copy_(result)

    return truncate


class _Deletions(ast.NodeTransformer):
    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)


def without_deletions(module: ModuleType, name: str) -> Callable[..., Any]:
    """Return a module's function without its `del` statements, at the same lines of the same file."""
    function = vars(module)[name]
    lines, first = inspect.getsourcelines(function)
    tree = _Deletions().visit(ast.parse(textwrap.dedent("".join(lines))))
    ast.increment_lineno(tree, first - 1)
    made: dict[str, Any] = {}
    flags = function.__code__.co_flags & annotations.compiler_flag
    exec(compile(tree, inspect.getfile(function), "exec", flags, dont_inherit=True), vars(module), made)
    return made[name]  # type: ignore[no-any-return]


def _mask_on_host(sz: int, device: Any = None, dtype: torch.dtype | None = None) -> Tensor:
    full = torch.full((sz, sz), -math.inf, dtype=dtype or torch.float32, device=device or "cpu")
    return torch.triu(full, diagonal=1)


@contextmanager
def signatures_of_torch() -> Iterator[None]:
    """Let `torch._dynamo` be imported: it compares torch's functions with its own, and some are replaced by ours."""
    signature = inspect.signature

    def signature_of_torch(function: Any, **options: Any) -> inspect.Signature:
        if str(getattr(function, "__module__", "")).startswith("memviz."):
            raise ValueError(function)
        return signature(function, **options)

    vars(inspect)["signature"] = signature_of_torch
    try:
        yield
    finally:
        vars(inspect)["signature"] = signature


class LateDynamo(ModuleType):
    """Replaces `torch._dynamo` until the program uses more of it than its switches.

    torch imports it for the first optimizer, and for shape rules that are written in Python; to import it takes as
    much processor time as a short program. Nothing is compiled while it is in place, so there is nothing to switch off.
    """

    def __init__(self) -> None:
        super().__init__("torch._dynamo")
        self._switched: list[Any] = []

    def disable(self, fn: Any = None, *_: Any, **__: Any) -> Any:
        if fn is not None:
            self._switched.append(fn)
        return self.disable if fn is None else fn

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Break no graph, as there is none."""

    def __getattr__(self, name: str) -> Any:
        if name == "_switched" or name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        self.leave()
        return getattr(import_module("torch._dynamo"), name)

    @classmethod
    def follow(cls, patches: Patches) -> None:
        if "torch._dynamo" not in sys.modules:
            late = cls()
            sys.modules["torch._dynamo"] = late
            vars(torch)["_dynamo"] = late
            patches.callback(late.leave)

    def leave(self) -> None:
        """Let the module itself be imported, and forget the functions whose compilation was disabled here."""
        if sys.modules.get("torch._dynamo") is self:
            del sys.modules["torch._dynamo"], vars(torch)["_dynamo"]
        for fn in self._switched:
            vars(fn).pop("__dynamo_disable", None)
        self._switched.clear()
