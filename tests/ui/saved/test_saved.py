"""Tests of saved pages: which data they keep, which links, and that no text of a trace leaves its place."""

import random
import re
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from memviz.analysis.timeline import timeline
from memviz.figures.colouring import colouring
from memviz.text import tag
from memviz.trace.model import Trace
from memviz.ui.html.elements import switch
from memviz.ui.saved.document import SavedLinks
from memviz.ui.saved.report import report_page
from memviz.ui.saved.timeline import SavedSpans, all_spans, largest_spans, saved_pieces
from tests.traces import alloc, frame, free, trace_of
from tests.ui.page import elements

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\ud800"


@cache
def busy(count: int = 3000) -> Trace:
    """Allocations of every size, freed in any order."""
    chance = random.Random(5)
    events, live = [], []
    for i in range(count):
        if live and chance.random() < 0.5:
            address, size = live.pop(chance.randrange(len(live)))
            events += free(address, size, time_us=7 * i)
        else:
            live.append((i << 31, chance.randrange(1, 1 << 30)))
            events.append(alloc(*live[-1], time_us=7 * i + chance.randrange(5), frames=[frame(f"f{i % 50}")]))
    return trace_of(events)


def live_bytes(spans: SavedSpans, count: int) -> np.ndarray:
    change = np.zeros(count + 1, dtype=np.int64)
    np.add.at(change, spans.start, spans.size)
    np.add.at(change, np.minimum(spans.end, count), -spans.size)
    return np.cumsum(change)[:count]


def test_all_spans_are_the_live_bytes_and_of_too_many_the_peak_stays_to_the_byte():
    device = busy().devices[0]
    whole = timeline(device).live
    assert (live_bytes(all_spans(device, colouring(busy(), device)), len(whole)) == whole).all()
    device = busy().devices[0]
    whole, spans = timeline(device).live, largest_spans(device, colouring(busy(), device), 300)
    drawn = live_bytes(spans, len(whole))
    assert drawn.max() >= whole.max() and drawn[whole.argmax()] == whole.max()
    assert np.count_nonzero(spans.row >= 0) == 300
    assert (np.diff(spans.start) >= 0).all()
    assert "300" in spans.note


def test_what_does_not_fit_is_left_out_and_said_down_to_the_least():
    trace = busy()
    kept = [saved_pieces(trace, trace.devices[0], most) for most in (1 << 20, 16_000, 12_000)]
    sizes = [sum(len(piece["body"]) for piece in each.pieces.values()) for each in kept]
    assert kept[0].note == "" and kept[0].has_times
    assert all(size <= most for size, most in zip(sizes, (1 << 20, 16_000, 12_000), strict=True))
    assert "drawn together by category" in kept[2].note
    assert "no times" in kept[2].note
    trace = busy()
    assert "0 largest" in saved_pieces(trace, trace.devices[0], 1000).note


@pytest.mark.parametrize("count", [1, 2])
def test_texts_of_a_trace_stay_within_their_places(count: int):
    frames = [frame(HOSTILE, f"/{HOSTILE}.py", 3)]
    trace = trace_of([alloc(i, 4096, frames=frames) for i in range(4)])
    page = report_page([(trace, trace.devices[0])] * count)
    assert "<img" not in page
    assert "\u2028" not in page[page.index('id="mv-saved"') :]
    assert page.count("</script>") == 2, "the data and the one script that the policy names"
    page.encode("utf-8", "replace")


@pytest.mark.slow
def test_the_page_keeps_its_limit_and_has_the_one_script_that_the_policy_names():
    frames = [[frame(f"{i}" + "x" * 300_000, "/y" * 100_000, i)] for i in range(30)]
    trace = trace_of([alloc(i, 4096, frames=each) for i, each in enumerate(frames)])
    assert len(report_page([(trace, trace.devices[0])] * 2)) < 3_000_000
    page = report_page([(busy(), busy().devices[0])])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy and "default-src 'none'" in policy[1]
    assert re.search(r"script-src 'sha256-[\w+/=]+';", policy[1])
    assert "script-src 'unsafe" not in page


def follow_grouping(data: Mapping[str, str]) -> dict[str, str] | None:
    return {"by": data["value"]} if data["act"] == "by" else None


def test_within_a_saved_page_what_leads_nowhere_becomes_text() -> None:
    with SavedLinks(follow_grouping):
        grouping = tag("button", "Site", type="button", data_act="by", data_value="site")
        text = tag("button", "as", type="button", class_="b", data_act="use", aria_label="Use")
        kept = tag("button", "row", data_keep=True)
        dropped = [tag("button", "x", **data) for data in ({"data_csv": True}, {"data_act": "toggle"})]
        other_tab = tag("button", "Events", role="tab", data_act="tab", data_value="events")
    assert 'data-set="{&quot;by&quot;: &quot;site&quot;}">Site</button>' in grouping
    assert (text, kept) == ('<span class="b">as</span>', "<button data-keep>row</button>")
    assert [*dropped, other_tab] == ["", "", ""]
    assert tag("button", "x", data_csv=True) == "<button data-csv>x</button>", "only within a saved page"
    with SavedLinks(lights_paths=False) as links:
        row = tag("tr", data_light_by="site", data_light_group="a<b")
        box = tag("i", data_light_by="path", data_light_group="1,2")
        tag("tr", data_compare_by="line", data_compare_row="x")
    assert (list(links.lights), list(links.compared)) == ([("site", "a<b"), ("path", "1,2")], [("line", "x")])
    assert ("data-light-by" in row, box) == (True, "<i></i>")
    off = {"module": "No module is recorded."}
    choices = {"category": "Category", "site": "Site", "module": "Module"}
    with SavedLinks(follow_grouping):
        assert switch("colour", "Colours", choices, "category", kind="mvt-switch", disabled=off) == ""
        rows = switch("by", "Rows", choices, "site", kind="mvt-switch", disabled=off)
    assert len(elements(rows, "button")) == 3
