"""The page that all visitors share: made once, compressed once, its styles, and a page in a process of its own."""

import json
import re
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gradio.brotli_middleware import BrotliMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from memviz.text import Html
from memviz.ui.shell.static_cache import SCRIPT, SharedPage, StaticCache, with_config, without_hidden
from tests import forked
from tests.server import started

PAGE = '<html><head><base href="./"></head>{}</html>'


class Served:
    """A server behind the cache that records the requested paths."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        app = Starlette(routes=[Route("/{path:path}", self._answer)], middleware=[Middleware(StaticCache)])
        page = SimpleNamespace(shared_page=SharedPage(Html("<link>"), "let memviz;" * 100))
        app.get_blocks = lambda: page  # type: ignore[attr-defined]
        app.auth = None  # type: ignore[attr-defined]
        self.app: Any = app
        self.client = TestClient(app, base_url="http://localhost:7860")

    async def _answer(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if request.url.path == "/":
            return HTMLResponse(PAGE.format(request.headers.get("x-forwarded-host", "here")))
        if "missing" in request.url.path:
            return Response("no", 404)
        length = 450 if "small" in request.url.path else 2000
        return Response("a" * length, headers={"content-type": "text/css"})


def test_the_page_is_written_once_for_each_address_with_the_given_lines_and_the_script():
    served = Served()
    first, again = served.client.get("/"), served.client.get("/?trace=sample:x")
    assert first.text == again.text
    assert served.client.get("/", headers={"x-forwarded-host": "there"}).text == first.text.replace("here", "there")
    assert served.asked == ["/", "/"]
    served = Served()
    text = served.client.get("/").text
    address = text.partition('<script defer src=".')[2].partition('"')[0]
    assert text.startswith('<html><head><base href="./"><link><script defer')
    assert address.startswith(f"{SCRIPT}?v=")
    assert served.client.get(address).text == "let memviz;" * 100
    assert served.asked == ["/"]


def test_a_page_with_a_user_name_or_a_deep_link_is_not_shared():
    served = Served()
    served.app.auth = [("ann", "a secret")]
    assert all("<script defer" in served.client.get("/").text for _ in range(2))
    assert served.asked == ["/", "/"]
    served.app.auth = None
    served.client.get("/?deep_link=1")
    served.client.get("/?deep_link=2")
    assert len(served.asked) == 4


def test_files_are_compressed_once_and_cached_by_browsers():
    served = Served()
    answers = [served.client.get("/assets/index-abc.css") for _ in range(2)]
    plain = served.client.get("/assets/index-abc.css", headers={"accept-encoding": "identity"})
    assert served.asked == ["/assets/index-abc.css"]
    assert [answer.headers["content-encoding"] for answer in answers] == ["gzip", "gzip"]
    assert int(answers[0].headers["content-length"]) < 100
    assert "immutable" in answers[0].headers["cache-control"]
    assert "content-encoding" not in plain.headers
    assert answers[0].text == plain.text == "a" * 2000


def test_what_a_server_does_to_one_answer_is_not_in_the_next():
    served = Served()
    compressing = BrotliMiddleware(served.app)
    address = "/assets/small.css"
    client = TestClient(compressing, base_url="http://localhost:7860")
    answers = [client.get(address, headers={"accept-encoding": kind}) for kind in ("br", "br", "identity")]
    assert [answer.headers.get("content-encoding") for answer in answers] == ["br", "br", None]
    assert [answer.text for answer in answers] == ["a" * 450] * 3


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/assets/missing.js", {}, 404),
        ("/assets/index.css", {"range": "bytes=0-3"}, 200),
        ("/gradio_api/file=x.css", {}, 200),
    ],
)
def test_gradio_answers_anything_else_each_time(path: str, headers: dict[str, str], status: int):
    served = Served()
    assert [served.client.get(path, headers=headers).status_code for _ in range(2)] == [status, status]
    assert served.asked == [path, path]


SMALL = {
    "layout": {"id": 0, "children": [{"id": 1}, {"id": 2, "children": [{"id": 3}, {"id": 4}]}]},
    "components": [{"id": number, "type": kind} for number, kind in enumerate(("html", "row", "json", "button"), 1)],
    "dependencies": [
        {"id": 0, "targets": [[4, "click"]]},
        {"id": 1, "targets": [[1, "click"], [4, "click"]]},
        {"id": 2, "targets": []},
    ],
    "page": {"": {"layout": {"id": 0, "children": [{"id": 2}]}, "components": [1, 2, 3, 4], "dependencies": [0, 1, 2]}},
    "title": "x",
}


def test_a_hidden_block_is_left_out_with_its_content_and_events():
    assert without_hidden(SMALL, 2) == {
        "layout": {"id": 0, "children": [{"id": 1}]},
        "components": [{"id": 1, "type": "html"}],
        "dependencies": [{"id": 1, "targets": [[1, "click"], [4, "click"]]}, {"id": 2, "targets": []}],
        "page": {"": {"layout": {"id": 0, "children": []}, "components": [1], "dependencies": [1, 2]}},
        "title": "x",
    }


def test_no_text_of_the_configuration_ends_its_script():
    text = json.dumps({"title": "</script><b>&'\u2028"}).replace("<", "\\u003c")
    page = f"<script>window.gradio_config = {text};</script><p>".encode()
    again = with_config(page, lambda config: {**config, "more": "<!-- </script>"})
    begin, end = again.index(b"= ") + 2, again.index(b";</script>")
    assert json.loads(again[begin:end]) == {"title": "</script><b>&'\u2028", "more": "<!-- </script>"}
    assert not {*b"<>&'"} & {*again[begin:end]} and again.count(b"</script>") == 1


@pytest.mark.parametrize("page", ["<p>", "<script>window.gradio_config = {no};</script>"])
def test_a_page_without_a_readable_configuration_is_unchanged(page):
    assert with_config(page.encode(), dict) == page.encode()


_BOTH = """
import json
from memviz.ui.app import build_app

page = build_app()
print(json.dumps([page.config, page.shared_page.rewrite_config(page.config)], default=str))
"""


@pytest.mark.slow
def test_browsers_get_no_component_that_only_programs_use():
    done = forked.run(["-c", _BOTH], of=forked.with_page)
    whole, seen = json.loads(done.stdout)
    kinds = [{component["type"] for component in config["components"]} for config in (whole, seen)]
    assert kinds[0] - kinds[1] == {"button", "json", "number", "dropdown", "textbox", "checkbox", "form"}
    gone = {each["id"] for each in whole["dependencies"]} - {each["id"] for each in seen["dependencies"]}
    assert gone == {each["id"] for each in whole["dependencies"] if each["api_visibility"] == "public"}


SLOW = """
import runpy
import gradio
import httpx

def too_late(url, **options):
    raise httpx.ReadTimeout("as on a machine that others keep busy")

wait = gradio.Blocks.block_thread

def say_and_wait(page):
    print("it stays", flush=True)
    wait(page)

httpx.head = too_late
gradio.Blocks.block_thread = say_and_wait
runpy.run_path("app.py", run_name="__main__")
"""


@pytest.mark.slow
def test_a_page_that_answers_late_is_not_ended() -> None:
    with started({}, program=("-c", SLOW), quickly=True) as server:
        server.wait_until_it_says("it stays")


_SECONDS = 3.0
_SEEN = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
"""Voluntary context switches only: the thread waited, and was not preempted for another process."""


def wakings(pid: int) -> int:
    """Return the number of wake-ups of all threads so far."""
    seen = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        # A thread may have ended since.
        with suppress(OSError):
            seen += sum(map(int, _SEEN.findall(status.read_text())))
    return seen


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc how often the process wakes up")
def test_a_page_that_nobody_asks_wakes_up_rarely():
    with started({}, quickly=True) as server:
        begun, before = time.monotonic(), wakings(server.pid)
        time.sleep(_SECONDS)
        a_second = (wakings(server.pid) - before) / (time.monotonic() - begun)
    assert a_second < 300


COMPONENTS = Path(__file__).parents[3] / "memviz" / "ui" / "components"
ONE_INSIDE_ANOTHER = {
    *(("mvt", name) for name in ("arrivals", "segment_map", "reserved_plot", "waterfall")),
    ("mvs", "segment_pair"),
}
"""A drawing whose style another component shares or extends."""


def test_a_component_has_names_of_its_own() -> None:
    """Words of the whole page begin with mv-; a component's with letters of its own, as in .mvt-plot."""
    owners = defaultdict(set)
    for style in COMPONENTS.glob("*/*.css"):
        for prefix in re.findall(r"\.(mv[a-z]+)\b", style.read_text(encoding="utf-8")):
            if (prefix, style.parent.name) not in ONE_INSIDE_ANOTHER:
                owners[prefix].add(style.parent.name)
    assert {prefix: names for prefix, names in owners.items() if len(names) > 1} == {}
    assert len(owners) > 5
