"""The expected error of a prediction, from measured peaks of its class."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from memviz.predictor import accuracy
from memviz.predictor.accuracy import MeasuredPeak, doubt_on, expected_error, unproven_of, unproven_sentence
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.predictor.estimate import estimate_of
from memviz.predictor.expected_error import ExpectedError
from memviz.predictor.ledger import trains
from memviz.predictor.rules import NCCL, Standing, Unproven, families_of
from memviz.units import bytes_text
from tests.facts import missing

GiB = 1 << 30
CARD = card_named("RTX 4090")
PRODUCTS, SUMS = frozenset({"matrix products"}), frozenset({"matrix products", "reductions"})


def one(name: str, families: frozenset[str], **changes: Any) -> MeasuredPeak:
    made: dict[str, Any] = {
        "card": "RTX 4090", "torch": "2.6", "kind": "training",
        "live": (1000, 1000), "allocated": (1000, 1002), "reserved": (1000, 993),
    }  # fmt: skip
    return MeasuredPeak(name=name, families=families, **{**made, **changes})


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        one("a", PRODUCTS),
        one("b", SUMS, reserved=(1000, 1002)),
        one("c", SUMS, kind="inference"),
        one("d", PRODUCTS | {"layer norm"}, live=None, allocated=(1000, 990), reserved=None),
    )
    monkeypatch.setattr(accuracy, "measured_peaks", lambda: rows)


def test_a_covered_prediction_has_the_worst_of_few_recordings_of_its_class() -> None:
    found = expected_error(["mm", "sum", "add_Tensor"], trains=True, card=CARD)
    assert (found.live, found.allocated, found.reserved) == (0.0, 0.2, 0.7)
    assert (found.recordings, found.published, found.covered) == (2, 0, True)
    assert missing(found.sentence, "live ± 0.0 %", "allocated ± 0.2 %", "reserved ± 0.7 %", "2 recorded") == []


def test_a_program_that_is_predicted_in_part_says_nothing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (one("a", PRODUCTS), one("b", PRODUCTS, reserved=(1000, 900), whole=False))
    monkeypatch.setattr(accuracy, "measured_peaks", lambda: rows)
    found = expected_error(["mm"], trains=True, card=CARD)
    assert (found.reserved, found.recordings) == (0.7, 1)


def test_of_many_peaks_one_in_twenty_may_be_wider() -> None:
    rows = [one(str(number), PRODUCTS, allocated=(1000, 1000 + number)) for number in range(40)]
    assert accuracy.width_of(rows, "allocated") == 3.8 and accuracy.width_of(rows[:38], "allocated") == 3.7
    assert accuracy.width_of(rows[:1], "reserved") == 0.7 and accuracy.width_of([], "live") is None


def test_an_exact_class_is_not_said_to_be_without_error_where_something_is_not_counted() -> None:
    error = ExpectedError(0.0, 0.1, 0.5, 13, 0, "training", not_counted=("cuDNN workspaces",))
    assert "live" not in error.sentence and "allocated \N{MINUS SIGN} 0.1 %" in error.sentence
    assert "(13 recorded training steps)" in replace(error, allocated=0.0, reserved=0.0).sentence


def test_a_program_that_allocates_nothing_has_no_error() -> None:
    with PredictedDevice(CARD) as device:
        torch.ones(8).sum()
    found = estimate_of(device, device.finish()).expected_error
    assert "no expected error" in found.sentence and "%" not in found.sentence
    assert ExpectedError.from_json(found.as_json()) == found


def test_the_sentence_says_what_the_error_rests_on() -> None:
    # What recordings lack is taken from published tables.
    found = expected_error(["mm", "native_layer_norm"], trains=True, card=CARD)
    assert (found.live, found.allocated, found.reserved) == (1.0, 1.0, 1.0)
    assert (found.recordings, found.published) == (2, 1)
    assert found.covered and "1 peak in a public table" in found.sentence
    found = expected_error(["mm", "native_dropout"], trains=True, card=CARD)
    assert found.not_covered == ("dropout",) and not found.covered
    assert found.sentence.startswith("Expected error excluding dropout (no recordings): live ± 0.0 %,")
    found = expected_error(["mm"], trains=True, card=card_named("H100"))
    assert not found.like_card and not found.covered
    assert found.sentence.endswith("recorded training steps). None was on a similar card.")
    assert expected_error(["mm"], trains=True, card=card_named("RTX 3060")).like_card


def test_what_has_no_rule_is_said_not_to_be_counted() -> None:
    found = expected_error(["convolution", "mm"], trains=False, card=CARD)
    assert len(found.not_counted) == 1 and "cuDNN" in found.not_counted[0] and found.not_covered == ()
    assert found.uncounted_bytes is None and found.is_lower_bound
    assert (found.least_growth, found.reserved_interval(1000)) == (0.0, (993, 1007))
    # In training a network is known that reserved more.
    training = expected_error(["convolution", "mm"], trains=True, card=CARD)
    assert training.reserved_interval(1000)[1] > 1000 * (1 + accuracy.CONVOLUTIONS_GREW_BY)


def test_an_error_on_both_sides_stands_beside_nothing_that_is_not_counted() -> None:
    """The estimate in the note of a rule is the one in the sentence, in the interval and in the verdict on a card."""
    estimates = []
    for width in (8, 1024):
        with PredictedDevice(card_named("T4")) as device:
            torch.nn.Conv2d(3, 8, 3).cuda()(torch.empty(64, 3, width, width, device="cuda"))
            unproven, operators = unproven_of(device.recorder), device.recorder.operators
        found = expected_error(operators, trains=False, card=CARD, unproven=unproven)
        (rule,) = [one for one in unproven if one.bytes_at_most]
        assert found.uncounted_bytes == rule.bytes_at_most and found.estimates_all
        assert "lower bound" in found.sentence and "±" not in found.sentence
        size = bytes_text(found.uncounted_bytes)
        assert size in found.sentence and (size in unproven_sentence(unproven) or found.uncounted_bytes < 1 << 20)
        least, most = found.reserved_interval(GiB)
        assert most >= GiB + rule.bytes_at_most and least <= GiB
        doubt = doubt_on(CARD, found)
        assert doubt.surely_fitting_peak(CARD.memory_bytes) + rule.bytes_at_most <= CARD.memory_bytes
        estimates.append(found.uncounted_bytes)
    assert estimates[0] < GiB < estimates[1]


def test_of_several_kinds_that_are_not_counted_the_sentence_says_that_one_has_no_estimate() -> None:
    sorts = Unproven("distinct values", Standing.MISSING, "", 4 << 20, 0, 8 << 20)
    norms = Unproven("cuDNN's batch norm", Standing.MISSING, "", None, 0, None)
    nccl = Unproven(NCCL, Standing.MISSING, "", None, 0, None)
    one = expected_error(["unique_dim"], trains=False, card=CARD, unproven=(sorts, nccl))
    both = expected_error(["unique_dim", "native_batch_norm"], trains=False, card=CARD, unproven=(sorts, norms))
    assert (one.uncounted_bytes, one.estimates_all) == (8 << 20, True)
    assert (both.uncounted_bytes, both.estimates_all) == (8 << 20, False)
    assert both.sentence != one.sentence and "more without an estimate" in both.sentence


@pytest.mark.parametrize(
    ("asked", "left_out"),
    [
        (lambda x: torch.linalg.eigvalsh(x), "cuSOLVER workspaces of linear algebra"),
        (lambda x: torch.det(x), "cuSOLVER workspaces of linear algebra"),
        (lambda x: torch.fft.rfft(x), "cuFFT workspaces of one dimension"),
        (lambda x: torch.sparse.mm(sparse_on_card(), x), "cuSPARSE workspaces of sparse products"),
    ],
)
def test_libraries_that_take_workspaces_are_not_counted(asked: Callable[[torch.Tensor], Any], left_out: str) -> None:
    """A prediction with them is no "like this" of recordings that have none of them."""
    with PredictedDevice(CARD) as device:
        asked(torch.ones(8, 8, device="cuda"))
        found = expected_error(device.recorder.operators, trains=False, card=CARD)
        rules = {one.rule for one in unproven_of(device.recorder)}
    assert left_out in found.not_counted and not found.covered
    assert rules & {"linear algebra libraries", "Fourier transforms", "products of sparse tensors"}


def sparse_on_card() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.zeros(2, 1).long(), torch.ones(1), (8, 8), check_invariants=False).to("cuda")


def test_it_survives_a_file() -> None:
    found = expected_error(["convolution", "native_dropout"], trains=True, card=CARD)
    kept = found.as_json()
    assert kept["class"] == "training" and kept["covered"] is False
    assert ExpectedError.from_json(kept) == found
    with pytest.raises(TypeError):
        ExpectedError.from_json({**kept, "live": "0"})


def test_families_are_those_of_operators_on_the_card() -> None:
    # Operators of the host say nothing about the card.
    with PredictedDevice(CARD) as device:
        layer = torch.nn.Linear(8, 8)
        torch.nn.init.orthogonal_(layer.weight)
        torch.nn.LSTM(8, 8)(layer(torch.ones(2, 8)))
        layer.cuda()(torch.ones(2, 8, device="cuda"))
        assert device.recorder.operators.isdisjoint({"linalg_qr", "lstm"}) and not device.recorder.missing
        torch.linalg.qr(layer.weight)
        assert "linalg_qr" in device.recorder.operators and device.recorder.missing
    with PredictedDevice(card_named("RTX 4090"), release=(2, 13)) as device:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.LayerNorm(288)).cuda()
        out = model(torch.randn(2, 3, 8, 8, device="cuda"))
        assert not trains(device.finish())
        out.softmax(-1).sum().backward()
        trace = device.finish()
    assert families_of(device.recorder.operators) == {"convolutions", "layer norm", "softmax", "reductions"}
    assert trains(trace)


def test_a_family_is_not_covered_by_recordings_where_a_prediction_rests_on_a_rule_that_none_proves() -> None:
    rule = Unproven("buffers of other reductions", Standing.READ, "", 4 << 20, 0, None)
    proved, read = (expected_error(["mm", "sum"], trains=True, card=CARD, unproven=rules) for rules in ((), (rule,)))
    assert (proved.not_covered, read.not_covered) == ((), ("reductions",))
