"""Rules for the memory of operators, by family: what they take, the evidence for it, and how each operator is handled.

A rule is proved where a program of `tests/truth` takes memory by it and every size agrees with the recording, in
its order. What is read follows torch's source and was not compared with a card; what is estimated follows from how
a kernel must work; what is not predicted is missing from every peak, and an estimate from shapes is reported
instead. A recording proves the operator families that it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from memviz.allocator.context import DEFAULT_CARD, context_sentence
from memviz.predictor import workspaces as taken
from memviz.predictor.cards import KnownCard
from memviz.predictor.decompositions import WRITES_INTO_ZEROS, add_in_place, seeds_on_host, write_into_zeros
from memviz.predictor.host import MOVES, copy_lists, copy_to_existing, copy_to_new, may_say_of_unknown
from memviz.predictor.known_values import may_return_indices
from memviz.predictor.recurrent import (
    recurrent_backward_buffers,
    recurrent_backward_flops,
    recurrent_backward_shape,
    recurrent_buffers,
    recurrent_flops,
    recurrent_shape,
)
from memviz.predictor.shapes import FUSED_OPTIMIZERS, SHAPE_RULES, ResultCache, ShapeKey, tensors_of
from memviz.predictor.workspaces import OperatorCall, Temporaries


class Standing(StrEnum):
    PROVED = "proved"
    READ = "read"
    ESTIMATED = "estimated"
    MISSING = "not predicted"


class Counted(StrEnum):
    """Bytes of an operator that its rule decides."""

    TEMPORARIES = "temporaries"
    REST = "rest"
    """Temporaries, and results behind the first: masks, statistics, states."""
    ALL = "all"


Operators = Mapping[str, Temporaries | None]
"""Names without overloads; None for operators without temporaries."""
MissingBytes = Callable[[OperatorCall], tuple[int | None, int | None]]
"""The bytes of one call besides its result that are not counted: a likely figure, and an upper one."""


def _operators(*names: str, temporaries: Temporaries | None = None) -> Operators:
    return dict.fromkeys(names, temporaries)


@dataclass(frozen=True)
class PredictorRule:
    name: str
    standing: Standing
    because: str
    """The recording that proves it, or where it was read, or why it is missing."""
    operators: Operators = field(default_factory=dict)
    """Empty where the rule takes no memory of its own."""
    counted: Counted = Counted.TEMPORARIES
    proved_on: tuple[int, int] = (0, 999)
    """Architectures that the recording speaks for."""
    family: str = ""
    """Family that recordings cover, or not; empty where it is of no matter."""
    not_counted: str = ""
    """Memory that a prediction with these operators lacks, which makes it a lower bound."""
    note: str = ""
    missing_bytes: MissingBytes = lambda call: (None, None)

    def standing_on(self, card: KnownCard) -> Standing:
        first, last = self.proved_on
        outside = self.standing is Standing.PROVED and not first <= card.architecture <= last
        return Standing.READ if outside else self.standing


_INDEX = 8


def _copies_of_distinct(call: OperatorCall) -> tuple[int | None, int | None]:
    tensor = call.args[0]
    if not isinstance(tensor, Tensor):
        return None, None
    copies = tensor.numel() * (tensor.element_size() + _INDEX)
    return copies, 2 * copies


def _more_of_convolutions(call: OperatorCall) -> tuple[int, int]:
    """Return the likely bytes and the most, besides what is counted.

    Where nothing is counted, copies in channels last are likely. At most, an image is unfolded: it has a window of its
    channels for each pixel of the other. With a stride that is the coarser one; if its gradient is not computed, or
    windows do not overlap, only the finer one has windows. A forward whose copies are counted took less on an H100.
    """
    args, out, tensors = call.args, call.out, taken.images_and_weight(call)
    large = [tensor for tensor in (*tensors, *tensors_of(out)) if tensor.dim() > 2]
    if len(tensors) < 2:
        return 0, 0
    backward, counted = len(tensors) == 3, taken.convolves_on_tensor_cores(call)
    if counted and not backward:
        return 0, 2 * call.card.multiprocessors * _BYTES_OF_A_MULTIPROCESSOR
    weight = tensors[-1]
    is_channels_last = tensors[0].stride(1) == 1 and not tensors[0].is_contiguous()
    likely = 0 if counted or is_channels_last else sum(tensor.nbytes for tensor in large)
    images = tensors[:2] if backward else [tensors[0], *tensors_of(out)]
    if len(images) < 2:
        return likely, likely
    fine, coarse = sorted(images, key=_pixels, reverse=True)[:2]
    wants_gradient_of_input = backward and args[10][0]
    both = _pixels(fine) == _pixels(coarse) or wants_gradient_of_input and _overlap(args[4], args[6], weight)
    channels = max(fine.size(1), coarse.size(1)) if both else fine.size(1)
    window = weight[0, 0].numel()
    unfolded = _pixels(coarse) * channels * window * weight.element_size() if window > 1 else 0
    return likely, likely + unfolded


_BYTES_OF_A_MULTIPROCESSOR = 64 << 10
"""Kept per output by a kernel that splits its sums; recordings have up to two of them besides the copies."""


def _pixels(image: Tensor) -> int:
    return image.numel() // max(image.size(1), 1)


def _overlap(strides: Sequence[int], dilations: Sequence[int], weight: Tensor) -> bool:
    """Return whether the windows of a backward overlap; adjacent patches need a single product in either direction."""
    # A single number is that of all dimensions.
    windows = zip(weight.shape[2:], cycle(strides), cycle(dilations), strict=False)
    return any((size - 1) * dilation >= stride for size, stride, dilation in windows)


CUBLAS, NCCL = "cuBLAS's workspaces", "NCCL's buffers"
PRODUCTS, REDUCTIONS, CONVOLUTIONS, BATCH_NORM = "matrix products", "reductions", "convolutions", "batch norm"
ATTENTION, CUDNN_ATTENTION = "scaled-dot-product attention", "cuDNN's attention"
LAYER_NORM, DROPOUT, EMBEDDINGS, SORTS = "layer norm", "dropout", "gradients of embeddings", "sorting and scanning"
SPARSE_PRODUCTS = "products of sparse tensors"
COMPILED = "compiled code"
COLLECTIVES = "collective communication"
"""A family, and in place of the operators of collectives, which have many names."""
"""In place of an operator: torch takes these layers apart before any is seen."""
SPARSE_PRODUCT = "_sparse_addmm"
_AMPERE_TO_ADA = (80, 89)
_PROVED = (
    # Taken by a handle, once a thread and stream, so no operator is named.
    PredictorRule(CUBLAS, Standing.PROVED, "train-complete, train-mixed-precision", proved_on=_AMPERE_TO_ADA),
    PredictorRule("autocast casts and their cache", Standing.PROVED, "train-mixed-precision, train-late-start"),
    PredictorRule("gradients written into zeros in place", Standing.PROVED, "train-late-start, few-frames"),
    PredictorRule("full slices, up to torch 2.6", Standing.PROVED, "train-complete"),
    PredictorRule("einsum's operands in given order, up to torch 2.8", Standing.PROVED, "train-weights-first"),
    PredictorRule(
        "buffers of sum, mean, max and min",
        Standing.PROVED,
        "train-late-start, few-frames, train-weights-first",
        {
            "sum": taken.sum_buffers,
            "mean": taken.mean_buffers,
            **_operators("max", "min", temporaries=taken.max_buffers),
        },
        family=REDUCTIONS,
    ),
    PredictorRule(
        "index_put with sorted indices",
        Standing.PROVED,
        "few-frames, train-weights-first",
        _operators("index_put", "index_put_", "_index_put_impl_", temporaries=taken.index_put_buffers),
        proved_on=_AMPERE_TO_ADA,
    ),
    PredictorRule(
        "copies of matrices with unsuitable strides",
        Standing.PROVED,
        "small-complete, train-weights-first",
        _operators("mm", "bmm", "baddbmm", temporaries=taken.product_copies),
        family=PRODUCTS,
    ),
    PredictorRule(
        "cublasLt's workspace for a bias",
        Standing.PROVED,
        "biases-and-mask",
        {"addmm": taken.product_copies},
        proved_on=_AMPERE_TO_ADA,
        family=PRODUCTS,
    ),
    PredictorRule(
        "statistics of LayerNorm",
        Standing.PROVED,
        "biases-and-mask",
        {"native_layer_norm": taken.contiguous_copies},
        Counted.REST,
        family=LAYER_NORM,
    ),
    PredictorRule(
        "powers with a tensor as exponent", Standing.PROVED, "train-weights-first", {"pow": taken.scalar_power}
    ),
    PredictorRule(
        "foreach operators of optimizers",
        Standing.PROVED,
        "library-train-128, transformer",
        _operators("_foreach_sqrt", "_foreach_div", "_foreach_mul", "_foreach_add", "_foreach_neg"),
        Counted.ALL,
    ),
    PredictorRule(
        "masks of dropout", Standing.PROVED, "transformer", _operators("native_dropout"), Counted.REST, family=DROPOUT
    ),
)
_READ = (
    PredictorRule(
        "flash attention",
        Standing.READ,
        "flash_api.cpp",
        {
            "_scaled_dot_product_flash_attention": taken.flash_forward,
            "_scaled_dot_product_flash_attention_backward": taken.flash_backward,
        },
        Counted.REST,
        family=ATTENTION,
    ),
    PredictorRule(
        "memory-efficient attention",
        Standing.READ,
        "attention.cu; without gradients it is as recorded in biases-and-mask",
        {"_scaled_dot_product_efficient_attention": taken.efficient_forward},
        Counted.REST,
        family=ATTENTION,
    ),
    PredictorRule(
        "memory-efficient attention, backward",
        Standing.READ,
        "kernel_backward.h; in fp32 it is as recorded in transformer",
        {"_scaled_dot_product_efficient_attention_backward": taken.efficient_backward},
        family=ATTENTION,
    ),
    PredictorRule(
        CUDNN_ATTENTION,
        Standing.READ,
        "measured on an H200 with torch 2.11 and cuDNN 9.19",
        {
            "_scaled_dot_product_cudnn_attention": taken.cudnn_forward,
            "_scaled_dot_product_cudnn_attention_backward": taken.cudnn_backward,
        },
        Counted.REST,
        family=CUDNN_ATTENTION,
    ),
    PredictorRule(
        "statistics of other norms, and gradients of norms",
        Standing.READ,
        "layer_norm_kernel.cu, group_norm_kernel.cu",
        {
            "native_layer_norm_backward": taken.contiguous_copies,
            **_operators("native_group_norm", "native_group_norm_backward"),
        },
        Counted.REST,
        family=LAYER_NORM,
    ),
    PredictorRule(
        "softmax of strided tensors, and gradients of softmax",
        Standing.READ,
        "SoftMax.cu",
        {
            **_operators("_softmax", "_log_softmax", "_log_softmax_backward_data", temporaries=taken.contiguous_copies),
            "_softmax_backward_data": taken.softmax_backward,
        },
        family="softmax",
    ),
    PredictorRule(
        "fused optimizers without temporaries",
        Standing.READ,
        "fused_adam_impl.cu",
        _operators(*FUSED_OPTIMIZERS),
        family="fused optimizers",
    ),
    PredictorRule(
        "buffers of other reductions",
        Standing.READ,
        "Reduce.cuh, ForeachReduceOp.cu",
        {
            "nansum": taken.sum_buffers,
            "_foreach_norm": taken.foreach_norm,
            **_operators("prod", "linalg_vector_norm", temporaries=taken.mean_buffers),
            **_operators(
                "amax", "amin", "any", "all", "_is_any_true", "_is_all_true", temporaries=taken.extreme_buffers
            ),
            **_operators("argmax", "argmin", temporaries=taken.argmax_buffers),
            **_operators("var", "std", "var_mean", "std_mean", temporaries=taken.variance_buffers),
            **_operators("mse_loss", "smooth_l1_loss", "huber_loss", temporaries=taken.loss_buffers),
            "binary_cross_entropy": partial(taken.loss_buffers, sums_result=True),
        },
        family=REDUCTIONS,
    ),
    PredictorRule(
        "cublasLt's workspace for scaled products",
        Standing.READ,
        "Blas.cpp",
        _operators("_addmm_activation", "_scaled_mm"),
        family=PRODUCTS,
    ),
    PredictorRule(
        "indices on the host or strided",
        Standing.READ,
        "TensorAdvancedIndexing.cpp",
        {"index": taken.index_copies, "embedding": taken.embedding_copies},
    ),
    PredictorRule(
        "padding of strided tensors",
        Standing.READ,
        "ReflectionPad.cu, ReplicationPadding.cu",
        _operators(
            *(
                f"{kind}_pad{number}d{backward}"
                for kind in ("reflection", "replication")
                for number in (1, 2, 3)
                for backward in ("", "_backward")
            ),
            temporaries=taken.padding_copies,
        ),
    ),
    PredictorRule(
        "NCCL gathers and scatters of lists, and barriers",
        Standing.READ,
        "ProcessGroupNCCL.cpp",
        _operators("allgather_", "reduce_scatter_", "barrier"),
    ),
    PredictorRule(
        "copies to and from the host of non-contiguous tensors",
        Standing.READ,
        "Copy.cu",
        {"_to_copy": copy_to_new, "copy_": copy_to_existing, "_foreach_copy_": copy_lists},
    ),
    PredictorRule(
        "nearest-neighbor upsampling",
        Standing.READ,
        "UpSampleNearest2d.cu",
        {"upsample_nearest2d": taken.enlarging_copies},
    ),
    PredictorRule(
        "sorting and scanning",
        Standing.READ,
        "Sort.cpp, SortStable.cu, TensorTopK.cu, ScanUtils.cuh, MultinomialKernel.cu, UniqueCub.cu",
        {
            "sort": taken.sort_buffers,
            "topk": taken.topk_buffers,
            "multinomial": taken.multinomial_buffers,
            "_unique2": taken.distinct_buffers,
            **_operators("cumsum", "cumprod", temporaries=taken.scan_buffers),
        },
        family=SORTS,
    ),
    PredictorRule(
        "CTC losses",
        Standing.READ,
        "LossCTC.cu",
        {"_ctc_loss": taken.ctc_forward, "_ctc_loss_backward": taken.ctc_backward},
        family="CTC losses",
    ),
)
_ESTIMATED = (
    PredictorRule(
        "attention over sequences of different lengths",
        Standing.ESTIMATED,
        "as for sequences of one length, with spare rows for each",
        {
            "_flash_attention_forward": None,
            "_flash_attention_backward": taken.varlen_flash_backward,
            "_efficient_attention_forward": taken.heads_first(taken.efficient_forward, 0),
            "_efficient_attention_backward": taken.heads_first(taken.efficient_backward, 1),
        },
        Counted.REST,
        family=ATTENTION,
    ),
    PredictorRule(
        "gradients of embeddings with many indices",
        Standing.ESTIMATED,
        "EmbeddingBackwardKernel.cu, without the scratch of its scans",
        {"embedding_dense_backward": taken.embedding_backward_buffers},
        family=EMBEDDINGS,
    ),
    PredictorRule(
        "cuDNN's recurrent layers",
        Standing.ESTIMATED,
        "reserves and workspaces follow sizes that cuDNN 7 reported",
        {"_cudnn_rnn": recurrent_buffers, "_cudnn_rnn_backward": recurrent_backward_buffers},
        Counted.REST,
        family="recurrent layers",
    ),
)
_MISSING = (
    PredictorRule(
        "cuDNN convolution workspaces",
        Standing.MISSING,
        "cuDNN chooses them at run time",
        {
            **_operators("convolution", "convolution_backward", temporaries=taken.convolution_buffers),
            **_operators("cudnn_convolution", "cudnn_convolution_transpose"),
        },
        family=CONVOLUTIONS,
        not_counted="some of cuDNN's workspaces",
        note="cuDNN chooses a workspace for each convolution at run time. Its copies for tensor cores are counted, as "
        "measured on an H100; its other workspaces, largest in training, are not.",
        missing_bytes=_more_of_convolutions,
    ),
    PredictorRule(
        "cuDNN's batch norm",
        Standing.MISSING,
        "it may keep a reserve for backward",
        _operators("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"),
        family=BATCH_NORM,
        not_counted="cuDNN's reserves of batch norm",
        note="cuDNN's batch norm may keep a reserve for backward; it is not predicted.",
    ),
    PredictorRule(
        "distinct rows",
        Standing.MISSING,
        "sorting takes copies of about the input's size",
        _operators("unique_dim", "unique_consecutive"),
        family="distinct values",
        not_counted="temporary copies of distinct rows",
        note="Finding distinct rows takes temporary copies of about the input's size; they are not predicted.",
        missing_bytes=_copies_of_distinct,
    ),
    PredictorRule(
        "linear algebra libraries",
        Standing.MISSING,
        "cuSOLVER takes workspaces",
        _operators(
            *("_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals", "linalg_qr", "geqrf", "ormqr"),
            *("linalg_householder_product", "linalg_lu_factor_ex", "linalg_lu", "linalg_lu_solve", "_linalg_det"),
            *("_linalg_slogdet", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_cholesky_ex", "cholesky_solve"),
            *("cholesky_inverse", "linalg_inv_ex", "_linalg_solve_ex", "linalg_lstsq"),
        ),
        family="linear algebra",
        not_counted="cuSOLVER workspaces of linear algebra",
    ),
    PredictorRule(
        "Fourier transforms",
        Standing.MISSING,
        "cuFFT's manual gives the most that it takes",
        _operators("_fft_r2c", "_fft_c2c", "_fft_c2r", temporaries=taken.fourier_buffers),
        family="Fourier transforms",
        not_counted="cuFFT workspaces of one dimension",
        # cuFFT's manual: at most eight times the complex data.
        missing_bytes=lambda call: (0, 8 * max(call.args[0].nbytes, call.out.nbytes)),
    ),
    PredictorRule(
        "products of sparse tensors",
        Standing.MISSING,
        "cuSPARSE takes a workspace for each",
        _operators(SPARSE_PRODUCT),
        family=SPARSE_PRODUCTS,
        not_counted="cuSPARSE workspaces of sparse products",
    ),
    PredictorRule(
        NCCL,
        Standing.MISSING,
        "they are outside PyTorch's allocator",
        _operators("allreduce_", "_allgather_base_", "_reduce_scatter_base_", "broadcast_", "alltoall_base_"),
    ),
)
RULES: tuple[PredictorRule, ...] = (*_PROVED, *_READ, *_ESTIMATED, *_MISSING)
NO_RULE = 255
_NUMBERS = {operator: number for number, rule in enumerate(RULES) for operator in rule.operators}
CUBLAS_NUMBER, NCCL_NUMBER = ([rule.name for rule in RULES].index(name) for name in (CUBLAS, NCCL))


def rule_of(operator: str) -> int:
    """Return the number of an operator's rule, by its name without overload."""
    return _NUMBERS.get(operator, NO_RULE)


_OPERATORS_WITHOUT_RULE = {
    PRODUCTS: ("addbmm", "addmv", "mv", "dot", "_int_mm"),
    LAYER_NORM: ("_fused_rms_norm", "_fused_rms_norm_backward"),
    BATCH_NORM: ("native_batch_norm_backward", "cudnn_batch_norm_backward"),
    DROPOUT: ("native_dropout_backward", "bernoulli_"),
    EMBEDDINGS: ("_embedding_bag_dense_backward",),
    SORTS: ("nonzero", "_coalesce"),
    "sparse tensors": ("_sparse_coo_tensor_with_dims_and_tensors",),
    "norms of many gradients": ("_foreach_norm",),
}
"""Names by family; the norms have a rule with other operators, which are of no family."""
_FAMILIES = {operator: rule.family for rule in RULES if rule.family for operator in rule.operators}
_FAMILIES |= {operator: family for family, names in _OPERATORS_WITHOUT_RULE.items() for operator in names}
USES_CUBLAS = frozenset(operator for operator, family in _FAMILIES.items() if family == PRODUCTS)
NOT_COUNTED = {rule.family: rule.not_counted for rule in RULES if rule.not_counted}
"""Families without a rule: a prediction with these is a lower bound."""


def all_families() -> frozenset[str]:
    return frozenset((*_FAMILIES.values(), COLLECTIVES, COMPILED))


def families_of(operators: Iterable[str]) -> frozenset[str]:
    """Return the families of operators, given by their names in stacks: `sum_dim_IntList`."""
    known = _operators_by_name()
    return frozenset(_FAMILIES.get(known[name], known[name]) for name in operators if name in known)


@cache
def _operators_by_name() -> dict[str, str]:
    operators = {name: name for name in (COLLECTIVES, COMPILED)}
    for operator in _FAMILIES:
        overloads = getattr(torch.ops.aten, operator).overloads()
        operators |= {operator if name == "default" else f"{operator}_{name}": operator for name in overloads}
    return operators


_ONLY_MEMORY = (
    f"Only the memory of the card is known: kernels, workspaces and compute capability are those of {DEFAULT_CARD}."
)


def unseen_by(operators: Iterable[str], card: KnownCard) -> tuple[str, ...]:
    """Return notes on memory that these operators take on a card beyond the prediction."""
    known = _operators_by_name()
    used = {known[name] for name in operators if name in known}
    notes = (rule.note for rule in RULES if rule.note and not used.isdisjoint(rule.operators))
    alone = (_ONLY_MEMORY,) if card.is_only_memory else ()
    return (*notes, *alone, context_sentence(card.name))


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


# How the predictor handles each operator, looked up once per operator.

aten = torch.ops.aten
Operator = Any
"""`torch._ops.OpOverload`, which has no types."""
Instead = Callable[[Any, Any, Any], Any]
"""Operator, arguments, keyword arguments -> the result, or NotImplemented where the operator itself is right."""
Formula = Callable[..., int]
"""Floating-point operations, from the operator's arguments."""

_RESIZING = {"resize_", "resize_as_", "set_"}
_WITHOUT_KERNEL = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("_unsafe_view", "lift", "lift_fresh", "lift_fresh_copy", *_RESIZING),
}
"""Operators for which the card has nothing to do."""
_MOST_WORK = 1 << 14
"""Sets of shapes that are remembered of one operator."""
COPIES = {"_to_copy", "copy_", "_foreach_copy_"}
MASK_FIRST = {"native_dropout"}
"""Operators that allocate a later result first: `dropout_cuda` in `Dropout.cu`."""
_MADE_OF_OTHERS = {
    aten._safe_softmax.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.logsumexp.default,
    aten.dist.default,
    aten._euclidean_dist.default,
    aten.soft_margin_loss.default,
}
"""Operators that CUDA runs as several others, with tensors between them."""
_GROUPED = {getattr(aten, name) for name in ("_grouped_mm",) if hasattr(aten, name)}


@dataclass(frozen=True, slots=True)
class Treatment:
    name: str
    """Name as in C++ stacks: `add_Tensor`."""
    gives_new: bool
    writes: bool
    """Into an argument."""
    resizes: bool
    uses_cublas: bool
    looks: str | None
    """Its answer, or the size of its answer, is in the data: the operator's name in `looks`."""
    is_view: bool
    launches: bool
    """At least one kernel."""
    instead: Instead | None
    sparse: Callable[..., Any] | None
    """The operator on tensors made of indices and values."""
    shape: Instead | None
    """Shape rule that is faster than torch's own."""
    parts_in: Callable[..., Any] | None
    """Decomposition of an operator that reaches the mode undecomposed."""
    body: Callable[..., Any] | None
    """Python code of a library's own operator, which makes more than its result."""
    temporaries: Temporaries | None
    formula: Formula | None
    rule: int
    moves: bool
    may_say: bool
    """True if the result may have known values where the arguments have none."""
    may_choose: bool
    results: ResultCache | None
    """Cached results, where the same shapes make the same result."""
    work: dict[ShapeKey, tuple[int, int]]
    """Floating-point operations and bytes moved, by the shapes that were met."""


def treatment_of(func: Operator, kernels: Mapping[str, Callable[..., Any]], release: tuple[int, int]) -> Treatment:
    schema = func._schema
    packet = func.overloadpacket
    name = packet.__name__
    # A product that is added in place is computed as one that is not: `addmm` for `addmm_`.
    product = name.removesuffix("_") if name.removesuffix("_") in USES_CUBLAS else name
    # A library may call an operator of its own `mm`.
    is_torchs = func.namespace == "aten"
    kernel = kernels.get(func.name().removeprefix("aten::"))
    new = any(returned.alias_info is None for returned in schema.returns)
    operator = product if is_torchs else func.name()
    number = rule_of(operator)
    resizes = name in _RESIZING or any(argument.is_out for argument in schema.arguments)
    reads_values = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    changes_shapes = torch.Tag.inplace_view in func.tags or resizes
    is_decided_by_shapes = is_torchs and not changes_shapes and (not reads_values or func is aten.index.Tensor)
    return Treatment(
        name=name if func._overloadname in ("", "default") else f"{name}_{func._overloadname}",
        gives_new=new,
        writes=schema.is_mutable,
        resizes=resizes,
        uses_cublas=is_torchs and product in USES_CUBLAS,
        # What we spell out looks itself, where it has to.
        looks=name if reads_values and kernel is None else None,
        is_view=not new and not schema.is_mutable,
        launches=(new or schema.is_mutable) and name not in _WITHOUT_KERNEL and torch.Tag.inplace_view not in func.tags,
        instead=add_in_place if func is aten.add.Tensor else None,
        sparse=None,
        shape=write_into_zeros if func in WRITES_INTO_ZEROS else _SHAPES.get(func) or seeds_on_host(func, release),
        parts_in=kernel or _parts_in(func),
        body=None if is_torchs else _body_of(func),
        temporaries=None if number == NO_RULE else RULES[number].operators[operator],
        formula=_formula_of(getattr(aten, product, packet) if is_torchs else packet),
        rule=rule_of(name),
        moves=func in MOVES,
        may_say=may_say_of_unknown(func),
        may_choose=may_return_indices(func),
        results=ResultCache() if (new or schema.is_mutable) and is_decided_by_shapes else None,
        work={},
    )


def _formula_of(packet: Any) -> Formula | None:
    """torch's own: matrix products, convolutions and attention have one."""
    from torch.utils.flop_counter import flop_registry

    formula: Formula | None = flop_registry.get(packet, _FORMULAS.get(packet))
    if formula is None or not packet.__name__.startswith("_scaled_dot"):
        return formula

    # Keys and values get the heads of the queries: before torch 2.13, formulas of attention refuse fewer.
    def flops(*args: Any, **kwargs: Any) -> int:
        shapes = [arg.shape if isinstance(arg, torch.Tensor) and arg.dim() == 4 else arg for arg in args]
        heads = max((shape[1] for shape in shapes if isinstance(shape, torch.Size)), default=0)
        equal = (torch.Size((a[0], heads, *a[2:])) if isinstance(a, torch.Size) else a for a in shapes)
        return int(formula(*equal, **kwargs))

    return flops


def _grouped_flops(left: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count FLOPs of grouped products, which torch has no formula for. Groups are in rows, columns or the sum."""
    groups = left.size(0) if left.dim() == right.dim() == 3 else 1
    return 2 * groups * left.size(-2) * left.size(-1) * right.size(-1)


_SHAPES = {
    **SHAPE_RULES,
    aten._cudnn_rnn.default: recurrent_shape,
    aten._cudnn_rnn_backward.default: recurrent_backward_shape,
}
_FORMULAS: dict[Any, Formula] = {
    **dict.fromkeys(_GROUPED, _grouped_flops),
    aten._cudnn_rnn: recurrent_flops,
    aten._cudnn_rnn_backward: recurrent_backward_flops,
}
"""FLOP formulas of operators that torch has none for."""


def _parts_in(func: Operator) -> Callable[..., Any] | None:
    """In inference mode even operators that are only names for others arrive whole."""
    if func is aten.where.self:
        # A mask of bytes is converted first, as on a card; torch's rule for shapes refuses it.
        return lambda condition, *values: func(condition.bool(), *values)
    if func in _MADE_OF_OTHERS:
        return _spelled_out(func, "CompositeExplicitAutograd")
    name, key = func.name(), "CompositeImplicitAutograd"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, key) and not has(name, "Meta"):
        return _spelled_out(func, key)
    return None


def _body_of(func: Operator) -> Callable[..., Any] | None:
    """Return the function that `torch.library.custom_op` made an operator of, as it is written for a card."""
    from torch._library.custom_ops import OPDEFS

    definition: Any = OPDEFS.get(func.name())
    if definition is None or definition._abstract_fn is None or not set(definition._backend_fns) & {None, "cuda"}:
        return None
    # As written, without torch's check of what is returned.
    is_for_all = len(definition._backend_fns) == 1
    body: Callable[..., Any] = definition._init_fn if is_for_all else definition._backend_fns.get("cuda")
    return body


def _spelled_out(func: Operator, key: str) -> Callable[..., Any] | None:
    which = getattr(torch._C.DispatchKey, key)
    run = getattr(func, "_op_dk", None)
    return None if run is None else lambda *args, **kwargs: run(which, *args, **kwargs)


@dataclass
class OperatorTotals:
    flops: int = 0
    """FLOPs of matrix products, convolutions and attention, a multiply and an add each; others are not counted."""
    bytes_moved: int = 0
    """Read and written by operators, each as if it met its tensors in main memory; no views, and no empty memory."""
    from_host_bytes: int = 0
    """Bytes of tensors copied from the host; `Host` counts copies to it."""
    link_bytes: int = 0
    """That collectives send to other devices."""

    def add(self, treatment: Treatment, args: Any, kwargs: Any, out: Any, shapes: ShapeKey | None) -> None:
        """`shapes` are those of the arguments, where all that is counted follows from them."""
        work = None if shapes is None else treatment.work.get(shapes)
        if work is None:
            formula, moved = treatment.formula, 0
            # The formulas of products take a shape where `mm.dtype` and its like have the dtype of the result.
            shaped = [arg for arg in args if not isinstance(arg, torch.dtype)]
            flops = 0 if formula is None else int(formula(*shaped, **kwargs, out_val=out))
            if treatment.launches:
                met = tensors_of((*args, *kwargs.values(), out if treatment.gives_new else None))
                moved = sum(tensor.numel() * tensor.element_size() for tensor in met)
            work = flops, moved
            if shapes is not None and len(treatment.work) < _MOST_WORK:
                treatment.work[shapes] = work
        self.flops += work[0]
        self.bytes_moved += work[1]

    def copied(self, out: Any, sources: Any) -> None:
        """Count the bytes that one of `COPIES` moved from the host to the device."""
        if all(tensor.is_meta for tensor in tensors_of(out)):
            on_host = (tensor for tensor in tensors_of(sources) if not tensor.is_meta)
            self.from_host_bytes += sum(tensor.numel() * tensor.element_size() for tensor in on_host)
