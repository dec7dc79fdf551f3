"""Operators that take memory which no shape shows, in families: of each such family a recording proves something.

All others take what their results take, and where every recording is exact they need no proof of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from memviz.runner.predict.workspaces import RECURRENT, USES_CUBLAS

aten = torch.ops.aten
PRODUCTS, REDUCTIONS, CONVOLUTIONS, BATCH_NORM = "matrix products", "reductions", "convolutions", "batch norm"
CUDNN_ATTENTION, RECURRENT_LAYERS = "cuDNN's attention", "recurrent layers"
LINEAR_ALGEBRA, FOURIER_TRANSFORMS = "linear algebra", "Fourier transforms"
SPARSE_PRODUCTS = "products of sparse tensors"
COLLECTIVES = "several processes that share a model"
"""Said as an operator too: what they send one another has many names."""
_NAMED = {
    REDUCTIONS: (
        *("sum", "nansum", "mean", "prod", "var", "std", "var_mean", "std_mean", "linalg_vector_norm"),
        *("max", "min", "amax", "amin", "argmax", "argmin", "any", "all"),
        *("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
    ),
    CONVOLUTIONS: ("convolution", "convolution_backward"),
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
    CONVOLUTIONS: "cuDNN workspaces",
    BATCH_NORM: "cuDNN's reserves of batch norm",
    CUDNN_ATTENTION: "cuDNN workspaces of attention",
    RECURRENT_LAYERS: "cuDNN workspaces of recurrent layers",
    LINEAR_ALGEBRA: "cuSOLVER workspaces of linear algebra",
    FOURIER_TRANSFORMS: "cuFFT workspaces of Fourier transforms",
    SPARSE_PRODUCTS: "cuSPARSE workspaces of sparse products",
    "sorting and scanning": "temporary copies of sorting and scanning",
}
"""What has no rule, by family: a prediction with these is a lower bound."""


def all_families() -> frozenset[str]:
    return frozenset(_families().values())


def families_of(operators: Iterable[str]) -> frozenset[str]:
    """By the names that operators have in stacks: `sum_dim_IntList`."""
    known = _families()
    return frozenset(known[name] for name in operators if name in known)


@cache
def _families() -> dict[str, str]:
    families = {name: PRODUCTS for packet in USES_CUBLAS for name in _overloads(packet)}
    for family, names in _NAMED.items():
        for name in names:
            families |= dict.fromkeys(_overloads(getattr(aten, name)), family)
    return families | {RECURRENT: RECURRENT_LAYERS, COLLECTIVES: COLLECTIVES}


def _overloads(packet: Any) -> list[str]:
    name = packet.__name__
    return [name if overload == "default" else f"{name}_{overload}" for overload in packet.overloads()]
