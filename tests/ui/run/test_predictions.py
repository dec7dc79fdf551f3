"""Tests of predictions: known ones are not made again, the last change wins, and prices add up with the answers."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.results.run import variants_headline
from memviz.runner.jobs.service import OrderStatus
from memviz.runner.prices import Price
from memviz.runner.request import Request
from memviz.ui.run import predictions
from memviz.ui.run.answer import AT_HOME, RunAnswers, RunState, timeline_values, with_measured
from memviz.ui.run.form import RunRequests
from memviz.ui.run.results import results_html
from memviz.ui.run.tab import RunTab
from memviz.ui.shell.store import TraceStore
from tests.runner.processes import wait_until

SMALL = {"sequence": "64", "dim": "64", "layers": "2"}
SPLIT = (("split_feed_forward", {"splits": "2"}),)


def asked(*changes: Any, numerics: bool = False, **settings: str) -> RunRequests:
    requests = [Request("feed_forward", {**SMALL, **settings}, change, numerics=numerics) for change in ((), *changes)]
    return RunRequests(tuple(requests), tuple(f"variant {number}" for number in range(len(requests))))


def answered(answers: RunAnswers, requests: RunRequests, visitor: str) -> OrderStatus:
    return list(answers.follow(answers.begin(requests, visitor, keeps=False).id))[-1]


def unchecked(answers: RunAnswers, requests: RunRequests, visitor: str) -> OrderStatus:
    live = RunRequests(tuple(replace(one, numerics=False) for one in requests.requests), requests.labels)
    return answered(answers, live, visitor)


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Stop the process, so that its run cannot end, on a slow machine either."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_is_known_is_answered_at_once_with_its_trace_for_every_visitor(answers: RunAnswers) -> None:
    first = answered(answers, asked(SPLIT), "ann")
    again = answers.begin(asked(SPLIT), "bob", keeps=False)
    assert again.is_over
    assert [variant.run for variant in again.variants] == [variant.run for variant in first.variants]
    assert all(variant.file is not None and variant.file.exists() for variant in again.variants)
    assert answers.kept("ann").all() == () == answers.kept("bob").all()
    pair = answers.shown_pair(again)
    assert [(trace.letter, trace.name) for trace in pair] == [("A", "variant 0"), ("B", "variant 1")]
    assert len({value["top"] for value in timeline_values(pair, again)}) == 1


def test_of_quick_changes_the_last_is_answered_and_those_between_are_never_begun(answers: RunAnswers) -> None:
    requests = [asked(dim=str(64 * at)) for at in range(3, 12)]
    begun = [answers.begin(requests[0], "ann", keeps=False)]
    order = answers.scheduler._jobs[begun[0].id]
    wait_until(lambda: order.worker is not None)
    with standing_still(order.worker.pid):  # type: ignore[union-attr]
        begun += [answers.begin(one, "ann", keeps=False) for one in requests[1:]]
    seen = [list(answers.follow(one.id)) for one in begun]
    assert seen[-1][-1].variants[0].run is not None
    assert not any(statuses for statuses in seen[:-1])
    known = [answers.predictions.known(one.requests[0]) is not None for one in requests[1:]]
    assert known == [False] * 7 + [True]


def test_a_variant_chosen_while_an_answer_is_drawn_stays_chosen(
    answers: RunAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = answered(answers, asked(SPLIT), "eve")
    tab = RunTab.__new__(RunTab)
    tab.answers = answers

    def chosen_meanwhile(status: OrderStatus) -> Any:
        answers.choose(order.id, 0)
        return pair(status)

    pair = answers.shown_pair
    monkeypatch.setattr(answers, "shown_pair", chosen_meanwhile)
    drawn = tab._answer_values(RunState(), order)
    assert "name" in drawn["A"] and not drawn["B"]
    assert answers.shown(order) == 0 and drawn["results"] == results_html(answers.checked(order), 0)


def test_the_picture_is_of_the_variant_that_the_headline_names(answers: RunAnswers) -> None:
    base, eight = asked((("split_feed_forward", {"splits": "8"}),), sequence="4096").requests
    two = replace(eight, optimizations=(("split_feed_forward", {"splits": "2"}),))
    sweep = answered(answers, RunRequests((base, eight, two), ("none", "eight", "two")), "fay")
    assert variants_headline(sweep.variants).number == answers.shown(sweep) == 1
    assert [trace.name for trace in answers.shown_pair(sweep)] == ["none", "eight"]
    assert answers.shown(answers.checked(sweep, [(eight, "eight")])) == 2


def test_a_price_is_the_difference_of_two_answers_and_its_negative_is_never_shown(answers: RunAnswers) -> None:
    without, with_it = (asked(dim="96").requests[0], asked(SPLIT, dim="96").requests[1])
    base = answered(answers, asked(dim="96"), "cat")
    list(answers.in_background(base, RunRequests((without,), ("a",)), "cat"))
    split = answered(
        answers, RunRequests((replace(with_it, optimizations=(("split_feed_forward", {}),)),), ("b",)), "cat"
    )
    before, after = base.variants[0].run, split.variants[0].run
    assert before is not None and after is not None
    change = after.peak_reserved_bytes - before.peak_reserved_bytes
    prices = answers.price_list(RunRequests((without,), ("a",)), by_saving=False).prices
    assert prices["split_feed_forward"] is not None and prices["split_feed_forward"].reserved_bytes == change
    assert prices["checkpointing"] is not None and prices["checkpointing"].reason == "training only"
    # Switched on, it still says what it changes.
    on = answers.price_list(RunRequests((split.variants[0].request,), ("b",)), by_saving=False).prices
    assert on["split_feed_forward"] is not None and on["split_feed_forward"].reserved_bytes == change


def test_stored_prices_are_shown_at_once_and_then_predicted_so_that_a_switch_is_answered(
    answers: RunAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Price("split_feed_forward", reserved_bytes=-5)
    monkeypatch.setattr(predictions, "load_prices", lambda request: [stored])
    base = answered(answers, asked(dim="136"), "fay")
    request = base.variants[0].request
    assert answers.price_list(RunRequests((request,), ("a",)), by_saving=False).prices[stored.name] == stored
    list(answers.in_background(base, RunRequests((request,), ("a",)), "fay"))
    switched = replace(request, optimizations=((stored.name, {}),))
    known = answers.predictions.known(switched)
    run = answered(answers, RunRequests((switched,), ("b",)), "fay").variants[0].run
    assert known is not None and known.run is not None and run is not None
    assert known.run.peak_reserved_bytes == run.peak_reserved_bytes


def test_outputs_are_checked_in_the_background(answers: RunAnswers) -> None:
    requests = asked(SPLIT, dim="128", numerics=True)
    status = unchecked(answers, requests, "dan")
    assert [variant.run.numerics for variant in status.variants if variant.run] == [None, None]
    list(answers.in_background(status, requests, "dan"))
    checked = answers.checked(status).variants[1].run
    assert checked is not None and checked.numerics is not None and checked.numerics["verdict"]["ok"] is True
    assert "--no-numerics" not in checked.command


@pytest.mark.slow
def test_a_check_and_a_price_that_take_too_long_are_over_and_say_so(tmp_path: Path) -> None:
    hurried = RunAnswers(TraceStore(), tmp_path, replace(AT_HOME, price_seconds=0.01))
    try:
        requests = asked(SPLIT, dim="112", numerics=True)
        status = unchecked(hurried, requests, "eve")
        list(hurried.in_background(status, requests, "eve"))
        checked = hurried.checked(status).variants[1].run
        assert checked is not None and checked.numerics["error"] == "the check took too long"  # type: ignore[index]
        prices = hurried.price_list(requests, by_saving=False).prices
        assert None not in prices.values()
        settings = prices["allocator_settings"]
        assert settings is not None and (settings.reason, settings.reserved_bytes) == ("took too long", None)
    finally:
        hurried.close()


def test_a_refusal_is_remembered_and_marks_its_field(answers: RunAnswers) -> None:
    fields = {"workload": "ltx_video", "w:frames": "80"}
    status = answered(answers, answers.parse(fields)[1], "ann")
    assert status.variants[0].what == "refused"
    assert "frames is 80" in answers.parse(fields)[1].faults["w:frames"]
    assert "w:frames" not in answers.parse({**fields, "w:frames": "81"})[1].faults


def test_pinned_and_measured_variants_have_their_places_and_none_comes_twice(answers: RunAnswers) -> None:
    requests = asked(SPLIT)
    pins = ((asked(dim="96").requests[0], "wide"), (requests.requests[1], "again"))
    assert answers.with_pinned(requests, pins).labels == ("variant 0", "wide", "variant 1")
    both = with_measured(asked(SPLIT))
    assert [(one.on, label) for one, label in zip(both.requests, both.labels, strict=True)] == [
        ("predict", "variant 0"),
        ("cuda", "variant 0, measured"),
        ("predict", "variant 1"),
        ("cuda", "variant 1, measured"),
    ]


def test_a_full_disk_costs_the_trace_alone(answers: RunAnswers, tmp_path: Path) -> None:
    status = answered(answers, asked(dim="192"), "eve")
    kept = answers.predictions.known(asked(dim="192").requests[0])
    assert kept is not None and kept.file is not None
    kept.file.unlink()
    known = answers.predictions.known(asked(dim="192").requests[0])
    assert known is not None and (known.state, known.file) == ("waiting", None)
    assert known.run == status.variants[0].run


def test_a_trace_that_is_kept_again_leaves_no_second_file(answers: RunAnswers, tmp_path: Path) -> None:
    variant = answered(answers, asked(dim="160"), "fay").variants[0]
    kept = answers.predictions.known(variant.request)
    assert kept is not None and kept.file is not None
    another = tmp_path / "again.pickle.gz"
    another.write_bytes(kept.file.read_bytes())
    answers.predictions.keep(replace(kept, state="done", file=another))
    again = answers.predictions.known(variant.request)
    assert again is not None and again.file is not None and again.file.exists()
    assert not kept.file.exists() or kept.file == again.file


def test_prices_of_a_closed_page_end(answers: RunAnswers) -> None:
    requests = asked(SPLIT, dim="144", numerics=True)
    status = unchecked(answers, requests, "gus")
    list(answers.in_background(status, requests, "gus", lambda: False))
    background = [scheduler.newest_of("gus") for scheduler in answers.predictions.schedulers]
    assert all(order is not None and order.is_left for order in background)
    assert answers.checked(status).variants[1].run.numerics is None  # type: ignore[union-attr]
