"""Differences between cards and between releases: kernels of attention, einsum, slices, one_hot, torch's own Python."""

import inspect
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional, init
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import one_hot
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from memviz.errors import UsageError
from memviz.predictor.cards import card_named
from memviz.predictor.compat import Patches, required, without_deletions
from memviz.predictor.decompositions import AttentionCall, Backend, backend_for, einsum
from memviz.predictor.device import PredictedDevice
from memviz.predictor.modes import pretended_functions
from memviz.trace.model import Action
from tests.predictor.rows import A100, Row, allocations, sizes

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


def test_a_program_may_try_a_kernel_and_take_another(device: PredictedDevice) -> None:
    """Without a kernel, torch's own error is raised, as on a GPU."""
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
        ("H200", call(dropout=0.1), CUDNN),
        ("H200", call(mask=True), CUDNN),
        ("H200", call(width=256), CUDNN),
        ("B200", call(keys=1), FLASH),
    ],
)
def test_the_kernel_a_card_takes(card: str, asked: AttentionCall, expected: Backend) -> None:
    assert backend_for(asked, card_named(card), (2, 13)) is expected


def test_releases_and_switches_decide_on_the_kernel() -> None:
    assert backend_for(call(), card_named("H100"), (2, 6)) is FLASH
    with sdpa_kernel(SDPBackend.MATH):
        assert backend_for(call(), A100, (2, 13)) is MATH
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert backend_for(call(), A100, (2, 13)) is EFFICIENT
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(UsageError, match=r"\(flash\) supports this on"):
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
        # The gradient of a sum is one number for all, and copied.
        (backward, IN),
        (backward, ROW),
        (backward, 2 * IN),
    ]


def test_grouped_heads_are_predicted_where_torchs_formula_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before torch 2.13. Their FLOPs are those of as many heads as the queries have."""
    packet = torch.ops.aten._scaled_dot_product_flash_attention
    formula = flop_registry[packet]

    def earlier(*args: Any, **kwargs: Any) -> int:
        assert len({getattr(arg, "shape", arg)[1] for arg in args[:3]}) == 1
        return formula(*args, **kwargs)

    def flops(heads: int) -> int:
        with PredictedDevice(A100) as device:
            q, k, v = (torch.empty(2, count, 256, 64, dtype=BRAIN, device="cuda") for count in (8, heads, heads))
            functional.scaled_dot_product_attention(q, k, v, enable_gqa=heads < 8)
            return device.flops

    monkeypatch.setitem(flop_registry, packet, earlier)
    assert flops(2) == flops(8) == 2 * 2 * 2 * 8 * 256 * 256 * 64


@pytest.mark.parametrize(("heads", "size"), [(8, 4_260_096), (2, 8_454_400)], ids=["plain", "grouped"])
def test_cudnn_takes_what_it_took_on_an_h200(heads: int, size: int) -> None:
    forward, backward = "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"
    with PredictedDevice(card_named("H200"), release=(2, 11)) as device:
        q, k, v = (
            torch.empty(2, n, 1024, 64, dtype=BRAIN, device="cuda", requires_grad=True) for n in (8, heads, heads)
        )
        before = len(allocations(device.finish()))
        out = functional.scaled_dot_product_attention(q, k, v, enable_gqa=heads < 8)
        out.backward(torch.empty_like(out))
        rows = [(row.operator, row.size) for row in allocations(device.finish())[before:]]
    assert [bytes_ for operator, bytes_ in rows if operator == forward and bytes_ >= 256] == [q.nbytes, 65_536, 256]
    assert [bytes_ for operator, bytes_ in rows if operator == backward] == [q.nbytes, k.nbytes, v.nbytes, size]


def test_math_keeps_scores_of_every_pair_in_fp32() -> None:
    pairs = 2 * 4 * 256 * 256 * 4
    found = attended(SDPBackend.MATH, is_causal=True)
    scores = [operator for operator, size in found if size == pairs]
    # The mask is added in place; in backward each has a gradient.
    assert scores == ["bmm", "_softmax", "bmm", "_softmax_backward_data", "_softmax_backward_data"]
    mask = torch.zeros(256, 256, dtype=BRAIN, device="meta")
    assert [operator for operator, size in attended(SDPBackend.MATH, attn_mask=mask) if size == pairs] == scores


def test_a_compiled_mask_of_blocks_keeps_no_dense_mask(device: PredictedDevice) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    held = device.allocated_bytes
    mask = torch.compile(create_block_mask)(lambda b, h, q, k: q >= k, 2, 1, 1024, 1024, device="cuda")
    taken = sum(-(-value.nbytes // 512) * 512 for value in vars(mask).values() if isinstance(value, torch.Tensor))
    assert mask.kv_indices.shape == (2, 1, 8, 8) and mask.kv_indices.is_cuda
    assert device.allocated_bytes - held == device.peak_allocated_bytes - held == taken < 1024 * 1024
    assert any("create_block_mask" in each for each in device.unseen())


@pytest.mark.slow
def test_flex_attention_keeps_a_number_a_row_and_gives_what_its_function_learns_a_gradient(
    device: PredictedDevice,
) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
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


NESTED = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
LENGTHS, HEADS, WIDTH = (5, 9, 30), 4, 16
ROWS, INNER = sum(LENGTHS), HEADS * WIDTH


class JaggedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.output = nn.Linear(INNER, 3 * INNER), nn.Linear(INNER, INNER)

    def forward(self, x: Tensor) -> Tensor:
        parts = (part.unflatten(-1, [HEADS, WIDTH]).transpose(1, 2) for part in self.inputs(x).chunk(3, -1))
        out = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.output(out.transpose(1, 2).flatten(-2))


def sequences(dtype: torch.dtype) -> Tensor:
    rows = [torch.zeros(length, INNER, dtype=dtype) for length in LENGTHS]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")


@NESTED
@pytest.mark.parametrize(
    ("dtype", "kernel"), [(torch.float32, "_efficient_attention"), (torch.bfloat16, "_flash_attention")]
)
def test_the_kernel_of_the_card_works_on_all_rows(dtype: torch.dtype, kernel: str, device: PredictedDevice) -> None:
    model = JaggedAttention().cuda().to(dtype)
    x = sequences(dtype)
    out = x + model(x)
    out.values().float().square().mean().backward()
    rows = allocations(device.finish())
    assert model.inputs.weight.grad is not None and model.inputs.weight.grad.shape == (3 * INNER, INNER)
    forward = [row.size for row in rows if row.operator == f"{kernel}_forward"]
    assert forward[0] == ROWS * INNER * dtype.itemsize
    backward = [row.size for row in rows if row.operator == f"{kernel}_backward"]
    assert backward.count(ROWS * INNER * dtype.itemsize) >= 3


@NESTED
def test_jagged_tensors_take_the_enabled_kernel_and_lie_on_the_card(device: PredictedDevice) -> None:
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        JaggedAttention().cuda().bfloat16()(sequences(torch.bfloat16))
        assert {"_efficient_attention_forward"} <= device.recorder.operators
        assert "_flash_attention_forward" not in device.recorder.operators
    # torch names the place of its tensors there itself, and that is no `meta` of the program's.
    x = sequences(torch.float32).requires_grad_()
    before = device.allocated_bytes
    x.chunk(2, -1)[0].values().sum().backward()
    assert x.grad is not None and x.grad.values().is_cuda
    assert device.allocated_bytes - before >= ROWS * INNER * 4


TURNED = [
    ("oi,...i->...o", (8, 4), (2, 3, 4), (3, 1, 6)),
    ("oi, ... i -> ... o", (8, 4), (5, 4), (1, 5)),
    ("bhqd,bhkd->bhkq", (2, 3, 4, 5), (2, 3, 6, 5), (72, 24, 1, 6)),
    ("if,f...->...i", (4, 8), (8, 2, 3), (3, 1, 6)),
]
LEFT_TO_TORCH = [
    ("...i,oi->...o", (2, 3, 4), (8, 4), None),
    ("fi,...i->f...", (8, 4), (2, 3, 4), None),
    ("aij,ajk->iak", (2, 3, 4), (2, 4, 5), None),
    ("...d,...d->...", (2, 3, 4), (2, 3, 4), None),
    ("i,j->ij", (3,), (4,), None),
    ("ii,ij->ij", (3, 3), (3, 4), None),
    ("ij,kj", (3, 4), (5, 4), None),
]


@pytest.mark.parametrize(("equation", "left", "right", "strides"), [*TURNED, *LEFT_TO_TORCH])
def test_what_later_releases_turn_round_has_its_columns_first(
    equation: str, left: tuple[int, ...], right: tuple[int, ...], strides: tuple[int, ...] | None
) -> None:
    one, other = torch.randn(left), torch.randn(right)
    found = einsum(equation, [one, other])
    assert (None if found is NotImplemented else found.stride()) == strides
    if strides is not None:
        torch.testing.assert_close(found, torch.einsum(equation, one, other))


@pytest.mark.parametrize("halves", [False, True])
def test_it_is_the_release_that_decides(halves: bool) -> None:
    lies = {}
    for release in ((2, 8), (2, 9)):
        with PredictedDevice(A100, release=release), torch.autocast("cuda", dtype=torch.bfloat16, enabled=halves):
            weight = torch.zeros(8, 4, device="cuda", requires_grad=True)
            scores = torch.einsum("oi,...i->...o", weight, torch.zeros(2, 3, 4, device="cuda"))
            scores.sum().backward()
            assert scores.dtype == (torch.bfloat16 if halves else torch.float32)
            assert weight.grad is not None
            lies[release] = scores.is_contiguous()
    assert lies == {(2, 8): False, (2, 9): True}


WHOLE, SELECTED = 8 * 16 * 64 * 4, 8 * 64 * 4


def backward_of(run: Callable[[Tensor], Tensor], *shape: int, release: tuple[int, int] | None = None) -> list[Row]:
    """Return the allocations of a backward, whose gradient is there before."""
    with PredictedDevice(A100, release=release) as device:
        x = torch.zeros(shape, device="cuda", requires_grad=True)
        out = run(x)
        gradient = torch.ones_like(out)
        before = device.recorder.ledger.count
        out.backward(gradient)
        assert x.grad is not None and x.grad.shape == x.shape
        return allocations(device.finish())[before:]


@pytest.mark.parametrize(
    ("index", "older", "newer"),
    [
        # The last slice is of what was selected, so its zeros come first and are smaller.
        ((slice(None), -1, slice(None)), [SELECTED, WHOLE, WHOLE], [WHOLE]),
        ((slice(None), -1), [WHOLE, WHOLE], [WHOLE]),
        ((Ellipsis, slice(None)), [WHOLE], []),
        ((slice(None), slice(2, 6)), [WHOLE, WHOLE], [WHOLE]),
        (3, [WHOLE], [WHOLE]),
    ],
)
def test_every_colon_has_zeros_of_its_own_up_to_2_6(index: Any, older: list[int], newer: list[int]) -> None:
    for release, zeros in (((2, 6), older), ((2, 11), newer)):
        rows = backward_of(lambda x: x[index], 8, 16, 64, release=release)
        assert [row.size for row in rows if "backward" in row.operator] == zeros


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), -1, None, slice(1, 5)),
        (None, slice(None), Ellipsis, 3),
        (slice(None), torch.tensor([1, 2, 2]), slice(None)),
        (slice(None), torch.tensor([True] * 8 + [False] * 8)),
        (slice(None), slice(None, None, 2), [0, 5]),
        (slice(None), slice(None), True),
    ],
)
def test_the_result_is_the_same(index: Any) -> None:
    real = torch.zeros(8, 16, 64)[index]
    with PredictedDevice(A100, release=(2, 6)):
        shown = torch.zeros(8, 16, 64, device="cuda", requires_grad=True)[index]
        assert (shown.shape, shown.stride()) == (real.shape, real.stride())
    # Tensors are no sequences afterwards.
    assert torch.tensor([torch.ones(()), 2.0]).tolist() == [1.0, 2.0]


def taken(program: Callable[[Tensor], Any], *, inference: bool = False) -> list[int]:
    """Behind the places themselves."""
    with PredictedDevice(A100) as device, torch.inference_mode(inference):
        program(torch.tensor([[4, 1, 0], [2, 2, 3]], device="cuda"))
        return sizes(device.finish())[1:]


@pytest.mark.parametrize("inference", [False, True])
def test_it_takes_its_result_and_nothing_else(inference: bool) -> None:
    assert taken(lambda places: one_hot(places, 8), inference=inference) == [6 * 8 * 8]
    # How many there are is looked up: the largest is a number of its own.
    assert taken(one_hot, inference=inference) == [8, 6 * 5 * 8]
    assert taken(lambda places: one_hot(places[:0], 8), inference=inference) == []


def test_values_that_are_known_stay_so_on_the_card_and_the_host(device: PredictedDevice) -> None:
    places = torch.tensor([2, 0], device="cuda")
    assert one_hot(places).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert one_hot(places, 4).sum(0).tolist() == [1, 0, 1, 0]
    shares = torch.distributions.Dirichlet(torch.ones(4)).sample()
    assert float(shares.sum()) == pytest.approx(1) and 0 <= float(shares[0]) <= 1
    x = torch.ones(3, requires_grad=True)
    torch.nn.functional.mish(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == pytest.approx([1.0490] * 3, abs=1e-3)
    assert torch.nn.functional.one_hot(torch.arange(2)).tolist() == [[1, 0], [0, 1]]


ERRORS: dict[str, Callable[[Tensor], Any]] = {
    "LongTensor": lambda places: one_hot(places.int(), 8),
    "should be positive": lambda places: one_hot(places, 0),
    "from empty tensor": lambda places: one_hot(places[:0]),
}


@pytest.mark.parametrize("said", ERRORS)
def test_errors_are_those_of_a_card(said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        taken(ERRORS[said])


def _places(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cuda", dtype=torch.int64)


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x[:5].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        zeros = gradients[0].new_zeros(64, 128)
        return zeros.index_add(0, _places(5), gradients[0])


@pytest.mark.parametrize(
    ("run", "count"),
    [
        (lambda x: x[_places(5)], 1),
        (lambda x: x.gather(0, _places(3, 128)), 1),
        (lambda x: x.index_select(0, _places(3)), 1),
        (lambda x: x.max(0).values, 1),
        (lambda x: x.topk(3).values, 1),
        (lambda x: x.take(_places(7)), 1),
        # What a program writes out of place takes memory.
        (lambda x: _Own.apply(x), 2),
    ],
)
def test_backward_has_one_tensor_of_zeros(run: Callable[[Tensor], Tensor], count: int) -> None:
    assert [row.size for row in backward_of(run, 64, 128)].count(64 * 128 * 4) == count


PRETENDED = set(pretended_functions(*(MagicMock() for _ in range(5))))
OF_OTHER_RELEASES = {
    *("_cuda_lock_mutex", "_cuda_unlock_mutex", "_cuda_hasPrimaryContext", "_accelerator_deviceCount"),
    *("_cuda_cudaCachingAllocator_set_allocator_settings", "_cuda_endAllocateCurrentStreamToPool"),
    "_cuda_attach_out_of_memory_observer",
}
"""Pretended functions that the Python of torch 2.13 does not name."""


@cache
def python_of_torch() -> str:
    root = Path(torch.__file__).parent
    folders = ("", "_C", "accelerator", "backends/cuda", "backends/cudnn", "cuda", "utils")
    paths = [path for folder in folders for path in (root / folder).glob("*.py*") if path.suffix in (".py", ".pyi")]
    return "".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older releases call fewer")
@pytest.mark.parametrize("name", sorted(PRETENDED - OF_OTHER_RELEASES))
def test_torch_calls_the_pretended_function(name: str) -> None:
    assert name in python_of_torch()


def test_a_release_without_a_required_name_is_refused() -> None:
    with pytest.raises(UsageError, match="use a release from 2.6 to 2.13"):
        required(torch._C, "_no_such_function")


def test_patches_are_taken_back_in_reverse() -> None:
    class Owner:
        there = 1

    with Patches() as patches:
        patches.put(Owner, "there", 2)
        patches.put(Owner, "there", 3)
        patches.put(Owner, "added", 4)
        assert patches.replace(Owner, "missing", 5) is None
        assert vars(Owner)["there"] == 3 and vars(Owner)["added"] == 4
    assert Owner.there == 1 and not hasattr(Owner, "added") and not hasattr(Owner, "missing")


# Python of other releases of torch, where it allocates in another order.


H100 = card_named("H100")


def _events(release: tuple[int, int], program: Callable[[], None]) -> list[int]:
    """Sizes of allocations, and of frees as negative numbers."""
    with PredictedDevice(H100, release=release) as device:
        program()
        events = device.finish().devices[0].events
    signs = {Action.ALLOC: 1, Action.FREE_REQUESTED: -1}
    pairs = zip(events.action.tolist(), events.size.tolist(), strict=True)
    return [signs[Action(action)] * size for action, size in pairs if action in signs]


def _taken(release: tuple[int, int], program: Callable[[], None]) -> list[int]:
    with PredictedDevice(H100, release=release) as device:
        program()
        return sizes(device.finish())


def _truncate(bound: float) -> None:
    weight = torch.empty(512, 1024, device="cuda")
    nn.init.trunc_normal_(weight, std=1.0, a=-bound, b=bound)


WEIGHT = 4 * 512 * 1024


def test_a_truncated_normal_is_drawn_in_place_until_2_11_and_again_since_then() -> None:
    assert _taken((2, 11), lambda: _truncate(2.0)) == [WEIGHT]
    # It is drawn again as often as so many elements need.
    for bound, rounds in ((2.0, 4), (3.0, 2), (20.0, 0)):
        assert _taken((2, 12), partial(_truncate, bound)).count(WEIGHT) == 1 + 2 * rounds
    for release in ((2, 6), (2, 13)):
        with PredictedDevice(H100, release=release):
            weight = nn.init.trunc_normal_(torch.empty(4096), std=1.0, a=-1.0, b=1.0)
            assert float(weight.abs().max()) <= 1 and 0.4 < float(weight.std()) < 0.7


LENGTH, DEPTH = 256, 512
ONE = 4 * LENGTH * DEPTH
WEIGHTS = 4 * LENGTH * LENGTH


def _attend() -> None:
    attention = nn.MultiheadAttention(DEPTH, 1).to("cuda")
    x = torch.zeros(LENGTH, 1, DEPTH, device="cuda")
    with torch.no_grad():
        attention(x, x, x)


def test_attention_holds_scaled_queries_and_keys_to_its_end_until_2_11() -> None:
    old, new = (_events(release, _attend) for release in ((2, 11), (2, 12)))
    assert [size for size in old if size > 0] == [size for size in new if size > 0]
    after_scores = [events[events.index(WEIGHTS) :] for events in (old, new)]
    assert [part.index(-ONE) < part.index(WEIGHTS, 1) for part in after_scores] == [False, True]


def test_a_function_without_its_deletions_has_its_lines() -> None:
    kept = without_deletions(functional, "multi_head_attention_forward")
    ours, theirs = kept.__code__, functional.multi_head_attention_forward.__code__
    assert (ours.co_filename, ours.co_firstlineno) == (theirs.co_filename, theirs.co_firstlineno)
    assert (
        inspect.signature(kept).parameters.keys()
        == inspect.signature(functional.multi_head_attention_forward).parameters.keys()
    )


@pytest.mark.parametrize(("release", "on_card"), [((2, 5), False), ((2, 6), True)])
def test_a_mask_of_later_positions_is_on_the_default_device_since_2_6(release: tuple[int, int], on_card: bool) -> None:
    with PredictedDevice(H100, release=release):
        torch.set_default_device("cuda")
        try:
            assert nn.Transformer.generate_square_subsequent_mask(8).is_cuda == on_card
        finally:
            torch.set_default_device(None)


def test_torch_is_its_own_again_afterwards() -> None:
    before = (init._no_grad_trunc_normal_, functional.multi_head_attention_forward)
    with PredictedDevice(H100, release=(2, 5)):
        pass
    after = (init._no_grad_trunc_normal_, functional.multi_head_attention_forward)
    assert after == before


@pytest.mark.parametrize(("release", "saved"), [((2, 1), 2), ((2, 2), 0)])
def test_a_mean_saves_its_input_until_2_1(release: tuple[int, int], saved: int) -> None:
    def rows_and_planes(x: torch.Tensor) -> torch.Tensor:
        rows = (x * 2).mean(-1, keepdim=True)
        return rows.sum() + functional.adaptive_avg_pool2d(x * 3, 1).sum() + functional.adaptive_avg_pool2d(x, 2).sum()

    with PredictedDevice(H100, release=release):
        x = torch.zeros(LENGTH, 4, DEPTH, DEPTH, device="cuda", requires_grad=True)
        one = x.nbytes
        loss = rows_and_planes(x)
        assert torch.cuda.memory_allocated() // one == 1 + saved
        loss.backward()
        # The gradient.
        assert torch.cuda.memory_allocated() // one == 2
        loss = checkpoint(rows_and_planes, x, use_reentrant=False)
        assert torch.cuda.memory_allocated() // one == 2
        loss.backward()
        assert torch.cuda.memory_allocated() // one == 2
        with torch.no_grad():
            kept = rows_and_planes(x)
            assert torch.cuda.memory_allocated() // one == 2 and kept.is_cuda
