"""Tests of the limits of a question."""

import re
from itertools import pairwise

import pytest

from memviz.allocator.replayer import Replayer
from memviz.errors import UsageError
from memviz.trace.model import Trace
from memviz.ui.shell.session import Context, open_trace, timeline_key
from memviz.ui.shell.store import TraceStore
from memviz.ui.what_if.answer import WhatIfAnswers, first_question
from memviz.ui.what_if.question import WhatIfState, parse_question
from memviz.ui.what_if.replays import SECONDS_SETTING, Replays, TooLong, most_seconds
from memviz.ui.what_if.settings_form import KnownMemory
from tests.traces import MiB, alloc, event, segment, trace_of

BASE = 0x7000_0000_0000
OOM = {"action": "oom", "device_free": 1, "size": 1 << 30, "stream": 0}


@pytest.fixture(scope="module")
def long() -> Trace:
    """Its mapped ranges touch nowhere, so that each is an address space of its own."""
    rows = [event("segment_map", BASE - (i << 26), 20 * MiB) for i in range(6000)]
    return trace_of([*rows, alloc(BASE, 512), OOM], [segment(BASE, 2 * MiB, [])])


@pytest.fixture
def opened(long: Trace) -> tuple[WhatIfAnswers, str]:
    context = Context(TraceStore())
    key = timeline_key(open_trace(context.store, long))
    return WhatIfAnswers(context, Replays(context)), key


def test_a_question_that_takes_longer_ends_in_words(
    opened: tuple[WhatIfAnswers, str], long: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, key = opened
    question = first_question(long, long.devices[0], KnownMemory(None))
    monkeypatch.setenv(SECONDS_SETTING, "0.000001")
    with pytest.raises(TooLong, match=re.escape(f"raise {SECONDS_SETTING}")):
        answers.find(key, parse_question(question), True, lambda done, total: None)
    assert answers.displayed_answer(WhatIfState(key=key, question=question)) is None


def test_what_nobody_asked_for_is_tried_once(
    opened: tuple[WhatIfAnswers, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, key = opened
    monkeypatch.setattr("memviz.ui.what_if.answer.UNASKED_SECONDS", 1e-6)
    assert answers.recorded_memory(key) == KnownMemory(None)
    monkeypatch.setattr(answers.replays, "replayer", lambda *given: pytest.fail("It was tried again."))
    assert answers.recorded_memory(key) == KnownMemory(None)


def test_a_replay_asks_every_few_thousand_events_whether_to_go_on(long: Trace) -> None:
    told: list[int] = []
    device = long.devices[0]
    Replayer(long, device).as_recorded(lambda done, total: told.append(done))
    steps = [after - before for before, after in pairwise([*told, len(device.events)]) if after > before]
    assert steps and max(steps) <= 2048


def test_the_limit_grows_with_the_recording_and_can_be_set(long: Trace) -> None:
    device = long.devices[0]
    assert most_seconds(device, {}) == pytest.approx(10.6, abs=0.1)
    assert most_seconds(device, {SECONDS_SETTING: "3"}) == 3
    with pytest.raises(UsageError, match=SECONDS_SETTING):
        most_seconds(device, {SECONDS_SETTING: "soon"})
