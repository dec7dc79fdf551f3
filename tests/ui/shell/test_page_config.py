"""What browsers are told of the page, and what they are spared."""

from __future__ import annotations

import json

import pytest

from memviz.ui.shell.static_cache import kinds_of, rewritten, without_hidden
from tests import forked

SMALL = {
    "layout": {"id": 0, "children": [{"id": 1}, {"id": 2, "children": [{"id": 3}, {"id": 4}]}]},
    "components": [{"id": number, "type": kind} for number, kind in enumerate(("html", "row", "json", "button"), 1)],
    "dependencies": [
        {"id": 0, "targets": [[4, "click"]]},
        {"id": 1, "targets": [[1, "click"], [4, "click"]]},
        {"id": 2, "targets": []},
    ],
    "page": {
        "": {"layout": {"id": 0, "children": [{"id": 2}]}, "components": [1, 2, 3, 4], "dependencies": [0, 1, 2]},
    },
    "title": "x",
}


def test_what_nobody_sees_goes_with_what_is_in_it_and_with_its_events():
    assert without_hidden(SMALL, 2) == {
        "layout": {"id": 0, "children": [{"id": 1}]},
        "components": [{"id": 1, "type": "html"}],
        "dependencies": [{"id": 1, "targets": [[1, "click"], [4, "click"]]}, {"id": 2, "targets": []}],
        "page": {"": {"layout": {"id": 0, "children": []}, "components": [1], "dependencies": [1, 2]}},
        "title": "x",
    }


def test_a_page_is_told_so_and_nothing_in_it_ends_its_script():
    text = json.dumps({"title": "</script><b>&'\u2028"}).replace("<", "\\u003c")
    page = f"<script>window.gradio_config = {text};</script><p>".encode()
    again = rewritten(page, lambda config: {**config, "more": "<!-- </script>"})
    begin, end = again.index(b"= ") + 2, again.index(b";</script>")
    assert json.loads(again[begin:end]) == {"title": "</script><b>&'\u2028", "more": "<!-- </script>"}
    assert not {*b"<>&'"} & {*again[begin:end]} and again.count(b"</script>") == 1


@pytest.mark.parametrize("page", ["<p>", "<script>window.gradio_config = {no};</script>"])
def test_a_page_that_cannot_be_read_stays_as_it_is(page):
    assert rewritten(page.encode(), dict) == page.encode()


_BOTH = """
import json
from memviz.ui.app import build_app

page = build_app()
print(json.dumps([page.config, page.same_for_all.seen(page.config)], default=str))
"""


def test_the_page_loads_no_kind_that_only_programs_ask_by():
    done = forked.run(["-c", _BOTH], of=forked.with_page)
    whole, seen = json.loads(done.stdout)
    assert kinds_of(whole) - kinds_of(seen) == {"button", "json", "number", "dropdown", "textbox", "checkbox", "form"}
    gone = {each["id"] for each in whole["dependencies"]} - {each["id"] for each in seen["dependencies"]}
    assert gone == {each["id"] for each in whole["dependencies"] if each["api_visibility"] == "public"}
