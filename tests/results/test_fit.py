"""Sentences about runs, over generated orders of variants, and about searches follow their rows."""

import random
import re
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.predictor.expected_error import Fit
from memviz.results.fit import (
    cost_figure,
    cost_rank,
    cost_unit,
    fit_cell,
    fit_headline,
    largest_text,
    work_text,
)
from memviz.results.run import OPTIMIZERS, variants_headline
from memviz.runner.fit.search import Trial
from memviz.runner.jobs.service import OrderStatus, SearchOrder, SearchStatus, Variant
from memviz.runner.request import Request, Run, command_of
from memviz.ui.run.results import head_html, results_html
from memviz.units import bytes_text
from tests.facts import missing
from tests.runner.fit.ways import way
from tests.runner.runs import GIB, run
from tests.ui.page import words

GiB = 1 << 30
_COSTS = ("flops", "bytes_moved", "host_bytes", "seconds_low", "seconds_high")


def told(tried: Trial, label: str = "split_feed_forward") -> dict[str, Any]:
    """Return the fields of `fit --json` that sentences need."""
    cost = tried.cost
    return {
        "label": label,
        "title": label.replace("_", " ").capitalize(),
        "short_title": label.replace("_", " ").capitalize(),
        "optimizations": [{"name": name, **knobs} for name, knobs in tried.candidate.request.optimizations],
        "keeps": tried.candidate.keeps,
        "fits": tried.fits,
        "peak_reserved_bytes": tried.peak_reserved_bytes,
        "cost": {
            **{name: getattr(cost, name) for name in _COSTS},
            "per": "step",
        },
    }


def status(**known: Any) -> SearchStatus:
    return SearchStatus("id", SearchOrder(Request("feed_forward"), largest="batch"), **known)


GOOD, BAD = told(way(2, 20 * GiB)), told(way(1, 30 * GiB, fits=False))
PLAIN, CHEAPER = told(way(3, 12 * GiB), "baseline"), told(way(2, 2 * GiB, "split_feed_forward"))
LIMITED = {"ways": (GOOD,), "done": 1, "of": 9, "time_limit": 600.0, "seconds": 60.0}
CANCELLED = {"done": 2, "of": 9, "failed": "Cancelled."}
LARGEST = {"knob": "batch", "value": 36, "next_fails": True, "predictions": 4}
REFUSED = {**LARGEST, "next_refused": "sequence is 37; GPT-2 knows 36 positions."}


@pytest.mark.parametrize(
    ("known", "facts"),
    [
        ({}, "Starting"),
        ({"before": 2}, "Queued | 2 others"),
        ({"ways": (BAD,), "done": 1, "of": 9, "seconds_left": 200.0}, "Searching | 1 of 9 | about 3 min left"),
        ({"ways": (BAD, GOOD), "done": 2, "of": 9}, "It fits with Split | so far | 20.00 GiB | 2 of 9"),
        ({"ways": ({**GOOD, "fit": "close"},), "done": 2, "of": 9}, "It is close with Split | so far | 20.00 GiB"),
        ({"ways": (GOOD,), "value": 37, "of": 9}, "It fits with | batch 37"),
        ({"ways": (GOOD,), "answer": {"largest": LARGEST}}, "20.00 GiB | unchanged | is 36 | 37 does not fit"),
        ({"ways": (GOOD,), "answer": {"largest": REFUSED}}, "37 is refused | knows 36 positions"),
        ({"ways": (told(way(1, GiB), "baseline"),), "answer": {}}, "It fits without changes | 1,024 MiB"),
        ({"ways": (BAD,), "answer": {}}, "No configuration | Lowest: Split feed forward | 30.00 GiB | training"),
        ({"failed": "There is no workload x."}, "No configuration was tried | There is no workload x."),
        ({"answer": {}}, "No configuration could run"),
        # A sentence like *It fits with ...* would imply that it does not fit without.
        (
            {"ways": (PLAIN, CHEAPER), "done": 2, "of": 9},
            "It fits without changes: 12.00 GiB | cheapest so far is Split feed forward | 2,048 MiB | 2 of 9",
        ),
        (
            {"ways": (PLAIN, CHEAPER), "answer": {}},
            "It fits without changes: 12.00 GiB | cheapest is Split feed forward | 2,048 MiB | unchanged",
        ),
        (
            {"ways": (told(way(3, 30 * GiB, fits=False), "baseline"), CHEAPER), "answer": {}},
            "It fits with Split | 2,048",
        ),
        (LIMITED, "1 of 9 | at most 9 min left"),
        ({**LIMITED, "seconds_left": 200.0}, "about 3 min left"),
        ({**LIMITED, "answer": {"stopped": "time limit"}}, "time limit of 10 min | 1 of 9 | others may be better"),
        ({"ways": (BAD, GOOD), **CANCELLED}, "It fits with Split | Cancelled | 2 of 9 | others may be better"),
        # Predictions are reported even if none fits.
        ({"ways": (BAD,), **CANCELLED}, "No configuration | 30.00 GiB | Cancelled | 2 of 9 | others may be better"),
        ({"done": 0, "of": 0, "failed": "Cancelled."}, "No configuration was tried | Cancelled"),
        ({"ways": (GOOD,), **CANCELLED, "done": 9}, "Cancelled | 9 of 9"),
    ],
)
def test_each_moment_of_a_search_has_its_facts(known: dict[str, Any], facts: str) -> None:
    headline = str(fit_headline(status(**known)))
    assert all(fact in headline for fact in facts.split(" | ")), headline
    assert ("others may be better" in headline) == ("others may be better" in facts)


def test_what_was_on_from_the_beginning_is_no_change() -> None:
    asked = SearchOrder(Request("feed_forward", optimizer="adamw"))
    with_adamw = SearchStatus("id", asked, ways=(told(way(3, 12 * GiB), "adamw"),), answer={})
    assert str(fit_headline(with_adamw)).startswith("It fits without changes: 12.00 GiB")


def test_what_changed_unasked_and_what_is_close_is_said() -> None:
    changed = {
        **told(way(2, 20 * GiB, keeps="training")),
        "changes": ["optimizer sgd instead of adamw"],
        "fit": "close",
    }
    said = str(fit_headline(status(ways=(changed,), answer={})))
    assert said.startswith("It is close with") and "optimizer sgd instead of adamw" in said
    assert fit_cell(changed) == "close" and fit_cell({**changed, "fit": "yes"}) == "fits"
    largest = {"knob": "batch", "value": 1294, "next_fails": True}
    assert "1,294" in largest_text(largest) and "1,295 does not fit" in largest_text(largest)
    assert " 1,294 is close:" in largest_text({**largest, "fit": "close"})
    until_then = largest_text({**largest, "next_fails": False, "stopped": True})
    assert "at least 1,294" in until_then and "stopped" in until_then and "1,295" not in until_then


def test_on_a_card_of_unknown_speed_the_cost_that_is_said_is_the_one_that_is_compared() -> None:
    cost = {"flops": 164 * 10**12, "bytes_moved": 10**12, "host_bytes": 0, "link_bytes": 0, "per": "step"}
    unknown = {**told(way(1, GiB)), "cost": {**cost, "seconds_low": None, "seconds_high": None}}
    assert cost_rank(unknown) == 165e12 and cost_figure(unknown) == work_text(cost_rank(unknown)) == "165.00 T"
    assert cost_unit(unknown) == "FLOP and bytes moved a step"


def made(draw: random.Random, usable: int, optimizer: Any, window: str) -> Run:
    reserved = draw.randrange(usable // 2, 2 * usable)
    live = reserved - draw.randrange(0, reserved // 2)
    fits = live <= usable
    fit = Fit(usable, fits, min(reserved, usable), None if fits else 9, None, None, reserved - usable)
    return run(
        request=Request("tiny", optimizer=optimizer),
        peak_reserved_bytes=reserved,
        peak_allocated_bytes=live,
        flops=draw.randrange(10, 1000),
        fit=fit,
        seconds=None,
        window=window,
        command=f"command {draw.random()}",
    )


def order(draw: random.Random) -> tuple[Variant, ...]:
    usable, optimizer = draw.randrange(4, 40) * GIB, draw.choice([*OPTIMIZERS])
    window = draw.choice(["1 step", "1 forward pass"])
    found = []
    for number in range(draw.randrange(1, 6)):
        chosen: Any = (("half", {"n": str(number)}),) if number else ()
        state: Any = "failed" if draw.random() < 0.15 else "done"
        known = made(draw, usable, optimizer, window) if state == "done" else None
        label = f"Variant {number}"
        found.append(Variant(Request("tiny", optimizations=chosen), label, state, "It broke.", known))
    return tuple(found)


def check(variants: tuple[Variant, ...]) -> None:
    said = variants_headline(variants)
    answer, number, status = said.headline.answer, said.number, OrderStatus("x", variants)
    subject = variants[number].run
    assert answer in words(head_html(status))
    if subject is None:
        assert not any(variant.run for variant in variants)
        return
    shown = results_html(status, number)
    assert subject.command in shown
    assert not [variant for variant in variants if variant.run not in (None, subject) and variant.run.command in shown]
    base = variants[0].run
    of_saving(answer, str(said.headline), variants[number], base)
    of_fit(answer, str(said.headline), variants, subject)


def of_saving(answer: str, said: str, subject: Variant, base: Run | None) -> None:
    saved = re.search(r"[Ss]aves ([\d.,]+ \w+)", said)
    if saved:
        assert base is not None and subject.run is not None
        less = base.peak_reserved_bytes - subject.run.peak_reserved_bytes
        assert (bytes_text(less), less >= 0) == (saved[1], True)
        assert answer.startswith(f"{subject.label} ")


def of_fit(answer: str, said: str, variants: tuple[Variant, ...], subject: Run) -> None:
    known = [variant.run for variant in variants if variant.run is not None]
    claims = re.search(r"It fits|makes the .* fit", said) and "No variant" not in said
    assert subject.fit is not None
    if claims:
        assert subject.fit.fits
    if "does not fit" in said:
        assert not subject.fit.fits
    if answer.startswith("No variant makes"):
        assert not any(each.fit and each.fit.fits for each in known)
    if claims or "not fit" in said or answer.startswith("No variant makes"):
        trains = subject.window == "1 step"
        assert (f"with {OPTIMIZERS[subject.request.optimizer]}" in said) == trains


def test_what_is_said_of_generated_runs_is_what_stands_beside_it() -> None:
    draw = random.Random(3)
    for _ in range(400):
        check(order(draw))


def test_the_host_decides_as_well_where_its_memory_is_given() -> None:
    """Each process of a machine has its weights there; without a size nothing is said of it."""
    fit = Fit(24 * GIB, True, 8 * GIB, None, None, None, 0)
    request = Request("tiny", parallel={"gpus": "16"}, host_memory="64GiB")
    for peak, answer in ((8 * GIB, True), (16 * GIB, False)):
        one = run(request=request, fit=fit, host_peak_bytes=peak)
        assert one.fits_host is answer and Run.from_json(one.as_json()) == one
        variants = (Variant(request, "Baseline", "done", run=one),)
        reason = variants_headline(variants).headline.reason
        assert (missing(reason, "16.00 GiB", "64.00 GiB", "does not fit") == []) is not answer
        assert ("✗ does not fit" in words(results_html(OrderStatus("x", variants), 0))) is not answer
    assert run(request=Request("tiny"), fit=fit, host_peak_bytes=1).fits_host is None
    assert "host_memory" not in Request("tiny").as_json() and "--host-memory 64GiB" in command_of(request)
    for wrong in ("0", "lots"):
        with pytest.raises(UsageError, match="Host memory"):
            Request("tiny", host_memory=wrong)
