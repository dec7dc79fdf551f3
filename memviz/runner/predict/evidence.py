"""Evidence for each rule of the predictor: a recording, torch's source, or an estimate.

A rule is proved where a program of `tests/truth` takes memory by it and every size agrees with the recording, in
its order. What is read follows torch's source and was not compared with a card; what is estimated follows from how
a kernel must work; what is not predicted is missing from every peak, and an estimate from shapes is reported
instead. A recording proves the operator families that it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.workspaces import RECURRENT, USES_CUBLAS


class Standing(StrEnum):
    PROVED = "proved"
    READ = "read"
    ESTIMATED = "estimated"
    MISSING = "not predicted"


class Counted(StrEnum):
    """Bytes of an operator that its rule decides."""

    BESIDE = "beside"
    """Temporary memory while the operator runs."""
    REST = "rest"
    """That, and its results behind the first: masks, statistics, states."""
    ALL = "all"


@dataclass(frozen=True)
class PredictorRule:
    name: str
    standing: Standing
    because: str
    """The recording that proves it, or where it was read, or why it is missing."""
    operators: tuple[str, ...] = ()
    """Without their overloads; empty where the rule takes no memory of its own."""
    counted: Counted = Counted.BESIDE
    proved_on: tuple[int, int] = (0, 999)
    """Architectures that the recording speaks for."""

    def standing_on(self, card: KnownCard) -> Standing:
        first, last = self.proved_on
        outside = self.standing is Standing.PROVED and not first <= card.architecture <= last
        return Standing.READ if outside else self.standing


_AMPERE_TO_ADA = (80, 89)
CUBLAS = PredictorRule(
    "cuBLAS's workspaces", Standing.PROVED, "train-complete, train-mixed-precision", proved_on=_AMPERE_TO_ADA
)
"""Taken by a handle, once a thread and stream, so no operator is named."""
NCCL = "NCCL's buffers"
SPARSE_PRODUCT = "_sparse_addmm"
CONVOLUTIONS, SORTS, RECURRENT_LAYERS = "cuDNN's convolutions", "sorting and scanning", "cuDNN's recurrent layers"
_PROVED = (
    CUBLAS,
    PredictorRule("casts of autocast, and those it keeps", Standing.PROVED, "train-mixed-precision, train-late-start"),
    PredictorRule("gradients written into zeros in place", Standing.PROVED, "train-late-start, few-frames"),
    PredictorRule("colons as slices, up to torch 2.6", Standing.PROVED, "train-complete"),
    PredictorRule("einsum's operands as they come, up to torch 2.8", Standing.PROVED, "train-weights-first"),
    PredictorRule(
        "buffers of sums, means and extremes",
        Standing.PROVED,
        "train-late-start, few-frames, train-weights-first",
        ("sum", "mean", "max", "min"),
    ),
    PredictorRule(
        "indices sorted to add at them",
        Standing.PROVED,
        "few-frames, train-weights-first",
        ("index_put", "index_put_", "_index_put_impl_"),
        proved_on=_AMPERE_TO_ADA,
    ),
    PredictorRule(
        "copies for products of what lies badly",
        Standing.PROVED,
        "small-complete, train-weights-first",
        ("mm", "bmm", "baddbmm"),
    ),
    PredictorRule(
        "cublasLt's workspace for a bias",
        Standing.PROVED,
        "biases-and-mask",
        ("addmm",),
        proved_on=_AMPERE_TO_ADA,
    ),
    PredictorRule("statistics of LayerNorm", Standing.PROVED, "biases-and-mask", ("native_layer_norm",), Counted.REST),
    PredictorRule("numbers raised to the power of tensors", Standing.PROVED, "train-weights-first", ("pow",)),
)
_READ = (
    PredictorRule(
        "flash attention",
        Standing.READ,
        "flash_api.cpp",
        ("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"),
        Counted.REST,
    ),
    PredictorRule(
        "memory-efficient attention",
        Standing.READ,
        "attention.cu; without gradients it is as recorded in biases-and-mask",
        ("_scaled_dot_product_efficient_attention",),
        Counted.REST,
    ),
    PredictorRule("masks of dropout", Standing.READ, "Dropout.cu", ("native_dropout",), Counted.REST),
    PredictorRule(
        "statistics of other norms, and gradients of norms",
        Standing.READ,
        "layer_norm_kernel.cu, group_norm_kernel.cu",
        ("native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
        Counted.REST,
    ),
    PredictorRule(
        "softmax of what is strided",
        Standing.READ,
        "SoftMax.cu",
        ("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
    ),
    PredictorRule(
        "lists of tensors in optimizers and norms",
        Standing.READ,
        "torch/optim, ForeachReduceOp.cu",
        ("_foreach_norm", "_foreach_sqrt", "_foreach_div", "_foreach_mul", "_foreach_add", "_foreach_neg"),
        Counted.ALL,
    ),
    PredictorRule(
        "fused optimizers take nothing",
        Standing.READ,
        "fused_adam_impl.cu",
        ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"),
    ),
    PredictorRule(
        "buffers of other reductions",
        Standing.READ,
        "Reduce.cuh",
        (
            *("nansum", "prod", "linalg_vector_norm", "amax", "amin", "any", "all", "argmax", "argmin"),
            *("var", "std", "var_mean", "std_mean"),
            *("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
        ),
    ),
    PredictorRule(
        "cublasLt's workspace for scaled products", Standing.READ, "Blas.cpp", ("_addmm_activation", "_scaled_mm")
    ),
    PredictorRule(
        "indices that lie on the host or strided", Standing.READ, "TensorAdvancedIndexing.cpp", ("index", "embedding")
    ),
    PredictorRule(
        "padding of what is strided",
        Standing.READ,
        "ReflectionPad.cu, ReplicationPadding.cu",
        tuple(
            f"{kind}_pad{number}d{backward}"
            for kind in ("reflection", "replication")
            for number in (1, 2, 3)
            for backward in ("", "_backward")
        ),
    ),
    PredictorRule(
        "lists that NCCL gathers and scatters, and its barriers",
        Standing.READ,
        "ProcessGroupNCCL.cpp",
        ("allgather_", "reduce_scatter_", "barrier"),
    ),
    PredictorRule(
        "copies to and from the host of what is not one piece",
        Standing.READ,
        "Copy.cu",
        ("_to_copy", "copy_", "_foreach_copy_"),
    ),
    PredictorRule("CTC losses", Standing.READ, "LossCTC.cu", ("_ctc_loss", "_ctc_loss_backward")),
)
_ESTIMATED = (
    PredictorRule(
        "memory-efficient attention, backward",
        Standing.ESTIMATED,
        "its gradients are summed in fp32",
        ("_scaled_dot_product_efficient_attention_backward",),
    ),
    PredictorRule(
        "attention over sequences of different lengths",
        Standing.ESTIMATED,
        "as for sequences of one length, with rows to spare for each",
        (
            *("_flash_attention_forward", "_flash_attention_backward"),
            *("_efficient_attention_forward", "_efficient_attention_backward"),
        ),
        Counted.REST,
    ),
    PredictorRule(
        "gradients of embeddings with many indices",
        Standing.ESTIMATED,
        "EmbeddingBackwardKernel.cu, without the scratch of its scans",
        ("embedding_dense_backward",),
    ),
)
_MISSING = (
    PredictorRule(
        CONVOLUTIONS,
        Standing.MISSING,
        "cuDNN chooses a workspace as it runs",
        ("convolution", "convolution_backward", "cudnn_convolution", "cudnn_convolution_transpose"),
    ),
    PredictorRule(
        "cuDNN's attention",
        Standing.MISSING,
        "its plan decides on a workspace",
        ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"),
    ),
    PredictorRule(
        "cuDNN's batch norm",
        Standing.MISSING,
        "it may keep a reserve for backward",
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"),
    ),
    PredictorRule(RECURRENT_LAYERS, Standing.MISSING, "they are predicted step by step", ("recurrent layer",)),
    PredictorRule(
        SORTS,
        Standing.MISSING,
        "they take copies of about their input's size",
        ("sort", "topk", "argsort", "unique_dim", "_unique2", "multinomial", "cumsum", "cumprod"),
    ),
    PredictorRule(
        "libraries of linear algebra and of Fourier transforms",
        Standing.MISSING,
        "cuSOLVER and cuFFT take workspaces",
        (
            *("_fft_r2c", "_fft_c2c", "_fft_c2r", "_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals"),
            *("linalg_qr", "geqrf", "ormqr", "linalg_householder_product", "linalg_lu_factor_ex", "linalg_lu"),
            *("linalg_lu_solve", "_linalg_det", "_linalg_slogdet", "linalg_ldl_factor_ex", "linalg_ldl_solve"),
            *("linalg_cholesky_ex", "cholesky_solve", "cholesky_inverse", "linalg_inv_ex", "_linalg_solve_ex"),
            "linalg_lstsq",
        ),
    ),
    PredictorRule(
        "products of sparse tensors", Standing.MISSING, "cuSPARSE takes a workspace for each", (SPARSE_PRODUCT,)
    ),
    PredictorRule(
        NCCL,
        Standing.MISSING,
        "they lie beside PyTorch's allocator",
        ("allreduce_", "_allgather_base_", "_reduce_scatter_base_", "broadcast_", "alltoall_base_"),
    ),
)
RULES: tuple[PredictorRule, ...] = (*_PROVED, *_READ, *_ESTIMATED, *_MISSING)
NO_RULE = 255
_NUMBERS = {operator: number for number, rule in enumerate(RULES) for operator in rule.operators}
CUBLAS_NUMBER = RULES.index(CUBLAS)
NCCL_NUMBER = next(number for number, rule in enumerate(RULES) if rule.name == NCCL)


def rule_of(packet: str) -> int:
    """The number of an operator's rule, by its name without overload."""
    return _NUMBERS.get(packet, NO_RULE)


@dataclass(frozen=True)
class Unproven:
    """A rule that a prediction took memory by, or would have, and no recording proves."""

    rule: str
    standing: str
    because: str
    bytes: int | None
    """Largest bytes at once; where nothing is predicted, the likely bytes at one time. None if unknown."""
    bytes_at_peak: int
    """Bytes at the moment of the highest live bytes."""
    bytes_at_most: int | None
    """Upper bound at one time, where nothing is predicted."""


aten = torch.ops.aten
PRODUCTS, REDUCTIONS, CONVOLUTION_FAMILY, BATCH_NORM = "matrix products", "reductions", "convolutions", "batch norm"
CUDNN_ATTENTION, RECURRENT_FAMILY = "cuDNN's attention", "recurrent layers"
LINEAR_ALGEBRA, FOURIER_TRANSFORMS = "linear algebra", "Fourier transforms"
SPARSE_PRODUCTS = "products of sparse tensors"
COLLECTIVES = "several processes that share a model"
"""Said as an operator too: what they send one another has many names."""
_FAMILY_OPERATORS = {
    REDUCTIONS: (
        *("sum", "nansum", "mean", "prod", "var", "std", "var_mean", "std_mean", "linalg_vector_norm"),
        *("max", "min", "amax", "amin", "argmax", "argmin", "any", "all"),
        *("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
    ),
    CONVOLUTION_FAMILY: ("convolution", "convolution_backward"),
    BATCH_NORM: (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "cudnn_batch_norm",
        "native_batch_norm_backward",
        "cudnn_batch_norm_backward",
    ),
    CUDNN_ATTENTION: (
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
    ),
    "scaled-dot-product attention": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        *("_flash_attention_forward", "_flash_attention_backward"),
        *("_efficient_attention_forward", "_efficient_attention_backward"),
    ),
    "layer norm": (
        "native_layer_norm",
        "native_layer_norm_backward",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
    ),
    "softmax": ("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
    "dropout": ("native_dropout", "native_dropout_backward", "bernoulli_"),
    "gradients of embeddings": ("embedding_dense_backward", "_embedding_bag_dense_backward"),
    "sorting and scanning": (
        "sort",
        "topk",
        "argsort",
        "cumsum",
        "cumprod",
        "unique_dim",
        "_unique2",
        "multinomial",
        "nonzero",
        "_coalesce",
    ),
    "sparse tensors": ("_sparse_coo_tensor_with_dims_and_tensors",),
    LINEAR_ALGEBRA: (
        *("_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals", "linalg_qr", "geqrf", "ormqr"),
        *("linalg_householder_product", "linalg_lu_factor_ex", "linalg_lu", "linalg_lu_solve", "_linalg_det"),
        *("_linalg_slogdet", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_cholesky_ex", "cholesky_solve"),
        *("cholesky_inverse", "linalg_inv_ex", "_linalg_solve_ex", "linalg_lstsq"),
    ),
    FOURIER_TRANSFORMS: ("_fft_r2c", "_fft_c2c", "_fft_c2r"),
    SPARSE_PRODUCTS: ("_sparse_addmm",),
    "CTC losses": ("_ctc_loss", "_ctc_loss_backward"),
    "fused optimizers": ("_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_fused_adagrad_"),
    "norms of many gradients": ("_foreach_norm",),
}
NOT_COUNTED = {
    CONVOLUTION_FAMILY: "cuDNN workspaces",
    BATCH_NORM: "cuDNN's reserves of batch norm",
    CUDNN_ATTENTION: "cuDNN workspaces of attention",
    RECURRENT_FAMILY: "cuDNN workspaces of recurrent layers",
    LINEAR_ALGEBRA: "cuSOLVER workspaces of linear algebra",
    FOURIER_TRANSFORMS: "cuFFT workspaces of Fourier transforms",
    SPARSE_PRODUCTS: "cuSPARSE workspaces of sparse products",
    "sorting and scanning": "temporary copies of sorting and scanning",
}
"""Families without a rule: a prediction with these is a lower bound."""


def all_families() -> frozenset[str]:
    return frozenset(_families().values())


def families_of(operators: Iterable[str]) -> frozenset[str]:
    """Return the families of operators, given by their names in stacks: `sum_dim_IntList`."""
    known = _families()
    return frozenset(known[name] for name in operators if name in known)


@cache
def _families() -> dict[str, str]:
    families = {name: PRODUCTS for packet in USES_CUBLAS for name in _overloads(packet)}
    for family, names in _FAMILY_OPERATORS.items():
        for name in names:
            families |= dict.fromkeys(_overloads(getattr(aten, name)), family)
    return families | {RECURRENT: RECURRENT_FAMILY, COLLECTIVES: COLLECTIVES}


def _overloads(packet: Any) -> list[str]:
    name = packet.__name__
    return [name if overload == "default" else f"{name}_{overload}" for overload in packet.overloads()]


_INDEX = 8


def likely_and_most(rule: str, args: Any, out: Any) -> tuple[int | None, int | None]:
    """Bytes of one call of what is not predicted, beside its results: a likely figure, and an upper one."""
    if rule == CONVOLUTIONS:
        return _convolution(args, out)
    if rule == SORTS and isinstance(args[0], Tensor):
        copies = args[0].numel() * (args[0].element_size() + _INDEX)
        return copies, 2 * copies
    return None, None


def _convolution(args: Any, out: Any) -> tuple[int, int]:
    """Tensor cores read channels last: what lies otherwise is copied. At most an image is unfolded besides.

    Unfolded, an image has a window of its channels for each place of the other. With a stride that is the coarser
    one; where its gradient is not asked for, or no place is in two windows, the finer one alone has windows.
    """
    tensors = [tensor for tensor in args[:3] if isinstance(tensor, Tensor) and tensor.dim() > 2]
    large = [tensor for tensor in (*tensors, *_tensors_in(out)) if tensor.dim() > 2]
    if len(tensors) < 2:
        return 0, 0
    backward = len(tensors) == 3
    weight = tensors[-1]
    likely = 0 if _lies_channels_last(tensors[0]) else sum(map(_bytes, large))
    images = tensors[:2] if backward else [tensors[0], *_tensors_in(out)]
    if len(images) < 2:
        return likely, likely
    fine, coarse = sorted(images, key=_pixels, reverse=True)[:2]
    both = _pixels(fine) == _pixels(coarse) or (backward and _wants_gradient_of_input(args) and _overlap(args, weight))
    places = _pixels(coarse)
    channels = max(fine.size(1), coarse.size(1)) if both else fine.size(1)
    window = weight[0, 0].numel()
    unfolded = places * channels * window * weight.element_size() if window > 1 else 0
    return likely, likely + unfolded


def _pixels(image: Tensor) -> int:
    return image.numel() // max(image.size(1), 1)


def _wants_gradient_of_input(args: Any) -> bool:
    """Return the first entry of the gradient mask, the last argument of a backward; True if unknown."""
    mask = args[-1]
    return not isinstance(mask, list | tuple) or not mask or bool(mask[0])


def _overlap(args: Any, weight: Tensor) -> bool:
    """Return whether the windows of a backward overlap; adjacent patches need a single product in either direction."""
    strides, dilations = args[4], args[6]
    reach = [
        (size - 1) * dilation
        for size, dilation in zip(weight.shape[2:], _per_dimension(dilations, weight), strict=True)
    ]
    return any(far >= stride for far, stride in zip(reach, _per_dimension(strides, weight), strict=True))


def _per_dimension(given: Any, weight: Tensor) -> list[int]:
    """One number may stand for all dimensions."""
    return list(given) * (weight.dim() - 2) if len(given) == 1 else list(given)


def _lies_channels_last(tensor: Tensor) -> bool:
    return tensor.stride(1) == 1 and not tensor.is_contiguous()


def _tensors_in(out: Any) -> list[Tensor]:
    items: Iterable[Any] = out if isinstance(out, tuple | list) else (out,)
    return [item for item in items if isinstance(item, Tensor)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
