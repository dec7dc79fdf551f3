"""Memory inside operators, and what is told of the rest."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from memviz.runner.predict.cards import card_named
from memviz.runner.predict.evidence import unseen_by
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.trace.model import Category
from tests.runner.predict.rows import A100, WORKSPACE, allocations


def temporaries(device: PredictedDevice, operator: str) -> list[int]:
    rows = allocations(device.finish())
    return [row.size for row in rows if row.operator == operator and row.category is Category.TEMPORARY]


@pytest.mark.parametrize(
    ("told", "bytes_"),
    [
        (":4096:8", 32 << 20),
        (":16:8", 128 << 10),
        (":4096:2:16:8", WORKSPACE),
        (":1024:1:2048:2", 5 << 20),
        ("4 MiB", WORKSPACE),
    ],
)
def test_a_program_says_how_large_the_workspaces_of_cublas_are(
    monkeypatch: pytest.MonkeyPatch, told: str, bytes_: int
) -> None:
    """As one has to that asks for deterministic algorithms; changed later it is not read again."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", told)
    with PredictedDevice(A100) as device:
        x = torch.ones(8, 8, device="cuda", requires_grad=True)
        y = x @ x
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":2:1")
        y.sum().backward()
        taken = [row.size for row in allocations(device.finish()) if row.category is Category.WORKSPACE]
    assert taken == [bytes_] * 2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_in_one_kernel_takes_its_momentum_and_nothing_else(momentum: float) -> None:
    with PredictedDevice(A100) as device:
        weights = [torch.ones(1000, 100, device="cuda", requires_grad=True), torch.ones(128, device="cuda")]
        weights[1].requires_grad_()
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=momentum, fused=True)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        before = device.allocated_bytes
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            optimizer.step()
        states = device.allocated_bytes - before
        assert torch.cuda.max_memory_allocated() == device.allocated_bytes
    # 400,000 bytes are 781.25 blocks of 512.
    assert states == (782 * 512 + 512 if momentum else 0)


def test_few_indices_of_an_embedding_are_not_sorted() -> None:
    for count, hidden in ((3072, 1), (4096, 12)):
        with PredictedDevice(A100) as device:
            table = torch.zeros(512, 64, device="cuda", requires_grad=True)
            functional.embedding(torch.zeros(count, dtype=torch.long, device="cuda"), table).sum().backward()
            found = temporaries(device, "embedding_dense_backward")
        # Of a sum the gradient is one number for all, laid end to end.
        assert (len(found), found[0]) == (hidden, count * 64 * 4)
    assert found[-1] == (4096 // 10 + 512) * 64 * 4


def test_products_copy_what_lies_badly_and_transpose_for_nothing() -> None:
    with PredictedDevice(A100) as device, torch.no_grad():
        x = torch.zeros(64, 64, device="cuda")
        wide = torch.zeros(64, 128, device="cuda")
        x @ x.t()
        x @ wide[:, :64]
        x @ wide[:, ::2]
        found = temporaries(device, "mm")
    results = [64 * 64 * 4] * 3
    assert sorted(found) == sorted([*results, 64 * 64 * 4])


def test_norms_copy_what_does_not_lie_end_to_end() -> None:
    with PredictedDevice(A100) as device, torch.no_grad():
        x = torch.zeros(64, 32, device="cuda")
        functional.softmax(x, -1)
        functional.softmax(x.t(), -1)
        assert temporaries(device, "_softmax") == [8192, 8192, 8192]


def test_a_few_rows_of_attention_are_split_over_the_card() -> None:
    def peak(card: str, batch: int) -> int:
        with PredictedDevice(card_named(card), release=(2, 6)) as device, torch.no_grad():
            x = torch.zeros(batch, 8, 4096, 64, dtype=torch.bfloat16, device="cuda")
            query = x[:, :, :64]
            functional.scaled_dot_product_attention(query, x, x)
            return sum(temporaries(device, "_scaled_dot_product_flash_attention"))

    out, numbers = 8 * 64 * 64 * 2, 8 * 64 * 4
    # With many heads every unit of the card has work; with eight, keys are shared out: a result and a number for each.
    assert peak("A100 40", 64) == 64 * (out + numbers)
    parts, rest = divmod(peak("A100 40", 1) - out - numbers, 2 * out + numbers)
    assert (parts > 4, rest) == (True, 0)


def test_what_is_not_predicted_is_said_of_the_operators_used() -> None:
    plain = unseen_by(["addmm", "gelu"], A100)
    assert not [each for each in plain if "convolution" in each]
    assert [each for each in unseen_by(["convolution"], A100) if "workspace for each convolution" in each]
    with PredictedDevice(A100) as device:
        torch.nn.LSTM(8, 8).cuda()(torch.zeros(3, 2, 8, device="cuda"))
        assert [each for each in device.unseen() if "recurrent layers" in each]
    assert set(plain) < set(unseen_by(["convolution", "sort"], A100))


def test_rms_norm_of_a_newer_torch_has_no_tensors_between() -> None:
    beside = {}
    for release in ((2, 6), (2, 13)):
        with PredictedDevice(A100, release=release) as device:
            x = torch.zeros(128, 256, device="cuda", requires_grad=True)
            before = device.allocated_bytes
            out = functional.rms_norm(x, (256,))
            number_a_row = 128 * 4
            assert device.allocated_bytes - before == out.numel() * 4 + number_a_row
            device.reset_peak()
            held = device.allocated_bytes
            out.backward(torch.zeros_like(out))
            beside[release] = device.peak_allocated_bytes - held
            assert x.grad is not None and x.grad.shape == x.shape
    given = gradient = out.numel() * 4
    assert beside[2, 13] == given + gradient
    assert beside[2, 6] > beside[2, 13] + 2 * gradient


def test_dropout_keeps_a_byte_an_element() -> None:
    with PredictedDevice(A100) as device:
        x = torch.zeros(64, 64, device="cuda", requires_grad=True)
        before = device.allocated_bytes
        out = functional.dropout(x, 0.5)
        assert device.allocated_bytes - before == out.numel() * (4 + 1)


@pytest.mark.parametrize(("release", "own"), [((2, 1), 2), ((2, 8), 2), ((2, 11), 0), ((2, 13), 0)])
def test_a_bias_added_within_the_product_has_a_workspace_of_its_own_up_to_2_8(
    release: tuple[int, int], own: int
) -> None:
    with PredictedDevice(A100, release=release) as device:
        layer = torch.nn.Linear(64, 32, device="cuda")
        x = torch.zeros(8, 64, device="cuda")
        before = len(allocations(device.finish()))
        kept = layer(x), layer(x), torch.nn.functional.linear(x, layer.weight)
        rows = allocations(device.finish())[before:]
        del kept
    # Taken for each product before the handle's, and given back.
    taken = [row.size for row in rows if row.size >= 1 << 20]
    assert taken == ([1 << 20, WORKSPACE, 1 << 20] if own else [WORKSPACE])


LT, UNIFIED = "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"


@pytest.mark.parametrize(
    ("release", "told", "taken"),
    [
        # Of each call, before the handle's.
        ((2, 6), {LT: "4096"}, [4 << 20, WORKSPACE, 4 << 20]),
        ((2, 6), {LT: "4096", UNIFIED: "1"}, [4 << 20, WORKSPACE, 4 << 20]),
        ((2, 8), {UNIFIED: "1"}, [WORKSPACE]),
        ((2, 6), {LT: "much"}, [1 << 20, WORKSPACE, 1 << 20]),
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
def test_a_program_says_how_large_that_workspace_is_and_whether_it_is_the_handles(
    monkeypatch: pytest.MonkeyPatch, release: tuple[int, int], told: dict[str, str], taken: list[int]
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with PredictedDevice(A100, release=release) as device:
        layer = torch.nn.Linear(64, 32, device="cuda")
        x = torch.zeros(8, 64, device="cuda")
        kept = layer(x), layer(x)
        rows = allocations(device.finish())
        del kept
    assert [row.size for row in rows if row.size >= 1 << 20] == taken


@pytest.mark.parametrize(
    ("width", "dtype", "beside"), [(128, torch.float16, 0), (512, torch.float16, 4), (512, torch.float32, 0)]
)
def test_wide_heads_of_halves_are_summed_in_fp32(width: int, dtype: torch.dtype, beside: int) -> None:
    """As in the one head of a picture decoder."""
    with PredictedDevice(A100) as device, torch.no_grad():
        x = torch.zeros(2, 1, 256, width, dtype=dtype, device="cuda")
        mask = torch.zeros(2, 1, 256, 256, dtype=dtype, device="cuda")
        functional.scaled_dot_product_attention(x, x, x, mask)
        rows = [
            row for row in allocations(device.finish()) if row.operator == "_scaled_dot_product_efficient_attention"
        ]
    sums = [2 * 256 * width * beside] if beside else []
    assert [row.size for row in rows] == [2 * 256 * width * x.element_size(), *sums]


def test_a_program_may_ask_for_a_larger_workspace_which_replaces_the_one_that_is_there() -> None:
    with PredictedDevice(A100) as device:
        ours = torch.backends.cuda
        x = torch.zeros(64, 64, device="cuda")
        held = [torch.cuda.memory_allocated()]
        for size in (None, 16 << 20, 4 << 20):
            said = ours.cublas_workspace_size(size)
            assert said == (WORKSPACE if size is None else size)
            x @ x
            held.append(torch.cuda.memory_allocated())
        torch._C._cuda_resetCublasWorkspaceSize()
        assert ours.cublas_workspace_size() == WORKSPACE
        rows = allocations(device.finish())
    assert [row.size for row in rows if row.operator == "mm" and row.category is Category.WORKSPACE] == [
        WORKSPACE,
        16 << 20,
    ]
    assert [after - held[0] for after in held] == [0, WORKSPACE, 16 << 20, 16 << 20]


def test_cublaslts_workspace_is_no_larger_than_cublas_s_where_they_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with PredictedDevice(A100):
        assert torch.backends.cuda.cublaslt_workspace_size() == WORKSPACE
        assert torch.backends.cuda.cublaslt_workspace_size(64 << 20) == WORKSPACE
        with pytest.raises(RuntimeError, match="0 at least"):
            torch.backends.cuda.cublaslt_workspace_size(-1)
    monkeypatch.setenv(UNIFIED, "0")
    with PredictedDevice(A100) as device:
        assert torch.backends.cuda.cublaslt_workspace_size(4 << 20) == 4 << 20
        layer = torch.nn.Linear(64, 32, device="cuda")
        kept = layer(torch.zeros(8, 64, device="cuda"))
        rows = allocations(device.finish())
        del kept
    assert [row.size for row in rows if row.size >= 1 << 20] == [WORKSPACE, 4 << 20]
