"""Memory inside operators: copies, buffers and workspaces besides results."""

import copy
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from memviz.predictor.cards import KnownCard, card_named
from memviz.predictor.device import PredictedDevice
from memviz.predictor.workspaces import Accumulator, reduction_buffers, sort_scratch_bytes
from memviz.trace.model import Action, Category
from tests.predictor.rows import A100, WORKSPACE, Row, allocations, sizes
from tests.predictor.test_unknown_values import there

RTX_4090 = card_named("RTX 4090")
NEWEST = (2, 13)
LAST = torch.channels_last


def allocated(run: Callable[[], object], card: KnownCard = A100, release: tuple[int, int] = NEWEST) -> list[Row]:
    with PredictedDevice(card, release=release) as device:
        run()
        return allocations(device.finish())


def sizes_of(run: Callable[[], object], operator: str, *, temporary: bool = False, **on: Any) -> list[int]:
    """Return the sizes that an operator allocates, or only its `temporary` ones, without results."""
    rows = [row for row in allocated(run, **on) if row.operator == operator]
    return [row.size for row in rows if row.category is Category.TEMPORARY or not temporary]


@pytest.mark.parametrize(("columns", "padded"), [(24, []), (25, [32]), (28, [32]), (31, [32])])
def test_a_mask_of_rows_that_are_no_multiple_of_8_is_padded_to_one(columns: int, padded: list[int]) -> None:
    def attend() -> None:
        keys = zeros(2, 4, columns, 64)
        functional.scaled_dot_product_attention(zeros(2, 4, 16, 64), keys, keys, attn_mask=zeros(2, 1, 16, columns))

    assert sizes_of(attend, "constant_pad_nd") == [4 * 2 * 16 * row for row in padded]


@pytest.mark.parametrize(("kind", "more"), [(lambda tensor: tensor, [4]), (torch.nn.Parameter, [])])
def test_a_deep_copy_of_a_tensor_takes_an_empty_one_for_a_moment(
    kind: Callable[[Tensor], Tensor], more: list[int], device: PredictedDevice
) -> None:
    """A parameter is cloned instead."""
    tensor = kind(zeros(1024))
    before = len(sizes(device.finish()))
    copied = copy.deepcopy(tensor)
    assert sizes(device.finish())[before:] == [4096, *more] and type(copied) is type(tensor)
    assert device.allocated_bytes == 2 * 4096


def test_the_wrapped_index_lives_until_it_is_multiplied(device: PredictedDevice) -> None:
    """The recorded training steps show this order."""
    add_at((512, 16), (100, 16), 100)()
    events = device.finish().devices[0].events
    moves = [int(action) for action, size in zip(events.action, events.size, strict=True) if size == 800]
    first = moves.index(Action.ALLOC, 1)
    assert moves[first : first + 4] == [Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]


def zeros(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(shape, device="cuda", **options)


def places(*shape: int) -> Tensor:
    return zeros(*shape, dtype=torch.int64)


def add_at(table: tuple[int, ...], added: tuple[int, ...], *indices: int) -> Callable[[], object]:
    return lambda: zeros(*table).index_put_(tuple(map(places, indices)), zeros(*added), accumulate=True)


def put_at_indices_of_the_host() -> None:
    zeros(10, 64)[torch.tensor([1, 2, 3])] = zeros(64)


def look_up(rows: Callable[[], Tensor]) -> Callable[[], object]:
    return lambda: functional.embedding(rows(), zeros(10, 64))


def learn_rows(count: int) -> Callable[[], object]:
    return lambda: functional.embedding(places(count), zeros(512, 64, requires_grad=True)).sum().backward()


def attend(rows: int, width: int, dtype: torch.dtype) -> Callable[[], object]:
    def run() -> None:
        x = zeros(2, 1, rows, width, dtype=dtype)
        functional.scaled_dot_product_attention(x, x, x, zeros(2, 1, rows, rows, dtype=dtype))

    return run


def half(*shape: int) -> Tensor:
    return zeros(*shape, dtype=torch.bfloat16)


# Counters of each pass and of each tile, a copy of keys and of values, and what rounds each of them up.
FEW_ROWS = [
    *(320_000, 320_000, 160_000, 4 * 2048 + 11 * 1024 + 160_000 + 320_000 + 256 + 255),
    2048 + 11 * 1024 + 256 + 255,
]
SORTED_COLUMNS = [
    *(80_000, 80_000, 160_000, 160_000, 160_000, 80_000, 4 * 2048 + 6 * 1024 + 80_128 + 160_000 + 256 + 255),
    2048 + 6 * 1024 + 256 + 255,
]
MANY_LARGEST = [*(20_000, 40_000, 40_000, 20_000, 40_000, 4 * 2048 + 2 * 1024 + 20_224 + 40_192 + 256 + 255, 40_000)]
SORTED_KEYS = [8 * 2048 + 3 * 1024 + 65_536 + 256 + 255]
ONE_ROW = [4 * 2048 + 3 * 1024 + 32_768 + 65_536 + 256 + 255]
PADDED = 2 * 3 * 18 * 18 * 4
TAKEN: dict[str, tuple[Callable[[], object], str, list[int]]] = {
    "power of a tensor": (lambda: 10_000 ** zeros(32), "pow_Scalar", [128, 8]),
    "power of a float": (lambda: 0.5 ** zeros(32), "pow_Scalar", [128, 8]),
    "power of one": (lambda: 1.0 ** zeros(32), "pow_Scalar", [128]),
    "complex power": (lambda: 1j ** zeros(32), "pow_Scalar", [256, 16]),
    "power of a number": (lambda: zeros(32) ** 2, "pow_Tensor_Scalar", [128]),
    "index": (lambda: zeros(10, 64)[torch.tensor([1, 2, 3], device="cuda")], "index_Tensor", [768]),
    "index of the host": (lambda: zeros(10, 64)[torch.tensor([1, 2, 3])], "index_Tensor", [768, 24]),
    "put at indices of the host": (put_at_indices_of_the_host, "index_put_", [24]),
    "sort of short rows": (lambda: zeros(4, 100).sort(), "sort", [1600, 3200, 800]),
    "sort of columns": (lambda: zeros(5000, 4).sort(0), "sort", [80_000, 160_000, *SORTED_COLUMNS]),
    "sort of rows in another order": (
        lambda: zeros(2, 2, 10_000).transpose(0, 1).sort(), "sort", [160_000, 320_000, *FEW_ROWS]
    ),
    "distinct values": (
        lambda: there(8192, dtype=torch.long).unique(), "_unique2", [65_536, 65_536, *SORTED_KEYS, 8, 336]
    ),
    "distinct values with places": (
        lambda: there(8192, dtype=torch.long).unique(return_inverse=True),
        "_unique2",
        [*(65_536,) * 5, SORTED_KEYS[0] + 65_536, 65_536, 336, 8, 336],
    ),
    "sort of one row": (lambda: zeros(8192).sort(), "sort", [32_768, 65_536, 65_536, *ONE_ROW]),
    "sort of few rows": (lambda: zeros(4, 10_000).sort(), "sort", [160_000, 320_000, *FEW_ROWS]),
    "sort of many rows": (lambda: half(128, 5000).sort(), "sort", [1_280_000, 5_120_000, 5_120_000, 6_400_255]),
    "largest of short rows": (lambda: zeros(512, 8).topk(2), "topk", [4096, 8192]),
    # One row of 128,000 in 125 blocks of 4 elements for each of 256 threads.
    "largest of a long row": (lambda: zeros(128_000).topk(50), "topk", [200, 400, 4, 4, 8, 8, 64_000, 500, 500, 1]),
    "many of the largest": (lambda: zeros(8192).topk(5000, sorted=True), "topk", MANY_LARGEST),
    "scan of rows": (lambda: places(2, 8).cumsum(1), "cumsum", [128]),
    "scan of a mask": (lambda: zeros(2, 8, dtype=torch.bool).cumsum(1), "cumsum", [128, 128]),
    "one draw": (lambda: zeros(2, 1000).multinomial(1), "multinomial", [16, 8000]),
    "draws that may repeat": (lambda: zeros(2, 1000).multinomial(3, True), "multinomial", [48, *3 * [8000]]),
    "add at few indices": (add_at((512, 16), (100, 16), 100), "index_put_", [800] * 5 + [1]),
    # A second index takes two more for a moment.
    "add at two indices": (add_at((8, 8, 4), (100, 4), 100, 100), "index_put_", [800] * 7 + [1]),
    "add an expanded row": (add_at((512, 16), (16,), 100), "index_put_", [800, 800, 100 * 16 * 4, 800, 800, 800, 1]),
    "embedding": (look_up(lambda: places(4, 8)), "embedding", [8192]),
    "embedding of expanded indices": (look_up(lambda: places(8).expand(4, 8)), "embedding", [8192, 256]),
    # Of a sum the gradient is one number for all, laid end to end.
    "gradient of few rows": (learn_rows(3072), "embedding_dense_backward", [512 * 64 * 4, 3072 * 64 * 4]),
    "softmax": (lambda: functional.softmax(zeros(64, 32), -1), "_softmax", [8192]),
    "softmax of columns": (lambda: functional.softmax(zeros(64, 32).t(), -1), "_softmax", [8192, 8192]),
    "product with a transposed matrix": (lambda: zeros(64, 64) @ zeros(64, 64).t(), "mm", [16_384, WORKSPACE]),
    "product with some columns": (lambda: zeros(64, 64) @ zeros(64, 128)[:, :64], "mm", [16_384, WORKSPACE]),
    "product with every other column": (
        lambda: zeros(64, 64) @ zeros(64, 128)[:, ::2], "mm", [16_384, 16_384, WORKSPACE]
    ),
    "reflection": (lambda: functional.pad(zeros(2, 3, 16, 16), (1,) * 4, "reflect"), "reflection_pad2d", [PADDED]),
    "replication of columns": (
        lambda: functional.pad(zeros(2, 3, 16, 16).mT, (1,) * 4, "replicate"),
        "replication_pad2d",
        [PADDED, 2 * 3 * 16 * 16 * 4],
    ),
    "dropout": (lambda: functional.dropout(zeros(64, 64)), "native_dropout", [64 * 64, 64 * 64 * 4]),
    "narrow heads": (attend(256, 128, torch.float16), "_scaled_dot_product_efficient_attention", [2 * 256 * 128 * 2]),
    # As in the one head of a picture decoder.
    "wide heads": (
        attend(256, 512, torch.float16),
        "_scaled_dot_product_efficient_attention",
        [2 * 256 * 512 * 2, 2 * 256 * 512 * 4],
    ),
    "wide heads in fp32": (
        attend(256, 512, torch.float32), "_scaled_dot_product_efficient_attention", [2 * 256 * 512 * 4]
    ),
    # Losses reduced to one number keep the block of all losses, except Huber's.
    "squares": (lambda: functional.mse_loss(*zeros(2, 64)), "mse_loss", [64 * 4] * 2),
    "cross entropies": (lambda: functional.binary_cross_entropy(*zeros(2, 64)), "binary_cross_entropy", [64 * 4, 4]),
    "Huber's losses": (lambda: functional.huber_loss(*zeros(2, 64)), "huber_loss", [4, 64 * 4]),
    "transform of two dimensions": (
        lambda: torch.fft.ifft2(zeros(64, 32, dtype=torch.complex64)), "_fft_c2c", [64 * 32 * 8, 64 * 32 * 8]
    ),
    "transform of one dimension": (lambda: torch.fft.rfft(zeros(64, 32)), "_fft_r2c", [64 * 17 * 8]),
    "transform of two dimensions of real numbers": (
        lambda: torch.fft.rfft2(zeros(4, 64, 32)), "_fft_r2c", [4 * 64 * 17 * 8] * 2
    ),
    # The last of the two dimensions, then the first.
    "transform of a real matrix": (lambda: torch.fft.rfft2(zeros(64, 32)), "_fft_r2c", [64 * 17 * 8] * 2),
    "transform back to real numbers": (
        lambda: torch.fft.irfft2(zeros(4, 64, 17, dtype=torch.complex64)),
        "_fft_c2r",
        [4 * 64 * 32 * 4, *[4 * 64 * 17 * 8] * 2],
    ),
    "transform of overlapping windows": (
        lambda: torch.fft.rfft(zeros(8, 2000).unfold(1, 400, 100)), "_fft_r2c", [8 * 17 * 201 * 8, 8 * 17 * 400 * 4]
    ),
    "convolution of a permuted sequence": (
        lambda: nn.Conv1d(16, 32, 3, bias=False).cuda()(zeros(2, 64, 16).mT),
        "convolution",
        # The result, a copy of the sequence, and all three for tensor cores.
        [2 * 32 * 62 * 4, 2 * 16 * 64 * 4, 4 * (2 * 32 * 62 + 2 * 16 * 64 + 16 * 32 * 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_an_operator_takes_its_results_and_what_its_kernel_needs(name: str) -> None:
    run, operator, taken = TAKEN[name]
    assert sizes_of(run, operator) == taken


def test_many_indices_are_sorted() -> None:
    found = sizes_of(add_at((10_000, 16), (8192, 16), 8192), "index_put_", card=RTX_4090)
    assert found == [65_536] * 5 + [138_751]
    summed = sizes_of(learn_rows(4096), "embedding_dense_backward")
    # Behind the result.
    assert (len(summed), summed[-1]) == (13, (4096 // 10 + 512) * 64 * 4)


@pytest.mark.parametrize(
    ("card", "count", "highest", "size"),
    [
        # The first three were recorded.
        ("RTX 4090", 1024, 9_999, 1),
        ("RTX 4090", 2048, 9_999, 1),
        ("RTX 4090", 8192, 9_999, 138_751),
        ("H100", 8192, 9_999, 2 * 2048 + 2 * 1024 + 2 * 65_536 + 256 + 255),
        ("T4", 8192, 9_999, 2 * 2048 + 3 * 1024 + 2 * 65_536 + 256 + 255),
        ("RTX 4090", 8192, 70_000, 3 * 2048 + 3 * 1024 + 2 * 65_536 + 256 + 255),
        # One pass writes straight into the results.
        ("RTX 4090", 8192, 255, 2048 + 3 * 1024 + 256 + 255),
    ],
)
def test_scratch_of_a_sort(card: str, count: int, highest: int, size: int) -> None:
    assert sort_scratch_bytes(count, highest, card_named(card)) == size


def test_attention_keeps_the_state_of_random_numbers_where_the_release_keeps_it() -> None:
    def attend_with_dropout(dtype: torch.dtype) -> Callable[[], object]:
        def run() -> None:
            x = zeros(2, 4, 128, 64, dtype=dtype, requires_grad=True)
            functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1, is_causal=True).sum().backward()

        return run

    flash, efficient = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"
    assert sizes_of(attend_with_dropout(torch.bfloat16), flash, release=(2, 6)) == [131_072, 4096]
    assert sizes_of(attend_with_dropout(torch.bfloat16), flash, release=(2, 7)) == [131_072, 4096, 16, 8]
    for release in ((2, 6), NEWEST):
        assert sizes_of(attend_with_dropout(torch.float32), efficient, release=release) == [262_144, 4096]


@pytest.mark.parametrize(
    ("card", "dtype", "width", "workspace"),
    [
        # The first was recorded.
        ("RTX 3090", torch.float32, 256, 4 * (64 * 64 * 4 + 16)),
        ("A100 40GB", torch.float32, 128, 2 * (128 * 64 * 4 + 16)),
        ("A100 40GB", torch.float16, 128, 128 * 128 * 4 + 16),
        ("RTX 3090", torch.float16, 80, 2 * (128 * 64 * 4 + 16)),
        # Keys' and values' gradients too.
        ("RTX 3090", torch.float16, 128, 2 * (64 * 64 * 4 + 16) + 64 * 2 * 128 * 4),
    ],
)
def test_gradients_of_attention_are_summed_in_tiles_that_fit_the_card(
    card: str, dtype: torch.dtype, width: int, workspace: int
) -> None:
    def run() -> None:
        x = zeros(3, 1, 64, width, dtype=dtype, requires_grad=True)
        functional.scaled_dot_product_attention(x, x, x, zeros(3, 1, 64, 64, dtype=dtype)).sum().backward()

    operator = "_scaled_dot_product_efficient_attention_backward"
    assert sizes_of(run, operator, card=card_named(card))[-1] == 3 * workspace


def test_a_few_rows_of_attention_are_split_over_the_card() -> None:
    def temporaries(batch: int) -> int:
        def run() -> None:
            x = zeros(batch, 8, 4096, 64, dtype=torch.bfloat16)
            functional.scaled_dot_product_attention(x[:, :, :64], x, x)

        return sum(sizes_of(run, "_scaled_dot_product_flash_attention", release=(2, 6)))

    out, numbers = 8 * 64 * 64 * 2, 8 * 64 * 4
    # With many heads every unit of the card has work; with eight, keys are shared out: a result and a number for each.
    assert temporaries(64) == 64 * (out + numbers)
    parts, rest = divmod(temporaries(1) - out - numbers, 2 * out + numbers)
    assert (parts > 4, rest) == (True, 0)


CONVOLVED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[int]]] = {
    "nine pixels": (lambda: nn.Conv2d(16, 32, 3, padding=1), (2, 16, 8, 8), [2 * (2 * 64 * (16 + 32) + 16 * 32 * 9)]),
    "padded": (lambda: nn.Conv2d(3, 24, 3, padding=1), (2, 3, 8, 8), [2 * (2 * 64 * (8 + 24) + 8 * 24 * 9)]),
    "back": (lambda: nn.ConvTranspose2d(16, 8, 2, 2), (2, 16, 8, 8), [2 * (2 * 64 * (16 + 4 * 8) + 16 * 8 * 4)]),
    "one pixel": (lambda: nn.Conv2d(16, 32, 1), (2, 16, 8, 8), []),
    "every second pixel": (lambda: nn.Conv2d(16, 32, 1, 2), (2, 16, 8, 8), [2 * 2 * (64 * 16 + 16 * 32)]),
    "a film": (lambda: nn.Conv3d(8, 8, 3, padding=1), (1, 8, 4, 8, 8), [2 * (4 * 64 * 16 + 8 * 8 * 27)]),
    "in groups": (lambda: nn.Conv2d(16, 16, 3, groups=16), (2, 16, 8, 8), []),
    "channels last": (lambda: nn.Conv2d(16, 32, 3).to(memory_format=LAST), (2, 16, 8, 8), []),
}


@pytest.mark.parametrize("name", CONVOLVED)
def test_tensor_cores_convolve_copies_in_channels_last(name: str) -> None:
    """Sizes measured on an H100 (cuDNN 9.19). For cards before Ampere, not measured, no workspace is counted."""
    make, shape, sizes = CONVOLVED[name]

    def run() -> None:
        images = zeros(*shape, dtype=torch.bfloat16)
        images = images.contiguous(memory_format=LAST) if name == "channels last" else images
        out = make().to("cuda", torch.bfloat16)(images.requires_grad_())
        out.backward(torch.empty_like(out))

    for card, wanted in (("H100", sizes), ("T4", [])):
        taken: dict[str, list[int]] = {"convolution": [], "convolution_backward": []}
        for row in allocated(run, card_named(card)):
            if row.category is Category.TEMPORARY and row.operator in taken:
                taken[row.operator].append(row.size)
        # Behind the gradient of the images is a workspace for each gradient.
        assert taken == {"convolution": wanted, "convolution_backward": [2 * prod(shape), *wanted, *wanted]}


IMAGES, RESULTS, WEIGHTS = 2 * 16 * 8 * 8 * 4, 2 * 32 * 8 * 8 * 4, 32 * 16 * 3 * 3 * 4


@pytest.mark.parametrize(
    ("images_last", "weights_last", "copies"),
    [(True, True, []), (True, False, [WEIGHTS]), (False, True, [IMAGES]), (False, False, [])],
)
@pytest.mark.parametrize("inference", [False, True])
def test_convolutions_work_channels_last_where_the_images_or_the_weights_do(
    images_last: bool, weights_last: bool, copies: list[int], inference: bool
) -> None:
    def run() -> None:
        layer = nn.Conv2d(16, 32, 3, padding=1, bias=False).cuda()
        layer = layer.to(memory_format=LAST) if weights_last else layer
        images = zeros(2, 16, 8, 8)
        with torch.inference_mode(inference):
            out = layer(images.contiguous(memory_format=LAST) if images_last else images)
        assert out.is_contiguous(memory_format=LAST) == (images_last or weights_last) != out.is_contiguous()

    assert sizes_of(run, "convolution", temporary=True, card=card_named("T4")) == copies


def test_a_network_stays_channels_last_from_end_to_end(device: PredictedDevice) -> None:
    network = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 8, 2)),
        nn.Upsample(scale_factor=2),
    ).to("cuda", memory_format=LAST)
    images = torch.zeros(2, 3, 32, 32).to("cuda", memory_format=LAST)
    with torch.autocast("cuda", dtype=torch.float16):
        out = network(images)
    assert out.is_contiguous(memory_format=LAST) and not out.is_contiguous()
    with pytest.raises(RuntimeError, match="view"):
        out.view(2, -1)
    out.sum().backward()


def test_gradients_in_another_layout_and_images_in_double_precision_are_copied() -> None:
    def run() -> None:
        layer = nn.Conv2d(16, 32, 3, padding=1, bias=False).to("cuda", memory_format=LAST)
        layer(zeros(2, 16, 8, 8).contiguous(memory_format=LAST)).backward(zeros(2, 32, 8, 8))

    assert sizes_of(run, "convolution_backward", temporary=True) == [RESULTS]

    # Double precision is not computed channels last.
    def run() -> None:
        layer = nn.Conv2d(16, 32, 3, padding=1, bias=False).double().cuda()
        assert layer(zeros(2, 16, 8, 8, dtype=torch.double).contiguous(memory_format=LAST)).is_contiguous()

    assert sizes_of(run, "convolution", temporary=True) == [2 * IMAGES]


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (":4096:8", 32 << 20),
        (":16:8", 128 << 10),
        (":4096:2:16:8", WORKSPACE),
        (":1024:1:2048:2", 5 << 20),
        ("4 MiB", WORKSPACE),
    ],
)
def test_the_environment_sets_the_workspaces_of_cublas(
    monkeypatch: pytest.MonkeyPatch, config: str, size: int, device: PredictedDevice
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    x = zeros(8, 8, requires_grad=True)
    y = x @ x
    # It is not read again.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":2:1")
    y.sum().backward()
    taken = [row.size for row in allocations(device.finish()) if row.category is Category.WORKSPACE]
    assert taken == [size] * 2


LT, UNIFIED = "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"
SINGLE_CALL = [1 << 20, WORKSPACE, 1 << 20]
"""Allocated and freed for each product before the handle's workspace."""


@pytest.mark.parametrize(
    ("release", "environment", "taken"),
    [
        ((2, 1), {}, SINGLE_CALL),
        ((2, 8), {}, SINGLE_CALL),
        ((2, 11), {}, [WORKSPACE]),
        ((2, 13), {}, [WORKSPACE]),
        ((2, 6), {LT: "4096"}, [4 << 20, WORKSPACE, 4 << 20]),
        ((2, 6), {LT: "4096", UNIFIED: "1"}, [4 << 20, WORKSPACE, 4 << 20]),
        ((2, 8), {UNIFIED: "1"}, [WORKSPACE]),
        ((2, 6), {LT: "much"}, SINGLE_CALL),
        ((2, 6), {LT: "0"}, [WORKSPACE]),
        # Kept, behind the handle's.
        ((2, 10), {LT: "2048KiB"}, [WORKSPACE, 2 << 20]),
        ((2, 10), {UNIFIED: "1"}, [WORKSPACE]),
        ((2, 13), {LT: "4096"}, [WORKSPACE]),
        ((2, 13), {LT: "4096", UNIFIED: "0"}, [WORKSPACE, 4 << 20]),
        ((2, 13), {UNIFIED: "0"}, [WORKSPACE, 1 << 20]),
        ((2, 13), {UNIFIED: "no"}, [WORKSPACE]),
    ],
)
def test_a_bias_added_within_the_product_has_the_workspace_of_the_release_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, release: tuple[int, int], environment: dict[str, str], taken: list[int]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with PredictedDevice(A100, release=release) as device:
        layer = nn.Linear(64, 32, device="cuda")
        x = zeros(8, 64)
        kept = layer(x), layer(x), functional.linear(x, layer.weight)
        rows = allocations(device.finish())
        del kept
    assert [row.size for row in rows if row.size >= 1 << 20] == taken


def test_a_larger_workspace_replaces_the_one_that_is_there(device: PredictedDevice) -> None:
    x = zeros(64, 64)
    held = [torch.cuda.memory_allocated()]
    for size in (None, 16 << 20, 4 << 20):
        said = torch.backends.cuda.cublas_workspace_size(size)
        assert said == (WORKSPACE if size is None else size)
        x @ x
        held.append(torch.cuda.memory_allocated())
    torch._C._cuda_resetCublasWorkspaceSize()
    assert torch.backends.cuda.cublas_workspace_size() == WORKSPACE
    workspaces = [row.size for row in allocations(device.finish()) if row.category is Category.WORKSPACE]
    assert workspaces == [WORKSPACE, 16 << 20]
    assert [after - held[0] for after in held] == [0, WORKSPACE, 16 << 20, 16 << 20]


def test_a_shared_workspace_of_cublaslt_is_no_larger_than_that_of_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    with PredictedDevice(A100):
        assert torch.backends.cuda.cublaslt_workspace_size() == WORKSPACE
        assert torch.backends.cuda.cublaslt_workspace_size(64 << 20) == WORKSPACE
        with pytest.raises(RuntimeError, match="at least 0"):
            torch.backends.cuda.cublaslt_workspace_size(-1)
    monkeypatch.setenv(UNIFIED, "0")
    with PredictedDevice(A100) as device:
        assert torch.backends.cuda.cublaslt_workspace_size(4 << 20) == 4 << 20
        kept = nn.Linear(64, 32, device="cuda")(zeros(8, 64))
        rows = allocations(device.finish())
        del kept
    assert [row.size for row in rows if row.size >= 1 << 20] == [WORKSPACE, 4 << 20]


FLOATS = Accumulator(kept=4, output=4)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("tensor", "dims", "taken"),
    [
        # Recorded: the gradient of a norm's weight, and a sum over everything.
        (empty(4, 512, 1024), (0, 1), [16_777_216, 32]),
        (empty(8, 4096, 16), (), [256, 4]),
        # Dimensions are ordered by their strides, not by their index.
        (empty(4, 512, 1024).permute(2, 0, 1), (1, 2), [16_777_216, 32]),
        # 192 blocks of four warps would keep the card busy, but 16 values a thread are the least.
        (empty(64, 1024, 1024), (0, 1), [192 * 1024 * 4 * 32 * 4, 32]),
        # Without vectors of four a block is 16 warps high and 32 outputs wide. To keep the card busy 12 shares would
        # do, but a thread adds no more than 256 of 65,536 / 16 values.
        (empty(64, 1024, 1023), (0, 1), [16 * 1023 * 4 * 32, 32 * 4]),
        (empty(64 * 1024 * 1024 + 1)[1:].view(64, 1024, 1024), (0, 1), [16 * 1024 * 4 * 32, 32 * 4]),
        # Rows one by one: every warp has its own outputs.
        (empty(8192, 768), (1,), []),
        # Too few rows to split.
        (empty(512, 1024), (0,), []),
    ],
)
def test_a_sum_is_split_over_a_card_with_128_multiprocessors(
    tensor: Tensor, dims: tuple[int, ...], taken: list[int]
) -> None:
    assert reduction_buffers(tensor, dims, FLOATS, RTX_4090) == taken


def test_larger_cards_and_tensors_are_summed_in_more_parts() -> None:
    many, cards = empty(64, 1024, 1024), ("T4", "RTX 4090", "A100 40GB")
    by_card = [reduction_buffers(many, (0, 1), FLOATS, card_named(name))[0] for name in cards]
    one = 1024 * 4 * 32 * 4
    # 40 x 1024, 128 x 1536 and 108 x 2048 threads, in blocks of 128 over 8 columns of them.
    assert by_card == [64 * one, 192 * one, 216 * one]
    first, second = reduction_buffers(empty(2**30), (), FLOATS, RTX_4090)
    assert first == second == (2**29 // 512 // 256 * 4, 4)
    half = empty(2**31, dtype=torch.float16)
    accumulator, *parts = reduction_buffers(half, (), Accumulator(4, 2, accumulates_in_output=False), RTX_4090)
    assert accumulator == 4 and len(parts) == 2


_PARTS = 64 * 1024 * 32 * 4
"""Values of 1,024 outputs in 64 shares: 1,024 rows a warp of four, of which a thread adds 16."""


@pytest.mark.parametrize(
    ("run", "dtype", "taken"),
    [
        (lambda x: x.sum(0), torch.float32, [_PARTS * 4, 32]),
        (lambda x: x.sum(0), torch.bfloat16, [_PARTS * 4, 32]),
        (lambda x: x.mean(0), torch.float16, [_PARTS * 4, 32]),
        (lambda x: x.amax(0), torch.bfloat16, [_PARTS * 2, 32]),
        (lambda x: x.max(0), torch.float32, [_PARTS * 16, 32]),
        (lambda x: x.max(0), torch.bfloat16, [_PARTS * 16, 32]),
        (lambda x: x.argmax(0), torch.float32, [_PARTS * 16, 32]),
        (lambda x: x.var(0), torch.float32, [_PARTS * 16, 32]),
        (lambda x: torch.linalg.vector_norm(x, dim=0), torch.float32, [_PARTS * 4, 32]),
        (lambda x: torch.maximum(x, x), torch.float32, []),
        # Counting copies what it counts into integers first.
        (lambda x: x.sum(0), torch.bool, [4096 * 1024 * 8, _PARTS * 8, 32]),
        (lambda x: x.sum(0, dtype=torch.float32), torch.bfloat16, [_PARTS * 4, 32]),
        (lambda x: functional.mse_loss(x, x), torch.float32, [4096 * 1024 * 4, 432 * 4, 4]),
    ],
)
def test_reductions_keep_values_of_their_own_width(
    run: Callable[[Tensor], object], dtype: torch.dtype, taken: Sequence[int], device: PredictedDevice
) -> None:
    x = zeros(4096, 1024, dtype=dtype)
    kept = run(x)
    rows = allocations(device.finish())
    del kept, x
    assert [row.size for row in rows if row.category is Category.TEMPORARY] == list(taken)
