"""Predicted allocations compared to those of the same step on real tensors, as torch's profiler counts them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from memviz.allocator.replayer import ReplayedEstimate, Replayer
from memviz.analysis.actions.proposals import ActionKind, kinds_of, proposal
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Trace
from sample_traces import gpt
from tests.predictor.models import Language, Picture, train
from tests.predictor.rows import A100, allocations

_SCALAR = 16
"""Bytes: on a CPU the loss and wrapped numbers have memory of the same allocator."""


def real(build: Callable[[], nn.Module], inputs: Tensor, targets: Tensor) -> list[tuple[tuple[str, ...], int]]:
    """Return operators (outermost first) and bytes of each allocation in the second step."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    train(model, inputs, targets, optimizer)
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiler:
        train(model, inputs, targets, optimizer)
    events = profiler.profiler.kineto_results.events()
    spans = [(event.start_ns(), event.end_ns(), event.name()) for event in events if event.name().startswith("aten::")]
    taken = [
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]" and event.nbytes() > 0
    ]
    return [(tuple(name[6:] for begin, end, name in spans if begin <= at <= end), size) for at, size in taken]


def predicted(build: Callable[[], nn.Module], inputs: Tensor, targets: Tensor) -> list[tuple[str, int]]:
    with torch.device("meta"):
        model = build()
    with PredictedDevice(A100) as device:
        device.place(model)
        there = inputs.to(device.torch_device), targets.to(device.torch_device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        train(model, *there, optimizer)
        before = len(allocations(device.finish()))
        train(model, *there, optimizer)
        return [(row.operator, row.size) for row in allocations(device.finish())[before:]]


def test_a_language_model_takes_the_same_bytes_in_each_step() -> None:
    words = torch.randint(0, 503, (2, 32))
    # The CPU's kernel has a buffer of its own there.
    own = ("native_layer_norm_backward", "resize_")
    # The card's one multiplies into a buffer first.
    softmax = "_softmax_backward_data"
    truth = Counter(
        size
        for around, size in real(Language, words, words)
        if around[-2:] != own and softmax not in around and size > _SCALAR
    )
    ours = Counter(size for name, size in predicted(Language, words, words) if name != softmax and size > _SCALAR)
    assert ours == truth
    assert sum(ours.values()) > 100


def test_a_model_of_pictures_takes_the_same_bytes_where_kernels_have_no_buffers_of_their_own() -> None:
    pictures, kinds = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    buffered = ("convolution", "batch_norm", "group_norm_backward")
    truth = Counter(
        size
        for around, size in real(Picture, pictures, kinds)
        if size > _SCALAR and not any(part in name for name in around for part in buffered)
    )
    ours = Counter(
        size
        for operator, size in predicted(Picture, pictures, kinds)
        if size > _SCALAR and not any(part in operator for part in buffered)
    )
    assert ours == truth
    assert sum(ours.values()) > 15


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 4, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_linear_layer_takes_the_same_bytes_however_its_input_lies(shape: tuple[int, ...], turned: bool) -> None:
    def build() -> nn.Module:
        return nn.Linear(8, 8)

    def run(model: nn.Module, device: torch.device) -> None:
        x = torch.zeros(shape, device=device)
        model(x.transpose(0, 1) if turned else x).sum().backward()

    model = build()
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiler:
        run(model, torch.device("cpu"))
    events = profiler.profiler.kineto_results.events()
    truth = Counter(event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > _SCALAR)
    with torch.device("meta"):
        model = build()
    with PredictedDevice(A100) as device:
        device.place(model)
        before = len(allocations(device.finish()))
        run(model, device.torch_device)
        ours = Counter(row.size for row in allocations(device.finish())[before:] if row.category.name != "WORKSPACE")
    assert Counter({size: count for size, count in ours.items() if size > _SCALAR}) == truth


# Estimates from edited requests, compared to a prediction of the program with the same change.


CARD, RELEASE = card_named("A10"), (2, 13)
NEAR = 0.03
"""Tolerance as a share of the peak of live bytes."""
RESERVED_NEAR = 0.05
"""Tolerance of reserved bytes: segments are coarse, and one of 20 MiB is much of a small peak."""


@pytest.fixture(params=[(128, 512), (8192, 512)], ids=["layers outweigh the head", "the head outweighs layers"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sequence length of a program whose peak is in the backward of the layers, or at the loss."""
    vocabulary, length = request.param
    monkeypatch.setattr(gpt, "VOCABULARY", vocabulary)
    return int(length)


def trained(
    length: int, *, checkpointed: bool = False, dtype: torch.dtype = torch.float32, autocast: bool = False
) -> Trace:
    with PredictedDevice(CARD, release=RELEASE) as device:
        model = gpt.GPT(checkpointed=checkpointed).to("cuda", dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for number in range(2):
            with device.phase(f"ProfilerStep#{number}"):
                optimizer.zero_grad()
                tokens = torch.randint(gpt.VOCABULARY, (8, length), device="cuda")
                with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                    _, loss = model(tokens, tokens)
                loss.backward()
                optimizer.step()
        return device.finish()


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(512, 1024)
        self.head = nn.Linear(1024, 40_000)

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.up(given)
        result: Tensor = self.head(hidden)
        return result


def applied(*, lets_go: bool) -> Trace:
    """Predict a large output that its name holds until the next one is computed."""
    with PredictedDevice(CARD, release=RELEASE) as device:
        model = Wide().to("cuda")
        given = torch.empty(256, 512, device="cuda")
        output = None
        for _ in range(3):
            if lets_go:
                del output
            with torch.no_grad():
                output = model(given)
        return device.finish()


def of_kind(trace: Trace, kind: ActionKind) -> tuple[int, int, int]:
    """Peaks of live and reserved bytes by the estimate, and how many live bytes it saves."""
    device = trace.devices[0]
    chosen = next(finding for finding in findings(trace, device) if kind in kinds_of(finding))
    made = proposal(trace, device, chosen, kind)
    assert made is not None
    result = ReplayedEstimate(Replayer(trace).estimate(), Replayer(trace).estimate(made.trace))
    return result.after.peak_requested_bytes, result.after.peak_reserved_bytes, -result.requested_change


def peaks(trace: Trace) -> tuple[int, int]:
    figures = Replayer(trace).estimate()
    return figures.peak_requested_bytes, figures.peak_reserved_bytes


def expect_near(recorded: Trace, kind: ActionKind, changed: Trace) -> None:
    live, reserved, saved = of_kind(recorded, kind)
    true_live, true_reserved = peaks(changed)
    assert saved > 0
    assert live == pytest.approx(true_live, rel=NEAR)
    assert reserved == pytest.approx(true_reserved, rel=RESERVED_NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ActionKind.CHECKPOINT, {"checkpointed": True}),
        (ActionKind.HALF_PRECISION, {"dtype": torch.bfloat16}),
        (ActionKind.AUTOCAST, {"autocast": True}),
    ],
)
def test_an_estimate_peaks_as_the_changed_program_does(shape: int, kind: ActionKind, change: dict[str, Any]) -> None:
    expect_near(trained(shape), kind, trained(shape, **change))


@pytest.mark.slow
def test_what_is_in_mixed_precision_already_is_not_halved_again(shape: int) -> None:
    trace = trained(shape, autocast=True)
    chosen = next(finding for finding in findings(trace, trace.devices[0]) if finding.kind is FindingKind.ACTIVATIONS)
    for kind in (ActionKind.AUTOCAST, ActionKind.HALF_PRECISION):
        assert proposal(trace, trace.devices[0], chosen, kind) is None


def test_an_output_let_go_earlier_peaks_as_the_program_that_lets_it_go() -> None:
    expect_near(applied(lets_go=False), ActionKind.FREE_EARLIER, applied(lets_go=True))


@pytest.mark.slow
def test_an_estimate_that_changes_nothing_saves_nothing(shape: int) -> None:
    trace = trained(shape)
    result = ReplayedEstimate(Replayer(trace).estimate(), Replayer(trace).estimate(trace))
    assert (result.requested_change, result.reserved_change) == (0, 0)
