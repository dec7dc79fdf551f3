"""Tests of estimates: one at a time for each visitor, remembered, and never before a run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from memviz.runner.jobs.service import Variant
from memviz.runner.request import Request
from memviz.ui.run.answer import AT_HOME, RunAnswers
from memviz.ui.run.form import RunRequests
from memviz.ui.shell.store import TraceStore
from tests.runner.processes import wait_until

SMALL = {"sequence": "64", "dim": "64", "layers": "2"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunAnswers]:
    # A machine that is busy with other things may take minutes to start the process.
    patient = replace(AT_HOME, estimate_seconds=AT_HOME.seconds)
    made = RunAnswers(TraceStore(), tmp_path_factory.mktemp("runs"), patient)
    yield made
    made.close()


def asked(**settings: str) -> RunRequests:
    return RunRequests((Request("feed_forward", {**SMALL, **settings}, numerics=False),), ("Baseline",))


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Stop the process, so that its run cannot end, on a slow machine either."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def last(found: Iterator[Variant]) -> Variant | None:
    seen = list(found)
    return seen[-1] if seen and seen[-1].is_over else None


def test_it_is_the_peak_of_what_is_switched_on_and_is_not_computed_twice(answers: RunAnswers) -> None:
    first = last(answers.estimate(asked(), "ann"))
    assert first is not None and first.run is not None
    assert first.file is not None and not first.file.exists(), "nobody wants the trace"
    again = list(answers.estimate(asked(), "bob"))
    assert [each.run for each in again] == [first.run]


def test_of_quick_changes_the_last_is_answered_and_the_others_end_unanswered(answers: RunAnswers) -> None:
    slow = RunRequests((Request("gpt2", {"layers": "2"}, numerics=False),), ("slow",))
    requests = [slow, *(asked(dim=str(64 * at)) for at in range(3, 12))]
    questions = [answers.estimate(request, "ann") for request in requests]
    begun = [next(questions[0])]
    (first,) = [order for order in answers.estimates.scheduler._jobs.values() if not order.status.is_over]
    wait_until(lambda: first.worker is not None)
    with standing_still(first.worker.pid):
        begun += [next(question) for question in questions[1:]]
    assert not any(each.is_over for each in begun)
    found = [last(question) for question in questions]
    assert found[:-1] == [None] * 9
    assert found[-1] is not None and found[-1].run is not None
    # The first was under way already and ended by itself; those between were never begun.
    known = [answers.estimates.known(request) is not None for request in requests]
    assert known == [True] + [False] * 8 + [True]


def test_of_what_was_ordered_nothing_is_estimated_until_something_was_changed(answers: RunAnswers) -> None:
    ordered, changed = asked(dim="96"), asked(dim="160")
    answers.estimates.order(ordered, "ann")
    assert list(answers.estimate(ordered, "ann")) == [], "asked for at the same moment, and heard of later"
    assert last(answers.estimate(ordered, "bob")) is not None, "of others it is an estimate as any"
    assert last(answers.estimate(changed, "ann")) is not None
    assert last(answers.estimate(ordered, "ann")) is not None


def test_a_refusal_is_remembered_and_marks_its_field(answers: RunAnswers) -> None:
    fields = {"workload": "ltx_video", "w:frames": "80"}
    found = last(answers.estimate(answers.parse(fields)[1], "ann"))
    assert found is not None and found.what == "refused"
    assert "frames is 80" in answers.parse(fields)[1].faults["w:frames"]
    assert "w:frames" not in answers.parse({**fields, "w:frames": "81"})[1].faults


@pytest.mark.slow
def test_a_run_ends_it_and_while_one_runs_there_is_none(answers: RunAnswers) -> None:
    slow = RunRequests((Request("gpt2", {"layers": "12"}, numerics=False),), ("slow",))
    question = answers.estimate(slow, "ann")
    next(question)
    told: list[Variant | None] = []
    listening = threading.Thread(target=lambda: told.append(last(question)))
    listening.start()
    begun = answers.begin(asked(dim="96"), "ann")
    listening.join()
    assert not listening.is_alive()
    assert [each.what if each else "" for each in told] == ["cancelled"]
    assert list(answers.estimate(asked(dim="160"), "bob")) == []
    assert [each.is_over for each in answers.follow(begun.id)][-1]


def test_what_could_only_be_measured_is_not_estimated(answers: RunAnswers, tmp_path: Path) -> None:
    measured = RunRequests((Request("feed_forward", SMALL, on="cuda"),), ("a",))
    assert list(answers.estimate(measured, "ann")) == []
    assert list(answers.estimate(RunRequests(measured.requests, ("a",), {"run": "no"}), "ann")) == []
