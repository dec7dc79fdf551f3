"""Which cases are carried out, in which order, and what one that goes wrong costs the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.case import Case, answer
from tests.gpu.results import Results
from tests.gpu.rounds import Clock, one_by_one, several, why_not
from tests.gpu.started import Started


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Pretended:
    """A process whose case takes as long as was expected."""

    def __init__(self, case: Case, time: Time, log: list[str]) -> None:
        self.case, self.time, self.log = case, time, log
        log.append(f"begin {case.name}")

    def finish(self, timeout: float) -> str:
        self.log.append(f"finish {self.case.name}")
        self.time.now += min(timeout, self.case.seconds)
        return "wrong" if self.case.name.startswith("wrong") else ""

    def end(self) -> None:
        self.log.append(f"end {self.case.name}")


def carried_out(cases: list[Case], minutes: float) -> tuple[dict[str, str], list[str]]:
    time, log = Time(), []
    begin: Any = lambda case: Pretended(case, time, log)  # noqa: E731
    outcomes = one_by_one(cases, Clock(minutes, time), begin)
    return {each.case.name: each.state for each in outcomes}, log


def of(**seconds: float) -> list[Case]:
    return [Case("capture", name, seconds=each) for name, each in seconds.items()]


def test_the_next_begins_to_import_before_one_has_finished():
    states, log = carried_out(of(a=20, b=20), minutes=5)
    assert states == {"a": "done", "b": "done"}
    assert log == ["begin a", "begin b", "finish a", "finish b"]


def test_one_that_fails_loses_no_other():
    assert carried_out(of(a=5, wrong=5, c=5), minutes=5)[0] == {"a": "done", "wrong": "failed", "c": "done"}


def test_what_does_not_fit_is_left_out_and_shorter_ones_still_come():
    states, log = carried_out(of(a=20, b=200, c=20), minutes=1)
    assert states == {"a": "done", "b": "skipped", "c": "done"}
    assert "begin b" not in log


def test_nothing_is_left_waiting_when_time_ends():
    case = Case("capture", "a", seconds=20)
    time, log = Time(), []

    class Slow(Pretended):
        def finish(self, timeout: float) -> str:
            self.time.now += 50
            return ""

    begin: Any = lambda each: Slow(each, time, log)  # noqa: E731
    outcomes = list(one_by_one([case, Case("capture", "b", seconds=30)], Clock(1, time), begin))
    assert [each.state for each in outcomes] == ["done", "skipped"]
    assert log == ["begin a", "begin b", "end b"]


def test_several_at_once_keep_their_order():
    time, log = Time(), []
    begin: Any = lambda case: Pretended(case, time, log)  # noqa: E731
    outcomes = several(of(a=1, wrong=1, c=1), Clock(1, time), begin, at_once=2)
    assert [(each.case.name, each.state) for each in outcomes] == [("a", "done"), ("wrong", "failed"), ("c", "done")]


@pytest.mark.parametrize(
    ("case", "card", "words"),
    [
        (Case("capture", "a", gib=10), 15.0, ""),
        (Case("capture", "a", gib=10), None, ""),
        (Case("capture", "a", gib=16.5), 14.7, "needs about 16.5 GiB of the card, which has 14.7"),
        (Case("capture", "a", libraries=("no_such",)), 80.0, "no_such cannot be imported here"),
    ],
)
def test_what_cannot_be_done_here_says_why(case, card, words):
    assert why_not(case, card) == words


def test_a_case_that_cannot_do_its_work_leaves_its_words(tmp_path):
    case = Case("replay", "lost", {"part": "capture", "of": "never-captured"})
    found = answer(case, tmp_path, {"commit": "c"})
    assert found["failed"].startswith("AssertionError")
    assert "result" not in found
    assert "replay.py" in found["where"]
    assert found["machine"]["commit"] == "c"


def test_a_process_that_takes_too_long_is_ended(tmp_path):
    started = Started(Case("replay", "slow"), tmp_path, {})
    assert started.finish(0.01) == "It took longer than 0 seconds and was stopped."
    found = Results(tmp_path).read("replay", "slow")
    assert found is not None
    assert found["failed"] == "It took longer than 0 seconds and was stopped."
