"""Estimates from edited requests, compared to a prediction of the program with the same change."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memviz.allocator.replayer import ReplayedEstimate, Replayer
from memviz.analysis.actions.proposals import ActionKind, kinds_of, proposal
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Trace
from sample_traces import gpt

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
