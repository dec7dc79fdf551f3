"""Tests of housekeeping: visitors who left, idle traces, old files and half-open connections."""

import asyncio
import datetime
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memviz.analysis.cache import cached_on, size_in_bytes
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.ui.shell import housekeeping
from memviz.ui.shell.housekeeping import Housekeeping, keep_seconds
from memviz.ui.shell.session import Context, Session, open_trace
from memviz.ui.shell.store import TraceStore
from memviz.ui.shell.temporary_files import Exports, new_file
from memviz.ui.shell.visitors import OpenPages, Windows
from memviz.ui.upload.reading import Readings
from memviz.ui.what_if.replays import Replays
from tests.analysis.test_leaks import many
from tests.ui.opened import growing


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path


class Page:
    """The per-visitor state of a page, without Gradio."""

    def __init__(self) -> None:
        self.store = TraceStore()
        self.readings = Readings(Context(self.store))
        self.exports = Exports()
        self.open_pages = OpenPages()
        self.windows = Windows(self)
        self.state_holder = SimpleNamespace(session_data={}, time_last_used={}, lock=threading.Lock())
        self._queue = SimpleNamespace(
            pending_messages_per_session={}, pending_event_ids_session={}, event_ids_to_events={}
        )
        self.housekeeping = Housekeeping(self, keep=100)

    def visited(self, name: str) -> str:
        """The key of the trace that this visitor has open."""
        found = open_trace(self.store, growing())
        self.state_holder.session_data[name] = SimpleNamespace(state_data={1: Session().with_opened(found), 2: "x"})
        self.state_holder.time_last_used[name] = datetime.datetime.now()
        self._queue.pending_messages_per_session[name] = self._queue.pending_event_ids_session[name] = {}
        return found.key


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monotonic, clock = time.monotonic, time.time
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
    monkeypatch.setattr(time, "time", lambda: clock() + seconds)


def test_who_left_is_forgotten_with_all_they_had_and_who_is_here_keeps_it(monkeypatch: pytest.MonkeyPatch):
    page = Page()
    gone, here, program = (page.visited(name) for name in ("gone", "here", "program"))
    pinned = page.store.add(growing(), pinned=True)
    with page.open_pages.of("gone"):
        pass
    with page.open_pages.of("here"):
        page.housekeeping.tidy()
        assert [page.store.get(key) is not None for key in (gone, here, program)] == [True] * 3
        later(monkeypatch, 150)
        page.housekeeping.tidy()
        assert set(page.state_holder.session_data) == {"here"}
        assert set(page.state_holder.time_last_used) == {"here"}
        assert set(page._queue.pending_messages_per_session) == {"here"}
        assert [page.store.get(key) is not None for key in (gone, here, program, pinned)] == [False, True, False, True]


@pytest.mark.slow
def test_who_waits_for_an_answer_is_not_forgotten(monkeypatch: pytest.MonkeyPatch):
    page = Page()
    page.visited("program")
    page._queue.pending_event_ids_session["program"] = {"a run"}
    page._queue.event_ids_to_events["a run"] = object()
    later(monkeypatch, 150)
    page.housekeeping.tidy()
    assert set(page.state_holder.session_data) == {"program"}
    del page._queue.event_ids_to_events["a run"]
    page.housekeeping.tidy()
    assert set(page.state_holder.session_data) == set()


def test_one_visitor_with_two_windows_keeps_what_the_other_window_shows(monkeypatch: pytest.MonkeyPatch):
    page = Page()
    key = page.visited("first window")
    page.state_holder.session_data["second window"] = page.state_holder.session_data["first window"]
    with page.open_pages.of("first window"):
        pass
    with page.open_pages.of("second window"):
        later(monkeypatch, 150)
        page.housekeeping.tidy()
        assert set(page.state_holder.session_data) == {"second window"}
        assert page.store.get(key) is not None


def test_the_store_forgets_by_the_clock_although_nothing_is_added(monkeypatch: pytest.MonkeyPatch):
    store = TraceStore(most_seconds=1000)
    held, closed = store.add(growing()), store.add(growing())
    dropped: list[str] = []
    store.on_drop(dropped.append)
    later(monkeypatch, 500)
    assert store.forget({held}, 100)
    assert dropped == [closed]
    later(monkeypatch, 1500)
    assert store.forget({held}, 100)
    assert dropped == [closed, held]


def test_what_was_computed_for_a_trace_goes_while_nobody_looks_at_it(monkeypatch: pytest.MonkeyPatch):
    trace = many(5_000)
    store = TraceStore()
    key = store.add(trace)
    raw, line = size_in_bytes(trace), timeline(trace.devices[0])
    assert not store.forget({key}, 1000)
    assert size_in_bytes(trace) > 1.5 * raw
    later(monkeypatch, 100)
    assert store.forget({key}, 1000)
    assert size_in_bytes(trace) < 1.05 * raw
    assert not store.forget({key}, 1000), "what is small already stays as it is"
    assert store.get(key) is trace
    again = timeline(trace.devices[0])
    assert again is not line
    assert all((mine == theirs).all() for (_, mine), (_, theirs) in zip(again.columns(), line.columns(), strict=True))


@pytest.mark.slow
def test_a_long_trace_stays_as_it_is_for_longer(monkeypatch: pytest.MonkeyPatch):
    trace = many(50_000)
    store = TraceStore()
    key = store.add(trace)
    line = timeline(trace.devices[0])
    later(monkeypatch, 100)
    assert not store.forget({key}, 1000)
    assert timeline(trace.devices[0]) is line
    later(monkeypatch, 200)
    assert store.forget({key}, 1000)
    assert timeline(trace.devices[0]) is not line


def test_the_store_charges_what_is_computed_later_too():
    trace = growing()
    store = TraceStore()
    store.add(trace)
    (charged,) = store._kept.values()
    before = charged.bytes
    trace.__dict__.setdefault("_kept", {})["a view"] = bytearray(1 << 20)
    store.forget(set(), 1000)
    assert charged.bytes >= before + (1 << 20)


def test_replays_rest_and_go_with_their_trace(
    context: Context, replays: Replays, key: str, monkeypatch: pytest.MonkeyPatch
):
    replay = replays.replayer(key).as_recorded().trace
    line = timeline(replay.devices[0])
    cached_on(replay, "a view", lambda: bytearray(1 << 20))
    later(monkeypatch, 100)
    assert context.store.forget({key.partition("/")[0]}, 1000)
    assert size_in_bytes(replay) < 1 << 20
    assert replays.replayer(key).as_recorded().trace is replay, "it is not replayed again"
    assert len(timeline(replay.devices[0])) == len(line)
    replays.replayer(key).as_recorded()
    assert len(replays._kept) == 2
    context.store.drop(key.partition("/")[0])
    assert len(replays._kept) == 0


def test_a_replay_that_ends_after_its_trace_was_closed_is_not_kept(context: Context, replays: Replays, key: str):
    recorded = replays.replayer(key).as_recorded()
    context.store.drop(key.partition("/")[0])
    replays._keep((key, "recorded"), recorded, recorded.trace)
    assert len(replays._kept) == 0


def test_what_nobody_fetched_and_what_broke_off_is_deleted_after_a_while(folder: Path):
    page = Page()
    old, new = new_file("old.html"), new_file("new.html")
    given_up, under_way = folder / "tmpold", folder / "tmpnew"
    for each in (old, new, given_up, under_way):
        each.write_text("x")
    for each in (old.parent, given_up):
        os.utime(each, (1, 1))
    page.housekeeping.tidy()
    assert [each.exists() for each in (old, new, given_up, under_way)] == [False, True, False, True]


def test_lines_that_say_nothing_are_closed_and_others_are_not(monkeypatch: pytest.MonkeyPatch):
    closed: list[str] = []

    def line(name: str, **state: Any) -> SimpleNamespace:
        found = SimpleNamespace(cycle=None, timeout_keep_alive_task=None, **state)
        found.transport = SimpleNamespace(close=lambda: closed.append(name))
        found.loop = SimpleNamespace(call_soon_threadsafe=lambda call: call())
        return found

    half_open, idle, working = line("half open"), line("idle"), line("working")
    idle.timeout_keep_alive_task, working.cycle = object(), object()
    page: Any = Page()
    page.server = SimpleNamespace(server_state=SimpleNamespace(connections={1: 0}))
    page.server.server_state.connections = [half_open, idle, working]
    page.housekeeping.tidy()
    assert closed == []
    later(monkeypatch, 90)
    page.housekeeping.tidy()
    assert closed == ["half open"]


def test_how_long_is_kept_is_a_setting_that_is_checked(monkeypatch: pytest.MonkeyPatch):
    assert keep_seconds() == 3600
    monkeypatch.setenv("MEMVIZ_KEEP_SECONDS", "20")
    assert keep_seconds() == 20
    for wrong in ("0", "-1", "soon", "nan"):
        monkeypatch.setenv("MEMVIZ_KEEP_SECONDS", wrong)
        with pytest.raises(UsageError, match="MEMVIZ_KEEP_SECONDS"):
            keep_seconds()


@pytest.mark.parametrize(
    ("quiet", "longest", "busy", "wanted", "is_done"),
    [
        (1e-9, 60, [True, True, False], [True], True),
        (60, 0, [True], [True], True),
        (60, 60, [False], [True, True, False], False),
    ],
    ids=["once it is quiet", "after the longest time", "not once nobody wants it"],
)
def test_work_waits_until_the_page_is_idle(
    monkeypatch: pytest.MonkeyPatch, quiet: float, longest: float, busy: list[bool], wanted: list[bool], is_done: bool
):
    for name, seconds in (("_LOOK_SECONDS", 0), ("_QUIET_SECONDS", quiet), ("_LONGEST_SECONDS", longest)):
        monkeypatch.setattr(housekeeping, name, seconds)
    looks, wishes = iter(busy), iter(wanted)
    last = busy[-1], wanted[-1]
    waiting = housekeeping.wait_until_idle(lambda: next(looks, last[0]), lambda: next(wishes, last[1]))
    assert asyncio.run(waiting) == is_done
