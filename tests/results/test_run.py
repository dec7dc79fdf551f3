"""Every sentence of Run against its rows, over generated orders of variants."""

import random
import re
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.predictor.expected_error import Fit
from memviz.results.run import OPTIMIZERS, variants_headline
from memviz.runner.jobs.service import OrderStatus, Variant
from memviz.runner.request import Request, Run, command_of
from memviz.ui.run.results import head_html, results_html
from memviz.units import bytes_text
from tests.facts import missing
from tests.runner.runs import GIB, run
from tests.ui.page import words


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
