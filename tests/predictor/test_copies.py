"""Copies between the host and the GPU, which are made one piece first, and the casts of `torch.autocast`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memviz
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.predictor.autocast import ANSWER_IN_SINGLE, TO_HALF, TO_SINGLE, TO_WIDEST
from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Category
from tests.predictor.rows import A100, allocations
from tests.predictor.test_evidence import found

KiB = 1024
COPYING = ("_to_copy", "copy_", "_foreach_copy_")


def beside(program: Callable[[], Any]) -> list[int]:
    """Return the temporaries of copies, in order."""
    with PredictedDevice(A100) as device, torch.no_grad():
        program()
        rows = allocations(device.finish())
    return [row.size for row in rows if row.operator in COPYING and row.category is Category.TEMPORARY]


def card(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def host(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype)


LEAVING: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "one piece": (lambda: card(64, 64).cpu(), []),
    "turned, and the copy lies so too": (lambda: card(64, 32).t().cpu(), []),
    "turned, and the copy does not": (
        lambda: card(64, 32).t().to("cpu", memory_format=torch.contiguous_format),
        [8 * KiB],
    ),
    "every second column": (lambda: card(64, 64)[:, ::2].cpu(), [8 * KiB]),
    "part of the rows": (lambda: card(64, 64)[:32].cpu(), []),
    "part of the columns": (lambda: card(64, 64)[:, :32].cpu(), [8 * KiB]),
    "a column": (lambda: card(256, 64)[:, 0].cpu(), [KiB]),
    "one number of a column": (lambda: card(256, 64)[3:4, 5].cpu(), []),
    "expanded": (lambda: card(64).expand(64, 64).cpu(), [16 * KiB]),
    "another type, changed on the host": (lambda: card(64, 64).to("cpu", torch.half), []),
    "columns of another type": (lambda: card(64, 64)[:, ::2].to("cpu", torch.half), [8 * KiB]),
    "another type, non_blocking": (lambda: card(64, 64).to("cpu", torch.half, non_blocking=True), [8 * KiB]),
    "columns of another type, non_blocking": (
        lambda: card(64, 64)[:, ::2].to("cpu", torch.half, non_blocking=True),
        [4 * KiB],
    ),
    "turned, of another type, non_blocking": (
        lambda: card(64, 32).t().to("cpu", torch.half, non_blocking=True),
        [4 * KiB, 4 * KiB],
    ),
    "into what is there": (lambda: host(64, 64).copy_(card(64, 64)), []),
    "into columns": (lambda: host(64, 64)[:, ::2].copy_(card(64, 32)), []),
    "columns into what is there": (lambda: host(64, 32).copy_(card(64, 64)[:, ::2]), [8 * KiB]),
    "a row into many": (lambda: host(64, 64).copy_(card(64)), [16 * KiB]),
    "into another type, non_blocking": (
        lambda: host(64, 64, dtype=torch.half).copy_(card(64, 64), non_blocking=True),
        [8 * KiB],
    ),
    "values that are known": (lambda: torch.arange(256, device="cuda")[::2].cpu(), [KiB]),
    "a list of which one": (
        lambda: torch._foreach_copy_([host(64, 32), host(64)], [card(64, 64)[:, ::2], card(64)]),
        [8 * KiB],
    ),
}
ARRIVING: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "one piece": (lambda: host(64, 64).cuda(), []),
    "every second column": (lambda: host(64, 64)[:, ::2].cuda(), []),
    "turned": (lambda: host(64, 32).t().cuda(), []),
    "another type": (lambda: host(64, 64).to("cuda", torch.half), []),
    "turned, of another type": (lambda: host(64, 32).t().to("cuda", torch.half), [4 * KiB]),
    "another type, non_blocking": (lambda: host(64, 64).to("cuda", torch.half, non_blocking=True), [16 * KiB]),
    "a number": (lambda: card(64, 64).copy_(3), []),  # type: ignore[arg-type]
    "into columns": (lambda: card(64, 64)[:, ::2].copy_(host(64, 32)), [8 * KiB]),
    "columns by their index": (lambda: card(64, 64).__setitem__((slice(None), 0), host(64)), [256]),
    "another type into what is there": (lambda: card(64, 64, dtype=torch.half).copy_(host(64, 64)), []),
    "another type into columns": (lambda: card(64, 64, dtype=torch.half)[:, ::2].copy_(host(64, 32)), [4 * KiB]),
    "another type into columns, non_blocking": (
        lambda: card(64, 64, dtype=torch.half)[:, ::2].copy_(host(64, 32), True),
        [8 * KiB],
    ),
    "a row into many": (lambda: card(64, 64).copy_(host(64)), []),
    "a list of which one": (
        lambda: torch._foreach_copy_([card(64, 64)[:, ::2], card(64)], [host(64, 32), host(64)]),
        [8 * KiB],
    ),
}
STAYING: dict[str, Callable[[], Any]] = {
    "on the card": lambda: card(64, 64)[:, ::2].copy_(card(64, 32, dtype=torch.half)),
    "on the host": lambda: host(64, 64)[:, ::2].copy_(host(64, 32, dtype=torch.half)),
    "nowhere": lambda: torch.empty(64, 64, device="meta")[:, ::2].copy_(host(64, 32)),
}  # fmt: skip


ROWS = {"leaving": LEAVING, "arriving": ARRIVING, "staying": {name: (run, []) for name, run in STAYING.items()}}


@pytest.mark.parametrize(("where", "way"), [(where, way) for where, rows in ROWS.items() for way in rows])
def test_a_copy_crosses_in_one_piece_which_is_made_on_the_card(where: str, way: str) -> None:
    program, taken = ROWS[where][way]
    assert beside(program) == taken


def test_it_is_said_that_no_recording_proves_this(device: PredictedDevice) -> None:
    x = card(1024, 1024)
    x[:, ::2].cpu()
    one = found(device)["copies to and from the host of non-contiguous tensors"]
    assert (one.standing, one.bytes, one.bytes_at_peak) == ("read", 2 << 20, 2 << 20)


def test_weights_of_images_are_put_down_once_more_where_their_channels_come_last_and_their_type_changes() -> None:
    def program(**how: Any) -> Callable[[], Any]:
        layer = nn.Conv2d(64, 64, 3, bias=False).to(memory_format=torch.channels_last)
        return lambda: layer.to("cuda", **how)

    assert beside(program()) == []
    assert beside(program(dtype=torch.half)) == [72 * KiB]
    assert beside(program(dtype=torch.half, non_blocking=True)) == [144 * KiB]


# Models that change their type or layout on their way to the device: one copy of each tensor, as it will be.


LAST = torch.channels_last
LAYERS, NUMBERS = 4, 256 * 256


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(LAYERS)))


@pytest.mark.parametrize(
    ("move", "most"),
    [
        (lambda model: model.to("cuda", torch.bfloat16), 0),
        (lambda model: model.to(device="cuda", dtype=torch.bfloat16), 0),
        (lambda model: model.to(torch.device("cuda"), dtype=torch.bfloat16), 0),
        (lambda model: model.to(torch.zeros((), device="cuda", dtype=torch.bfloat16)), 512),
        # With non_blocking, each weight changes its type there.
        (lambda model: model.to(device="cuda", dtype=torch.bfloat16, non_blocking=True), NUMBERS * 4),
        (lambda model: model.to("cuda", torch.bfloat16, True), NUMBERS * 4),
    ],
)
def test_weights_lie_there_in_their_old_type_only_where_nobody_waits(
    move: Callable[[nn.Module], nn.Module], most: int, device: PredictedDevice
) -> None:
    model = move(layers())
    assert {(parameter.dtype, parameter.is_cuda) for parameter in model.parameters()} == {(torch.bfloat16, True)}
    assert device.allocated_bytes == LAYERS * NUMBERS * 2
    assert device.peak_allocated_bytes == LAYERS * NUMBERS * 2 + most


def test_weights_change_type_and_layout_on_their_way(device: PredictedDevice) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to("cuda", torch.half, memory_format=LAST)
    convolution, norm = model[0], model[1]
    assert convolution.weight.is_contiguous(memory_format=LAST) and not convolution.weight.is_contiguous()
    assert (convolution.weight.dtype, norm.running_mean.dtype) == (torch.half, torch.half)
    assert norm.num_batches_tracked.dtype == torch.long
    assert torch.zeros(2, 3, 4, 4).cuda(memory_format=LAST).is_contiguous(memory_format=LAST)
    assert torch.zeros(2, 3, 4, 4).contiguous(memory_format=LAST).cuda().is_contiguous(memory_format=LAST)
    assert torch.zeros(2, 3, 4, 4).cuda().is_contiguous()


def test_buffers_that_change_their_type_on_the_card_are_still_the_models() -> None:
    assert set(memviz.predict(lambda: nn.BatchNorm2d(1 << 20).to("cuda").half()).by_category()) == {"parameter"}


def test_a_lazy_layer_gets_its_weights_where_it_was_moved(device: PredictedDevice) -> None:
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(4)).to("cuda")
    # The number of batches that the norm has seen.
    assert device.allocated_bytes == 512
    model(torch.zeros(2, 3, 8, 8, device="cuda")).sum().backward()
    assert all(weight.is_cuda and weight.grad is not None for weight in model.parameters())
    assert model[3].weight.shape == (4, 8 * 6 * 6)


class Names(nn.Module):
    """Uses names of nn.Module's methods for something else, as programs do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(256))
        self.layers = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False))
        self.modules, self.buffers = ["weight"], 3

    def parameters(self) -> list[nn.Parameter]:  # type: ignore[override]
        return [self.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * self.weight


def test_a_program_may_give_other_meanings_to_the_names_of_a_modules_methods(device: PredictedDevice) -> None:
    model = Names().to("cuda", torch.bfloat16)
    assert device.allocated_bytes == 2 * NUMBERS * 2 + 512
    model(torch.ones(4, 256, device="cuda", dtype=torch.bfloat16)).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.is_cuda


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
