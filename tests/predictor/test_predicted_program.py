"""`memviz.predicting` around code, `memviz.predict` of a function."""

import pytest
import torch
from torch import nn

import memviz
from memviz.errors import UsageError
from memviz.predictor.assumptions import DataNeeded
from memviz.trace.model import Category
from tests.facts import missing

WIDTH = 512
WEIGHT = WIDTH * WIDTH * 4


def train(steps: int, *, rows: int = 4) -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(steps):
        model(torch.randn(rows, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_functions_estimate_adds_up() -> None:
    estimate = memviz.predict(train, 2, rows=16)
    categories = estimate.by_category()
    assert categories["parameter"] == WEIGHT and categories["optimizer_state"] == 2 * WEIGHT
    assert sum(categories.values()) == estimate.peak_requested <= estimate.peak_allocated <= estimate.peak_reserved
    assert estimate.peak == estimate.peak_reserved and estimate.steps == 2
    labels = estimate.trace.devices[0].event_labels
    assert labels is not None and Category.GRADIENT in labels.category.tolist()


def test_what_fits_is_asked_of_any_card() -> None:
    estimate = memviz.predict(lambda: torch.empty(20 << 30, dtype=torch.uint8, device="cuda"), card="RTX 4090")
    assert estimate.fits() and estimate.fits("RTX 4090") and estimate.fits("H100")
    assert not estimate.fits("T4")
    with pytest.raises(UsageError):
        estimate.fits("no such card")


def test_without_a_card_there_is_no_verdict_until_one_is_named() -> None:
    estimate = memviz.predict(lambda: torch.empty(20 << 30, dtype=torch.uint8, device="cuda"))
    assert estimate.fits("RTX 4090") and not estimate.fits("T4") and estimate.peak_reserved_on_card is None
    for ask in (estimate.fits, estimate.fit, estimate.fit_word):
        with pytest.raises(UsageError, match="No card given"):
            ask()
    assert missing(repr(estimate), "live 20.00 GiB", "allocated 20.00 GiB", "reserved 20.00 GiB") == []


def test_a_block_of_code_is_an_estimate_when_it_is_over() -> None:
    with memviz.predicting(card="T4") as predicted:
        assert torch.cuda.get_device_name().endswith("T4")
        with pytest.raises(UsageError, match="before the `with` block ends"):
            predicted.peak  # noqa: B018
        held = torch.ones(1000, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
        del held
    assert predicted.peak_requested == 4000 and predicted.out_of_memory == 1
    assert not predicted.fits() and not predicted.fits("T4") and predicted.fits("H100")
    assert not torch.cuda.is_available()


def test_an_error_inside_leaves_the_estimate_until_there() -> None:
    with pytest.raises(KeyError), memviz.predicting() as predicted:
        torch.ones(1000, device="cuda")
        raise KeyError
    assert predicted.peak_requested == 4000
    assert torch.ones(3).sum().item() == 3


def test_answers_and_steps_are_given_as_to_the_command() -> None:
    def ask() -> int:
        return int(torch.rand(3, device="cuda").long().sum())

    with pytest.raises(DataNeeded):
        memviz.predict(ask)
    line = ask.__code__.co_firstlineno + 1
    assert memviz.predict(ask, assume={f"test_predicted_program.py:{line}": 3}).assumed[0].where.endswith(f":{line}")
    with memviz.predicting(steps=3) as predicted:
        train(5)
    assert predicted.steps == 3
