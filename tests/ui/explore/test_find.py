"""The results of a query, as HTML."""

from __future__ import annotations

from memviz.analysis.find import FindResult, FoundSite
from memviz.ui.explore.live_set import MOST_FOUND, matches_html
from tests.traces import MiB
from tests.ui.page import HOSTILE, elements, rows, words


def site(name: str, live: int = 0, count: int = 1) -> FoundSite:
    return FoundSite(f"key {name}", name, live, int(live > 0), 9 * MiB, count)


def test_sites_have_their_bytes_now_and_their_number_ever_and_light_up():
    html = matches_html(FindResult(7, (site("a.py:1 f", 2 * MiB, 30), site("b.py:1 g"))), "py")
    assert words(html).startswith("31 allocations at 2 sites 2.00 MiB live at event 7")
    assert rows(html)[1:] == [
        ["a.py:1 f", "1", "2.00 MiB", "30"],
        ["b.py:1 g", "0", "0 B", "1"],
        ["Found", "1", "2,097,152 B", "31"],
    ]
    html = matches_html(FindResult(7, (site("a"),)), "linear >1MiB")
    assert elements(html, "section", data_light_rest="find", data_light_rest_group="linear >1MiB")
    assert elements(html, "tr", data_light_by="site", data_light_group="key a")


def test_nothing_found_says_so_and_lights_nothing():
    html = matches_html(FindResult(7, ()), HOSTILE)
    assert words(html) == f"Nothing in this trace is found by {HOSTILE}"
    assert not elements(html, "section", data_light_rest="find")


def test_many_sites_end_in_one_row():
    html = matches_html(FindResult(-1, tuple(site(str(i), 10) for i in range(MOST_FOUND + 5))), "x")
    assert rows(html)[-2] == ["everything else, 5 more", "5", "50 B", "5"]
    assert len(rows(html)) == MOST_FOUND + 3
