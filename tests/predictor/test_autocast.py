"""Casts of `torch.autocast`: affected operators, and cached casts."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.predictor.autocast import ANSWER_IN_SINGLE, TO_HALF, TO_SINGLE, TO_WIDEST
from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Category
from tests.predictor.rows import A100, allocations

_HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
_LISTS = {
    "LOWER_PRECISION_FP": TO_HALF,
    "FP32": TO_SINGLE,
    "FP32_SET_OPT_DTYPE": ANSWER_IN_SINGLE,
    "PROMOTE": TO_WIDEST,
}


@pytest.mark.parametrize("name", _LISTS)
def test_the_lists_are_those_that_torch_compiles_its_own_from(name: str) -> None:
    if not _HEADER.exists():
        pytest.skip("this torch comes without its headers")
    macro = re.search(rf"define AT_FORALL_{name}\(_\)((?:.*\\\n)*.*\n)", _HEADER.read_text())
    assert macro is not None
    names = {entry.replace(", ", ".") for entry in re.findall(r"_\((\w+(?:, \w+)?)\)", macro[1])}
    if not names:
        pytest.skip("this torch has the lists elsewhere")
    assert names == _LISTS[name]


def _casts(run: str, *, inference: bool = False, release: tuple[int, int] | None = None) -> list[int]:
    """Bytes of every cast while an expression of a weight and an input is computed twice."""
    with PredictedDevice(A100, release=release) as device:
        weight = nn.Parameter(torch.zeros(64, 64, device="cuda"))
        x = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
        with torch.inference_mode(inference), torch.autocast("cuda", dtype=torch.bfloat16):
            for _ in range(2):
                eval(run, {"torch": torch, "w": weight, "x": x})
        return [row.size for row in allocations(device.finish()) if row.operator == "_to_copy"]


WEIGHT = 64 * 64 * 2


@pytest.mark.parametrize(
    ("run", "casts"),
    [
        # A dtype that is given counts.
        ("x.log_softmax(1)", 2 * [4 * 64 * 64]),
        ("x.log_softmax(1, torch.bfloat16)", []),
        # It gives log_softmax the dtype of its input, and nll_loss casts the result (recorded with torch 2.6).
        ("torch.nn.functional.cross_entropy(x, x[0].long())", 2 * [8 * 64, 4 * 64 * 64]),
        # The cast of a weight is kept until the region ends.
        ("torch.einsum('ij,jk->ik', w, x)", [WEIGHT]),
        ("torch.addr(w, x[0], x[1])", [WEIGHT]),
        ("torch.linalg.multi_dot([x, w, x])", [WEIGHT]),
        ("torch.chain_matmul(x, w, x)", [WEIGHT]),
        ("torch.linalg.vecdot(w, x)", [WEIGHT]),
        # Joining widens without copies of its own.
        ("torch.cat([w, x])", []),
    ],
)
@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
def test_an_operator_casts_what_its_kernel_takes(run: str, casts: list[int]) -> None:
    assert _casts(run) == casts


def test_in_inference_mode_a_weight_is_cast_again_at_every_use() -> None:
    assert _casts("torch.einsum('ij,jk->ik', w, x)", inference=True) == [WEIGHT] * 2


def test_parts_of_an_operator_are_not_cast_again(device: PredictedDevice) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
        # Its products are summed, and a sum by itself answers in fp32.
        assert torch.linalg.vecdot(x, x).dtype == torch.bfloat16
        assert (x * x).sum(-1).dtype == torch.float32
        assert x.norm().dtype == torch.float32


@pytest.mark.parametrize(("release", "casts"), [((2, 6), 0), ((2, 11), 0), ((2, 12), 2)])
def test_rms_norm_is_cast_since_2_12(release: tuple[int, int], casts: int) -> None:
    run = "torch.nn.functional.rms_norm(x, (64,), x[0])"
    wide = [size for size in _casts(run, release=release) if size == 64 * 64 * 4]
    if release >= (2, 9):
        assert len(wide) == casts
    else:
        # There it is made of others, whose power is taken in fp32.
        assert len(_casts(run, release=release)) > 0


def test_backward_within_the_region_sums_gradients_in_fp32(device: PredictedDevice) -> None:
    x = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    row = torch.zeros(64, 1, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = x - row
        out.backward(torch.ones_like(out))
    assert row.grad is not None and row.grad.dtype == torch.bfloat16
    rows = [(r.operator, r.size) for r in allocations(device.finish())]
    summed = rows.index(("sum_dim_IntList", 64 * 4))
    assert rows[summed + 1] == ("_to_copy", 64 * 2)


def test_casts_of_weights_are_labelled_and_casts_of_activations_are_activations(device: PredictedDevice) -> None:
    model = nn.Sequential(nn.Linear(64, 64, device="cuda"), nn.Linear(64, 64, device="cuda"))
    x = torch.zeros(32, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)
    out.float().sum().backward()
    trace = device.finish()
    column = trace.devices[0]
    found = categories(trace, column).category
    copies = lifetimes(column).size[found == Category.AUTOCAST_WEIGHT_COPIES]
    assert sorted(copies.tolist()) == 2 * [64 * 2] + 2 * [64 * 64 * 2]


@torch.library.custom_op("memviz_tests::doubled", mutates_args=())
def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


_doubled.register_fake(torch.empty_like)
_doubled.register_autograd(lambda context, gradient: gradient * 2)
_PLAIN_LIBRARY = torch.library.Library("memviz_tests", "FRAGMENT")
_PLAIN_LIBRARY.define("tripled(Tensor x) -> Tensor")
_PLAIN_LIBRARY.impl("tripled", lambda x: torch.empty_like(x), "Meta")


@pytest.mark.parametrize(("operator", "inside"), [("doubled", torch.float16), ("tripled", torch.bfloat16)])
def test_operators_of_libraries_are_cast_where_they_registered_it(operator: str, inside: torch.dtype) -> None:
    if operator == "doubled":
        _doubled.register_autocast("cuda", torch.float16)
    else:
        # As torchvision's kernels: in single precision, answered in the type of the input.
        torch.library.register_autocast(f"memviz_tests::{operator}", "cuda", torch.float32, lib=_PLAIN_LIBRARY)
    run = getattr(torch.ops.memviz_tests, operator)
    with PredictedDevice(A100) as device:
        x = torch.zeros(64, device="cuda", dtype=torch.bfloat16, requires_grad=operator == "doubled")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert run(x).dtype == inside
        assert run(x).dtype == x.dtype
        if operator == "doubled":
            with torch.autocast("cuda", dtype=torch.bfloat16):
                run(x).sum().backward()
            assert x.grad is not None and x.grad.dtype == x.dtype
        casts = [row.size for row in allocations(device.finish()) if row.operator == "_to_copy"]
    assert casts[0] == 64 * (4 if operator == "tripled" else 2)
