"""The state of Explore and its panels: values from a browser are clamped, and only due parts are made."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from memviz.analysis.breakdown import breakdown
from memviz.analysis.groups import group_rows
from memviz.analysis.leaks import never_freed_rows
from memviz.analysis.lifetimes import live_rows
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.figures.colouring import MEANINGS, colouring, group_colour
from memviz.trace.model import Trace
from memviz.ui.explore.answer import (
    ALL,
    FOUND,
    MOMENT,
    PIN,
    TABLE,
    Details,
    details,
    events_value,
    full_table,
    segments_value,
)
from memviz.ui.explore.findings import findings_html
from memviz.ui.explore.state import Chosen, ExploreState, LatestInput, chosen_of
from memviz.ui.explore.tab import initial_selection, maps
from memviz.ui.shell.session import Context, Opened, Session, timeline_key
from memviz.ui.shell.store import TraceStore
from tests.facts import missing
from tests.real import each_real_file, read_once, requires_real
from tests.traces import MiB, alloc, event, frame, free, trace_of
from tests.ui.page import HOSTILE, elements, rows, tags, words

KEY = "abc/0"


@pytest.fixture
def device():
    """Four events with the peak after event 1, and two allocations."""
    return trace_of([alloc(1, 10), alloc(2, 20), *free(1, 10)]).devices[0]


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ({"at": -1, "pin": 1, "range": [3, 0]}, Chosen(KEY, at=-1, pin=1, range=(0, 3))),
        ({"key": "other/0", "at": 0, "pin": 1}, Chosen(KEY, at=1)),
        ({"at": 99, "pin": 99}, Chosen(KEY, at=3)),
        ({"at": -7, "pin": -7}, Chosen(KEY, at=-1)),
        ({"at": "2", "pin": True, "range": "ab"}, Chosen(KEY, at=1)),
        ({"at": None, "pin": 1.5, "range": [1]}, Chosen(KEY, at=1)),
        ({"at": 2, "range": [-50, 50]}, Chosen(KEY, at=2, range=(-1, 3))),
        ({"at": 2, "range": [1, None]}, Chosen(KEY, at=2)),
    ],
)
def test_what_a_browser_says_is_kept_within_bounds(device, said, chosen):
    assert chosen_of({}, KEY, device) == Chosen(KEY, at=1), "it begins at the peak"
    assert chosen_of({"key": KEY, **said}, KEY, device) == chosen


@pytest.mark.parametrize(
    ("data", "look"),
    [
        ({"act": "tab", "value": "never"}, ExploreState(tab="never")),
        ({"act": "by", "value": "module"}, ExploreState(by="module")),
        ({"act": "sort", "value": "count"}, ExploreState(sort="count")),
        ({"act": "sort", "value": "name"}, ExploreState(sort="name", is_rising=True)),
        ({"act": "sort", "value": "bytes"}, ExploreState(is_rising=True)),
        ({"act": "more"}, ExploreState(is_long=True)),
        ({"act": "zoom", "lightGroup": "1,2", "lightBy": "path"}, ExploreState(path="1,2", path_key=KEY)),
        ({"act": "zoom", "lightGroup": "1,2", "value": "1"}, ExploreState(path="1", path_key=KEY)),
        *(({"act": act}, ExploreState()) for act in ("", "by", "drop")),
        ({"act": "tab", "value": "<b>"}, ExploreState()),
        ({"act": "sort", "value": "__class__"}, ExploreState()),
        ({}, ExploreState()),
    ],
)
def test_a_click_changes_one_thing_and_what_is_no_control_nothing(data, look):
    assert ExploreState().clicked(data, KEY) == look


def test_a_path_belongs_to_its_trace_and_a_query_is_bounded():
    look = ExploreState().clicked({"act": "zoom", "lightGroup": "1,2"}, KEY)
    assert (look.path_of(KEY), look.path_of("other/0")) == ("1,2", "")
    assert ExploreState().finding(f"  {'x' * 999}").query == "x" * 198


ONE = Session(opened=(Opened("one", "one", "cuda:0", ("cuda:0",)),), chosen="one")
KEY_OF_ONE = timeline_key(ONE.current)


def test_what_is_chosen_while_an_answer_is_computed_is_answered() -> None:
    heard = LatestInput()
    heard.session = ONE

    def answer(session: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
        # The visitor continues during the answer: first on the timeline, then to another tab.
        if not chosen:
            heard.chosen = {"key": KEY_OF_ONE, "at": 3}
        elif state.tab == "live":
            heard.state = ExploreState(tab="events")
        return [session.chosen, state.tab, chosen.get("at")]

    assert heard.answer_latest(answer)[:-1] == ["one", "events", 3]


def test_an_event_from_before_its_trace_was_closed_does_not_bring_it_back() -> None:
    heard = LatestInput()
    heard.hear(ONE)
    assert heard.session.current is None
    heard.session = ONE
    renamed = ONE.renaming("one", "mine", "one.pickle")
    heard.hear(renamed)
    assert heard.session is renamed


def test_numbers_of_answers_rise_and_one_that_was_overtaken_gets_the_higher_one() -> None:
    heard, inner = LatestInput(), []

    def answer(session: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
        if not inner:
            heard.chosen = {"key": KEY_OF_ONE, "at": 3}
            inner.append(number_of(heard.answer_latest(lambda *now: [])))
        return []

    assert number_of(heard.answer_latest(answer)) > inner[0]


def number_of(made: list[Any]) -> int:
    return int(re.sub(r"\D", "", made[-1]))


def test_nobody_hears_of_another_visitors_choice() -> None:
    one, other = LatestInput(), LatestInput()
    one.chosen = {"key": KEY_OF_ONE, "at": 3}
    assert other.answer_latest(lambda *now: [now[-1]])[0] == {}


def test_another_trace_begins_where_somebody_chose_in_it_or_where_a_link_says() -> None:
    here, there = {"key": KEY_OF_ONE, "at": 3}, {"key": "other/0", "at": 5}
    linked = {"linked": {"key": KEY_OF_ONE, "at": 7}}
    assert initial_selection(ONE, {}, {}) == {}
    assert initial_selection(ONE, there, there) == {}, "what was chosen in the trace before is forgotten"
    assert initial_selection(ONE, here, {}) == here
    assert initial_selection(ONE, linked, there) == linked["linked"]
    assert initial_selection(ONE, there, here) == here, "already chosen in this one, while its answer was on the way"
    assert initial_selection(Session(), here, {}) == {}


START = ExploreState()
MAIN, MODEL = frame("main", "/p/train.py", 1), frame("forward", "/p/model.py", 3)


@pytest.fixture
def trace() -> Trace:
    """3 MiB from the model that go again, and 1 MiB that stays; the peak is after event 1."""
    return trace_of(
        [alloc(0, 3 * MiB, frames=[MODEL, MAIN]), alloc(4 * MiB, MiB, frames=[MAIN]), *free(0, 3 * MiB, frames=[MAIN])]
    )


def half(trace: Trace, look: ExploreState = START, due: frozenset[str] = ALL, **said) -> Details:
    return details(trace, trace.devices[0], KEY, look, selection={"key": KEY, **said}, parts=due)


def test_it_begins_at_the_peak_and_follows_the_moment_and_the_pin(trace):
    found = half(trace)
    assert missing(words(found.head), "event 1", "2 allocations", "4.00 MiB") == []
    assert words(found.live).startswith("all 4.00 MiB train:1 main 4.00 MiB model:3 forward 3.00 MiB Site")
    assert words(found.inspector).startswith("Event 1 4.00 MiB live")
    assert found.found == ""
    assert missing(words(half(trace, at=3).head), "event 3", "1 allocation", "1.00 MiB") == []
    assert missing(words(half(trace, at=-1).head), "0 allocations", "0 B") == []
    assert words(half(trace, pin=0).inspector).startswith("Pinned allocation")


def test_a_range_is_answered_at_its_peak(trace):
    found = half(trace, range=[2, 3])
    assert missing(words(found.head), "event 2", "2 allocations") == []
    assert missing(words(found.head), "events 2", "0 B", "0 freed", "3.00 MiB") == []
    assert "1.00 MiB" in words(found.head)
    assert words(found.inspector).startswith("Event 2, the range’s peak")


@pytest.mark.parametrize("by", ["site", "category", "module", "line"])
def test_other_groupings_are_the_table_alone(trace, by):
    html = half(trace, ExploreState(by=by)).live
    assert "mv-icicle" not in html
    assert {element["data-light-by"] for element in elements(html, "tr") if element} == {by}


def test_zoomed_in_the_table_holds_what_is_below_and_in_another_trace_all(trace):
    box = elements(half(trace).live, "button", data_act="zoom")[2]
    look = ExploreState().clicked({"act": "zoom", "lightGroup": box["data-light-group"]}, KEY)
    found = half(trace, look)
    assert "Live CSV 1 3,145,728 B 100 %" in words(found.live)
    assert "2 allocations · 4.00 MiB" in words(found.head)
    look = ExploreState(path="0,99", path_key=KEY)
    assert half(trace, look).live == half(trace).live


@pytest.mark.parametrize(
    ("due", "tab", "parts"),
    [
        (ALL, "live", {"head", "found", "live", "inspector"}),
        (MOMENT, "live", {"head", "found", "live", "inspector"}),
        (MOMENT, "never", {"head", "found", "inspector"}),
        (TABLE, "never", {"head", "live"}),
        (PIN, "live", {"inspector"}),
        (FOUND, "segments", {"found"}),
    ],
)
def test_only_what_is_due_is_made(trace, due, tab, parts):
    found = half(trace, ExploreState(tab=tab), due)
    assert {name for name in ("head", "found", "live", "inspector") if getattr(found, name) is not None} == parts


@pytest.mark.parametrize("tab", ["segments", "events"])
def test_the_other_tabs_empty_it(trace, tab):
    found = half(trace, ExploreState(tab=tab), TABLE)
    assert words(found.live) == ""
    assert "aria-pressed" not in found.head


def test_never_freed_is_the_end_of_the_trace(trace):
    html = half(trace, ExploreState(tab="never"), at=0).live
    assert words(html).startswith("1 allocation made here is alive at the end 1.00 MiB.")


def test_a_query_is_answered_or_refused_in_place(trace):
    assert words(half(trace, ExploreState(query="model.py")).found).startswith(
        "1 allocation at 1 site 3.00 MiB live at event 1"
    )
    assert "lifetime" in words(half(trace, ExploreState(query=">lots")).found)


def test_a_download_is_the_whole_table(trace):
    button = elements(half(trace, ExploreState(by="line")).live, "button", data_csv="")[0]
    asked = {name.removeprefix("data-"): value for name, value in button.items()}
    device = trace.devices[0]
    assert full_table(trace, device, asked) == breakdown(trace, device, live_rows(device, 1), "line")
    device = trace.devices[0]
    assert full_table(trace, device, {"what": "never"}).groups == group_rows(trace, device, never_freed_rows(device))


def test_by_count_boxes_and_rows_weigh_their_allocations(trace):
    turned = START.clicked({"act": "weight", "value": "count"}, KEY)
    html = half(trace, turned, at=1).live
    assert words(html).startswith("all 2 train:1 main 2 model:3 forward 1 Site")
    assert [row[-1] for row in rows(html)[1:]] == ["50 %", "50 %", "100 %"]
    assert rows(html)[0][3] == "Blocks ↓"


def test_by_lifetime_the_whole_trace_or_the_range_is_answered_for(trace):
    # 3 MiB after three of five moments and 1 MiB after three of them: 12 MiB in five.
    turned = START.clicked({"act": "weight", "value": "lifetime"}, KEY)
    whole = half(trace, turned, at=1)
    assert missing(words(whole.head), "events 0", "2 allocations", "2.40 MiB") == []
    assert words(whole.live).startswith("all 2.40 MiB train:1 main 2.40 MiB model:3 forward 1.80 MiB Site")
    assert elements(whole.live, "span", title=f"{12 * MiB:,} B × events")
    inside = half(trace, turned, at=1, range=[2, 3])
    assert missing(words(inside.head), "events 2", "2 allocations", "2.50 MiB") == []
    turned = START.clicked({"act": "weight", "value": "lifetime"}, KEY)
    button = elements(half(trace, turned, at=1).live, "button", data_csv="")[0]
    wanted = {name.removeprefix("data-"): value for name, value in button.items()}
    table = full_table(trace, trace.devices[0], wanted).groups
    assert [(group.label, group.bytes) for group in table.groups] == [
        ("model.py:3 forward", 9 * MiB),
        ("train.py:1 main", 3 * MiB),
    ]
    for ends in ({"first": "x"}, {"first": "0", "last": "99"}, {}):
        with pytest.raises(UsageError):
            full_table(trace, trace.devices[0], {"what": "lifetime", **ends})


@pytest.mark.parametrize("meaning", ["category", "site", "size", "no such"])
def test_icicle_and_table_have_the_colours_of_the_timeline(trace, meaning):
    """The model's site alone has 3 MiB: its bar, its swatch and its box are as the timeline paints it."""
    device = trace.devices[0]
    colours = colouring(trace, device, meaning if meaning in MEANINGS else "category")
    shade = group_colour(colours, int(colours.group[0]), dark=False)
    html = half(trace, at=1, colour=meaning).live
    box = next(button for button in elements(html, "button", data_act="zoom") if button["title"].startswith("forward"))
    assert f"--mv-light:{shade};" in box["style"]
    bars = [bar["style"] for bar in elements(html, "i", class_="mv-kind") if "width" in bar["style"]]
    assert f"--mv-light:{shade};" in bars[0]


@pytest.mark.parametrize(
    "asked", [{}, {"event": "x"}, {"event": "99"}, {"event": "1", "by": "no"}, {"event": "1", "path": "9,9"}]
)
def test_what_no_button_asks_is_refused(trace, asked):
    with pytest.raises(UsageError):
        full_table(trace, trace.devices[0], asked)


def test_text_from_a_file_stays_text_in_every_panel():
    hostile = frame(HOSTILE, f"/p/{HOSTILE}.py", 1)
    library = frame("_call_impl", "/v/lib/python3.12/site-packages/torch/nn/modules/module.py", 1790)
    told = {"user_metadata": HOSTILE, "compile_context": HOSTILE}
    held = [alloc(0, MiB, frames=[hostile, library, hostile], time_us=3, **told)]
    # A free that waits is a finding.
    held += [event("free_requested", 0, MiB, time_us=4), alloc(9 * MiB, MiB, frames=[hostile], time_us=9)]
    named = [{"device": 0, "name": HOSTILE, "stage": "START", "time_us": 1}]
    trace = trace_of(held, external_annotations=named)
    panels = []
    for look in (ExploreState(query="x"), ExploreState(by="site"), ExploreState(tab="never")):
        for pin in (-1, 0):
            found = half(trace, look, pin=pin)
            panels += filter(None, (found.found, found.live, found.inspector))
    assert len(panels) > 12
    for html in panels:
        # A long name is cut in its middle where there is no room.
        assert HOSTILE in "".join(words(html).split())
    for html in (*panels, findings_html(trace, trace.devices[0], KEY)):
        assert "</script>" in words(html) and "<b>x" not in html
        assert not tags(html) & {"script", "a", "img"}


@requires_real
@each_real_file
def test_every_real_file_has_a_lower_half(path):
    trace = read_once(path)
    for device in trace.devices:
        last = len(device.events) - 1
        for look in (ExploreState(), ExploreState(tab="never"), ExploreState(by="category", query="forward")):
            said = {"key": KEY, "at": last // 2, "pin": 0, "range": [0, last]}
            assert all(part is not None for part in details(trace, device, KEY, look, selection=said, parts=ALL).panels)
        live = breakdown(trace, device, live_rows(device, last), "site").groups
        assert live.bytes == timeline(device).end_bytes
        kept = breakdown(trace, device, never_freed_rows(device), "site").groups
        assert kept == group_rows(trace, device, never_freed_rows(device))


def test_map_and_list_open_at_the_peak_and_follow_what_is_chosen(trace):
    device = trace.devices[0]
    assert segments_value(device, KEY, {}) == {"key": KEY, "events": 4, "at": 1, "pin": -1, "colour": "category"}
    said = {"key": KEY, "at": 99, "pin": 1, "colour": "site"}
    assert segments_value(device, KEY, said) == {"key": KEY, "events": 4, "at": 3, "pin": 1, "colour": "site"}
    assert [events_value(trace, device, KEY, one)["at"] for one in ({}, said)] == [1, 3]


def test_nothing_is_mapped_or_listed_where_no_trace_is_open():
    seen = [
        maps(Context(TraceStore()), Session(), START.clicked({"act": "tab", "value": tab}, KEY), {})
        for tab in ("segments", "events")
    ]
    assert (seen[0][2], seen[0][3]["visible"], seen[1][4]) == ({}, False, {})
