"""What a saved page keeps, what it leaves out, and that it says so."""

from __future__ import annotations

import random
import re
from functools import cache

import numpy as np
import pytest

from memviz.analysis.timeline import timeline
from memviz.figures.colouring import colouring
from memviz.trace.model import Trace
from memviz.ui.compare.controls import switch_html
from memviz.ui.html.markup import joined
from memviz.ui.saved.document import rewrite_links
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


def test_all_spans_are_the_live_bytes():
    device = busy().devices[0]
    whole = timeline(device).live
    assert (live_bytes(all_spans(device, colouring(busy(), device)), len(whole)) == whole).all()


def test_of_too_many_the_peak_stays_to_the_byte_and_the_largest_stay_as_they_are():
    device = busy().devices[0]
    whole, spans = timeline(device).live, largest_spans(device, colouring(busy(), device), 300)
    drawn = live_bytes(spans, len(whole))
    assert drawn.max() >= whole.max() and drawn[whole.argmax()] == whole.max()
    assert np.count_nonzero(spans.row >= 0) == 300
    assert (np.diff(spans.start) >= 0).all()
    assert "the 300 largest are drawn one by one" in spans.note


def test_what_does_not_fit_is_left_out_and_said():
    trace = busy()
    kept = [saved_pieces(trace, trace.devices[0], most) for most in (1 << 20, 16_000, 12_000)]
    sizes = [sum(len(piece["body"]) for piece in each.pieces.values()) for each in kept]
    assert kept[0].note == "" and kept[0].has_times
    assert all(size <= most for size, most in zip(sizes, (1 << 20, 16_000, 12_000), strict=True))
    assert "drawn together by category" in kept[2].note
    assert "Times are" in kept[2].note


def test_where_even_the_least_is_too_much_the_least_is_kept():
    trace = busy()
    assert "the 0 largest are drawn one by one" in saved_pieces(trace, trace.devices[0], 1000).note


@pytest.mark.parametrize("count", [1, 2])
def test_texts_of_a_trace_stay_within_their_places(count: int):
    frames = [frame(HOSTILE, f"/{HOSTILE}.py", 3)]
    trace = trace_of([alloc(i, 4096, frames=frames) for i in range(4)])
    page = report_page([(trace, trace.devices[0])] * count)
    assert "<img" not in page
    assert "\u2028" not in page[page.index('id="mv-saved"') :]
    assert page.count("</script>") == 2, "the data and the one script that the policy names"
    page.encode("utf-8", "replace")


def test_names_of_a_megabyte_make_no_page_of_many():
    frames = [[frame(f"{i}" + "x" * 300_000, "/y" * 100_000, i)] for i in range(30)]
    trace = trace_of([alloc(i, 4096, frames=each) for i, each in enumerate(frames)])
    assert len(report_page([(trace, trace.devices[0])] * 2)) < 3_000_000


def test_the_only_script_is_the_one_that_the_policy_names():
    page = report_page([(busy(), busy().devices[0])])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy and "default-src 'none'" in policy[1]
    assert re.search(r"script-src 'sha256-[\w+/=]+';", policy[1])
    assert "script-src 'unsafe" not in page


def test_what_leads_nowhere_is_no_button():
    html = (
        '<button type="button" class="a" data-act="by" data-value="site">Site</button>'
        '<button type="button" class="b" data-act="use">as</button><button data-csv="">CSV</button>'
        '<button data-keep="">row</button><button data-act="toggle">×</button>'
    )
    ways = rewrite_links(html, lambda data: {"by": data["value"]} if data["act"] == "by" else None)
    assert 'data-set="{&quot;by&quot;: &quot;site&quot;}">Site</button>' in ways
    assert '<span class="b">as</span>' in ways
    assert "CSV" not in ways and "×" not in ways
    assert '<button data-keep="">row</button>' in ways


def test_a_switch_of_which_no_choice_is_left_goes_as_a_whole():
    """Of the colours, which no saved page can change, a choice that was off stood there alone."""
    off = {"module": "No module is recorded."}
    choices = (("category", "Category"), ("site", "Site"), ("module", "Module"))
    colours = switch_html("colour", "Colours", choices, "category", disabled=off)
    rows = switch_html("by", "Rows", choices, "site", disabled=off)
    ways = rewrite_links(joined(colours, rows), lambda data: {"by": data["value"]} if data["act"] == "by" else None)
    assert [group["aria-label"] for group in elements(ways, "div", role="group")] == ["Rows"]
    assert len(elements(ways, "button")) == 3
