"""Which attention kernel each card takes, and the memory it leaves and needs."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from memviz.errors import UsageError
from memviz.runner.predict.cards import card_named
from memviz.runner.predict.decompositions import AttentionCall, Backend, backend_for
from memviz.runner.predict.predicted_device import PredictedDevice
from tests.runner.predict.rows import A100, allocations

MATH, FLASH, EFFICIENT, CUDNN = Backend
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


def call(
    dtype: torch.dtype = BRAIN,
    *,
    width: int = 64,
    heads: tuple[int, int] = (4, 4),
    mask: bool = False,
    trains: bool = True,
    keys: int = 32,
    **more: object,
) -> AttentionCall:
    def make(count: int, length: int) -> torch.Tensor:
        return torch.empty(2, count, length, width, dtype=dtype, device="meta", requires_grad=trains)

    given = torch.empty(32, keys, device="meta") if mask else None
    options = {"dropout": 0.0, "is_causal": False, "grouped": False, **more}
    return AttentionCall(make(heads[0], 32), make(heads[1], keys), make(heads[1], keys), given, **options)  # type: ignore[arg-type]


def test_a_program_may_try_a_kernel_and_take_another() -> None:
    """As on a card, where torch has no kernel it says so with an error of its own."""
    with PredictedDevice(A100):
        x = torch.rand(2, 4, 32, 64, device="cuda")
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
            functional.scaled_dot_product_attention(x, x, x)
        assert functional.scaled_dot_product_attention(x, x, x).shape == x.shape


@pytest.mark.parametrize(
    ("card", "asked", "expected"),
    [
        ("A100 40", call(), FLASH),
        ("A100 40", call(mask=True), EFFICIENT),
        ("A100 40", call(SINGLE), EFFICIENT),
        ("A100 40", call(width=63), FLASH),
        ("A100 40", call(width=63, mask=True), MATH),
        ("A100 40", call(width=512), EFFICIENT),
        ("A100 40", call(is_causal=True, keys=16), EFFICIENT),
        ("A100 40", call(heads=(4, 2), grouped=True), FLASH),
        ("A100 40", call(heads=(4, 2), grouped=True, mask=True), MATH),
        ("A100 40", call(torch.float64), MATH),
        ("4090", call(width=208), EFFICIENT),
        ("4090", call(width=208, trains=False), FLASH),
        ("4090", call(width=256), FLASH),
        ("4090", call(width=256, dropout=0.5), EFFICIENT),
        ("T4", call(HALF), EFFICIENT),
        ("T4", call(BRAIN), MATH),
        ("H200", call(), CUDNN),
        ("H200", call(dropout=0.1), FLASH),
        ("H200", call(mask=True), CUDNN),
        ("H200", call(width=256), FLASH),
        ("B200", call(keys=1), FLASH),
    ],
)
def test_the_kernel_a_card_takes(card: str, asked: AttentionCall, expected: Backend) -> None:
    assert backend_for(asked, card_named(card), (2, 13)) is expected


def test_before_torch_2_10_hopper_takes_flash() -> None:
    assert backend_for(call(), card_named("H100"), (2, 6)) is FLASH


def test_switches_are_torchs_own() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert backend_for(call(), A100, (2, 13)) is MATH
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert backend_for(call(), A100, (2, 13)) is EFFICIENT
    with (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        pytest.raises(UsageError, match=r"\(flash\) can do this on Tesla T4"),
    ):
        backend_for(call(HALF), card_named("T4"), (2, 13))


def attended(backend: SDPBackend, **options: object) -> list[tuple[str, int]]:
    """Operators and bytes of one call with its backward, from the call on; sizes below a KiB left out."""
    with PredictedDevice(A100) as device, sdpa_kernel(backend):
        x = torch.empty(2, 256, 4, 64, dtype=BRAIN, device=device.torch_device).transpose(1, 2).requires_grad_()
        before = len(allocations(device.finish()))
        functional.scaled_dot_product_attention(x, x, x, **options).sum().backward()  # type: ignore[arg-type]
        rows = allocations(device.finish())[before:]
    return [(row.operator, row.size) for row in rows if row.size >= 1024 and row.category.name != "WORKSPACE"]


IN = 2 * 4 * 256 * 64 * 2
"""Bytes of the queries."""
ROW = 2 * 4 * 256 * 4
"""A number in fp32 for each row of scores."""


def test_flash_keeps_a_number_a_row_and_sums_the_queries_gradient_in_fp32() -> None:
    forward, backward = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
    assert attended(SDPBackend.FLASH_ATTENTION) == [
        (forward, IN),
        (forward, ROW),
        *[(backward, IN)] * 3,
        (backward, ROW),
        (backward, 2 * IN),
    ]


def test_math_keeps_scores_of_every_pair_in_fp32() -> None:
    pairs = 2 * 4 * 256 * 256 * 4
    found = attended(SDPBackend.MATH, is_causal=True)
    scores = [operator for operator, size in found if size == pairs]
    # The mask is added in place; in backward each has a gradient.
    assert scores == ["bmm", "_softmax", "bmm", "_softmax_backward_data"]
    mask = torch.zeros(256, 256, dtype=BRAIN, device="meta")
    assert [operator for operator, size in attended(SDPBackend.MATH, attn_mask=mask) if size == pairs] == scores


def test_flex_attention_keeps_a_number_a_row_and_gives_what_its_function_learns_a_gradient() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    with PredictedDevice(A100) as device, warnings.catch_warnings():
        # Uncompiled, torch warns; here nothing is compiled.
        warnings.filterwarnings("ignore", "flex_attention called without", UserWarning)
        x = torch.empty(2, 4, 256, 64, dtype=BRAIN, device="cuda", requires_grad=True)
        bias = torch.zeros(4, 1024, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        out = torch.compile(flex_attention)(x, x, x, score_mod=lambda score, b, h, i, j: score + bias[h, j])
        assert torch.cuda.memory_allocated() - before == IN + ROW
        assert str(out.mean().item()) == "unknown"
        assert not [said for said in device.unseen() if said.startswith("torch.compile")]
        after = len(allocations(device.finish()))
        out.backward(torch.empty_like(out))
        sizes = [row.size for row in allocations(device.finish())[after:]]
    assert sizes[:1] == [IN] and sizes[1:6] == [ROW, IN, IN, IN, bias.nbytes]
    assert bias.grad is not None and bias.grad.shape == bias.shape


def test_other_operators_that_take_functions_are_refused_by_name() -> None:
    with PredictedDevice(A100), pytest.raises(UsageError, match="cond cannot be predicted: it takes functions"):
        x = torch.empty(4, device="cuda")
        torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
