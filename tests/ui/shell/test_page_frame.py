"""Tests of the sidebar, the session, its links, and files that are opened."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from memviz.analysis.cache import size_in_bytes
from memviz.text import Html, distinct_labels, esc, tag
from memviz.trace.model import Trace
from memviz.ui.explore.answer import facts, verdict_html
from memviz.ui.shell import page_frame
from memviz.ui.shell.page_frame import actions_html, refused_html, traces_html
from memviz.ui.shell.session import (
    Context,
    Opened,
    Refused,
    Session,
    find_by_link,
    link_name,
    open_trace,
    timeline_key,
    view_state,
)
from memviz.ui.shell.store import TraceStore
from memviz.ui.upload.opening import on_upload, open_sample, reopen_traces, session_after
from memviz.ui.upload.samples import OFFERED_SAMPLES, find_sample
from tests.facts import missing
from tests.traces import alloc, block, event, frame, read, segment, trace_of
from tests.ui.page import elements, words

EVIL = "<img src=x onerror=alert(1)>${1}{{x}}</script>"


@pytest.fixture
def store() -> TraceStore:
    return TraceStore()


def small(source: str = "run.pickle") -> Trace:
    trace = trace_of([alloc(0, 1000, frames=[frame("forward", "model.py", 3)]), alloc(4096, 3000)])
    return replace(trace, about=replace(trace.about, source=source))


# -- markup


def test_text_is_never_markup() -> None:
    assert tag("b", "<i>&\"'", title='"><script>') == (
        '<b title="&quot;&gt;&lt;script&gt;">&lt;i&gt;&amp;&quot;&#x27;</b>'
    )
    assert esc(Html("<b>ours</b>")) == "<b>ours</b>"
    assert "\u202e" not in esc("abc\u202edef")


# -- the store


def test_a_trace_is_found_by_its_whole_key_until_others_need_the_room(store: TraceStore) -> None:
    key = store.add(small())
    assert len(key) >= 24
    assert store.get(key) is not None
    assert store.get(key[:-1]) is None
    store.drop(key)
    assert store.get(key) is None
    store = TraceStore(most_bytes=int(2.5 * size_in_bytes(small())))
    first, second = store.add(small()), store.add(small())
    store.get(first)
    store.add(small())
    assert (store.get(first) is not None, store.get(second)) == (True, None)
    store = TraceStore(most_bytes=1)
    assert store.get(store.add(small())) is not None


# -- the session

A, B, C = (Opened(name, name, "0", ("0", "1")) for name in "abc")


def test_the_first_two_are_compared_the_last_is_looked_at_and_on_a_device_that_is_there() -> None:
    session = Session().with_opened(A).with_opened(B).with_opened(C)
    assert (session.chosen, session.compared) == ("c", ("a", "b"))
    assert session.toggling("b").toggling("c").compared == ("a", "c")
    assert session.with_baseline("b").compared == ("b", "a")
    closed = Session().with_opened(A).with_opened(B).closing("b")
    assert (closed, closed.closing("a")) == (Session().with_opened(A), Session())
    session = Session().with_opened(A)
    assert session.on_device("a", "1").current == replace(A, device="1")
    assert session.on_device("a", "7").current == A


# -- opening


def test_a_refused_file_leaves_what_is_open(store: TraceStore) -> None:
    session = open_sample(store, Session(), OFFERED_SAMPLES[0])
    after = on_upload(Context(store), session, {"refused": "bad.pickle", "reason": "It is text.", "turn": "1"})
    assert after.opened == session.opened
    assert [each.name for each in after.refused] == ["bad.pickle"]
    html = refused_html(after)
    assert "bad.pickle was not opened." in html
    assert missing(html, "1 open", "untouched") == []


def test_samples_open_once(store: TraceStore) -> None:
    sample = find_sample("checkpointing")
    assert sample is not None
    session = open_sample(store, Session(), sample)
    assert len(session.opened) == len(session.compared) == 2
    assert open_sample(store, session, sample).opened == session.opened


def test_a_browser_finds_again_what_the_store_still_has(store: TraceStore) -> None:
    session = open_sample(store, open_sample(store, Session(), OFFERED_SAMPLES[0]), OFFERED_SAMPLES[2])
    store.drop(session.opened[0].key)
    again = reopen_traces(store, [[trace.key, trace.sample] for trace in session.opened])
    assert again.opened == session.opened[1:]
    assert reopen_traces(store, [["guessed", ""], ["x"]]) == Session()


@pytest.mark.parametrize(
    ("query", "state"),
    [
        (
            {"at": "5", "from": "-1", "pin": "x", "order": "age", "colour": "evil"},
            {"at": 5, "from": -1, "order": "age"},
        ),
        ({"at": "9" * 400, "z": "1"}, {}),
        ({"low": "512", "high": str(32 << 30)}, {"low": 512, "high": 32 << 30}),
    ],
)
def test_only_valid_values_of_a_link_are_taken(query: dict[str, str], state: dict[str, object]) -> None:
    assert view_state(query) == state


def test_keys_and_links_lead_to_an_open_trace_and_a_device(store: TraceStore) -> None:
    context, one = Context(store), open_trace(store, small())
    found = context.find(timeline_key(one))
    assert found is not None
    assert found[1].name == "0"
    assert context.find(f"{one.key}/9") is None
    assert context.find("guess/0") is None
    sample = replace(A, sample="training.pickle.gz")
    session = Session().with_opened(sample).with_opened(B)
    assert link_name(sample) == "sample:training.pickle.gz"
    assert "secret" not in link_name(replace(B, key="secret"))
    assert find_by_link(session, link_name(B)) == B
    assert find_by_link(session, "nobody") is None


# -- what is seen


def test_the_list_names_every_open_trace_and_tells_several_apart(store: TraceStore) -> None:
    context = Context(store)
    session = (
        Session()
        .with_opened(open_trace(store, small("one.pickle")))
        .with_opened(open_trace(store, small(f"{EVIL}.pickle")))
    )
    html = traces_html(session, context.of)
    assert "<b>one</b>" in html
    assert "<img src=x" not in html
    assert html.count('aria-current="true"') == 1
    store.drop(session.opened[0].key)
    assert "closed to free memory" in traces_html(session, context.of)
    context, alone = Context(store), Session().with_opened(open_trace(store, small()))
    assert "mv-badge" not in traces_html(alone, context.of)
    both = alone.with_opened(open_trace(store, small()))
    assert traces_html(both, context.of).count("mv-badge") == 2
    names = [f"profile_of_a_very_long_run_{kind}" for kind in ("fp32", "bf16")]
    session = Session().with_opened(replace(A, name=names[0])).with_opened(replace(B, name=names[1]))
    shown = words(traces_html(session, lambda _: None))
    assert " fp32 " in shown and " bf16 " in shown and "profile" not in shown, "what differs is what is shown"


def test_of_many_traces_a_bar_says_which_is_highest(context):
    session = Session()
    for size, bars in ((1000, []), (4000, []), (2000, ["width:25.0%", "width:100.0%", "width:50.0%"])):
        session = session.with_opened(open_trace(context.store, trace_of([alloc(0, size)])))
        shown = elements(traces_html(session, context.of), "i", class_="mv-peakline")
        assert [bar["style"] for bar in shown] == bars


def test_of_many_traces_each_row_names_its_timeline_unless_that_is_large(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    for sizes in ([1000], [4000], [2000, 8]):
        made = trace_of([alloc(place << 20, size) for place, size in enumerate(sizes)])
        session = session.with_opened(open_trace(context.store, made))
    rows = timelines_named(traces_html(session, context.of))
    assert rows == {opened.key: timeline_key(opened) for opened in session.opened}
    monkeypatch.setattr(page_frame, "_MOST_AHEAD", 1)
    rows = timelines_named(traces_html(session, context.of))
    assert rows[session.opened[-1].key] is None


def timelines_named(html: str) -> dict[str | None, str | None]:
    return {row["data-key"]: row.get("data-mv-timeline") for row in elements(html, "button", data_act="choose")}


def test_the_menu_names_the_open_trace_and_a_refusal_is_text() -> None:
    assert "data-mv-link" not in actions_html(Session())
    html = actions_html(Session().with_opened(replace(A, sample="x")))
    assert 'data-mv-link="sample:x"' in html
    html = refused_html(Session().with_refused(Refused(EVIL, EVIL)))
    assert "<img" not in html


def test_the_verdict_names_a_failed_allocation() -> None:
    oom = {"action": "oom", "device_free": 7, "size": 2**30, "stream": 0, "frames": [frame(EVIL, "m.py", 2)]}
    trace = trace_of([event("segment_alloc", 0, 2**21), alloc(0, 1024), oom])
    html = verdict_html(trace, trace.devices[0])
    assert missing(html, "m.py:2", "1,024 MiB", "ran out of memory") == []
    assert missing(html, "1.00 KiB", "2.00 MiB") == []
    assert "<img" not in html


def test_what_arrives_is_opened_and_what_is_refused_stays_said_until_it_is_opened_after_all():
    store = TraceStore()
    said = {"refused": "a.pickle", "reason": "It is cut off."}
    refused = on_upload(Context(store), Session(), said)
    twice = on_upload(Context(store), refused, {**said, "reason": "It is empty."})
    assert twice.refused == (Refused("a.pickle", "It is empty."),)
    other = trace_of([alloc(1, 512)])
    session = on_upload(
        Context(store), twice, {"stored": store.add(replace(other, about=replace(other.about, source="b.pickle")))}
    )
    assert ([each.name for each in session.opened], session.refused) == (["b"], twice.refused)
    key = store.add(replace(other, about=replace(other.about, source="a.pickle")))
    session = on_upload(Context(store), session, {"stored": key})
    assert ([each.name for each in session.opened], session.refused) == (["b", "a"], ())
    assert on_upload(Context(store), session, {"stored": key}) is session
    assert on_upload(Context(store), session, {"stored": "a guess"}) is session
    later = on_upload(Context(store), session, {**said, "drop": "1"})
    key = store.add(replace(other, about=replace(other.about, source="c.pickle")))
    together = on_upload(Context(store), later, {"stored": key, "drop": "1", "beside": "1"})
    assert together.refused == later.refused, "they came together"
    assert on_upload(Context(store), together, {"stored": "a guess", "drop": "2"}).refused == later.refused
    key = store.add(replace(other, about=replace(other.about, source="d.pickle")))
    assert on_upload(Context(store), together, {"stored": key, "drop": "2"}).refused == ()
    for act in ("choose", "close", "home", "dismiss"):
        assert session_after(Context(store), together, {"act": act, "key": key}).refused == (), act
    many = session
    for i in range(9):
        many = on_upload(Context(store), many, {"refused": f"{i}" * 999, "reason": "x" * 9999})
    assert [(len(each.name), len(each.reason)) for each in many.refused] == [(300, 1000)] * 5


def two_devices() -> Trace:
    oom = {"action": "oom", "device_free": 7, "size": 2**30, "stream": 0}
    return read({"segments": [], "device_traces": [[alloc(0, 9000)], [alloc(0, 1000), oom]]})


def test_of_several_devices_the_one_that_ran_out_of_memory_is_opened_first_and_the_others_lead_to_it(
    store: TraceStore,
) -> None:
    assert open_trace(store, two_devices()).device == "1"
    trace = two_devices()
    here, there = (verdict_html(trace, device, "key") for device in trace.devices)
    assert 'data-act="device" data-key="key" data-device="1"' in here
    assert here.index("ran out of memory once") > here.index("</details>"), "it is not folded"
    assert "data-act" not in there
    assert missing(there, "Device 1", "ran out of memory") == []


def test_a_state_alone_has_no_peak_and_what_is_not_known_is_not_nothing() -> None:
    trace = trace_of([], [segment(0, 2**21, [block(0, 512, 500)])])
    html = verdict_html(trace, trace.devices[0])
    assert "500 B are live.</h1>" in html
    assert missing(html.partition("<summary>")[2], "history", "final") == []
    assert "peak" not in str(facts(trace, trace.devices[0]))
    recorded = trace_of([event("segment_alloc", 0, 2**21), alloc(0, 1024)])
    assert ("peak reserved", "2.00 MiB") in facts(recorded, recorded.devices[0])
    host = trace_of([alloc(0, 1024)])
    assert ("reserved", "not in the file") in facts(host, host.devices[0])
    assert "0 B" not in dict(facts(host, host.devices[0])).values()


def test_names_that_differ_stay_different_however_long_they_are() -> None:
    alike = [f"Wedsonlin_experiment_{rate}_snapshot_final" for rate in ("lr1e-3", "lr1e-4", "lr2e-4")]
    for names in (
        alike,
        [*alike, alike[0]],
        ["a" * n for n in range(20, 25)],
        ["x" * 30 + f"{i}" * 30 for i in range(9)],
    ):
        shown = distinct_labels(names, 18)
        assert len(set(shown)) == len(set(names)) and all(len(text) <= 18 for text in shown)
    assert distinct_labels(["run", "run", "walk"], 18) == ["run", "run", "walk"]


def test_a_new_name_is_kept_by_the_browser_bounded_and_can_be_taken_back() -> None:
    context = Context(TraceStore())
    opened = open_trace(context.store, trace_of([alloc(1, 512)]))
    session = Session().with_opened(opened)
    renamed = session_after(context, session, {"act": "rename", "key": opened.key, "name": f" {EVIL}\n {'x' * 200}"})
    assert renamed.opened[0].name == f"{EVIL} {'x' * 200}"[:80]
    assert EVIL not in traces_html(renamed, context.of)
    again = reopen_traces(context.store, [[opened.key, "", renamed.opened[0].name], ["gone", "", "y"]])
    assert again.opened == renamed.opened
    found = context.of(again.opened[0])
    assert found is not None and found[0].about.source == renamed.opened[0].name
    assert session_after(context, renamed, {"act": "rename", "key": opened.key, "name": " "}) == session
    assert session_after(context, session, {"act": "rename", "key": "gone", "name": "y"}) == session


def test_a_given_name_does_not_lengthen_those_of_the_others() -> None:
    context = Context(TraceStore())
    session = Session()
    for number in range(3):
        opened = open_trace(context.store, trace_of([alloc(1, 512 * (number + 1))]))
        session = session.with_opened(replace(opened, name=f"experiment_rate{number}_final"))
    act = {"act": "rename", "key": session.opened[1].key, "name": "mine"}
    for shown, expected in ((session, "rate1"), (session_after(context, session, act), "mine")):
        assert re.findall("<b[^>]*>([^<]*)</b>", traces_html(shown, context.of)) == ["rate0", expected, "rate2"]
