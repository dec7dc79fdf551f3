"""What is the same for every visitor is made once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from memviz.ui.html.markup import Html
from memviz.ui.shell.static_cache import SCRIPT, SharedPage, StaticCache

PAGE = '<html><head><base href="./"></head>{}</html>'


class Served:
    """A server that counts what it is asked, behind our handout."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        app = Starlette(routes=[Route("/{path:path}", self._answer)], middleware=[Middleware(StaticCache)])
        page = SimpleNamespace(same_for_all=SharedPage(Html("<link>"), "let memviz;" * 100))
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
        return Response("a" * 2000, headers={"content-type": "text/css"})


def test_a_page_is_written_once_for_each_name_that_it_is_asked_by():
    served = Served()
    first, again = served.client.get("/"), served.client.get("/?trace=sample:x")
    assert first.text == again.text
    assert served.client.get("/", headers={"x-forwarded-host": "there"}).text == first.text.replace("here", "there")
    assert served.asked == ["/", "/"]


def test_its_first_lines_and_the_script_stand_in_its_head():
    served = Served()
    text = served.client.get("/").text
    address = text.partition('<script defer src=".')[2].partition('"')[0]
    assert text.startswith('<html><head><base href="./"><link><script defer')
    assert address.startswith(f"{SCRIPT}?v=")
    assert served.client.get(address).text == "let memviz;" * 100
    assert served.asked == ["/"]


def test_a_page_that_says_who_its_visitor_is_is_written_for_each_and_has_the_first_lines_too():
    served = Served()
    served.app.auth = [("ann", "a secret")]
    assert all("<script defer" in served.client.get("/").text for _ in range(2))
    assert served.asked == ["/", "/"]
    served.app.auth = None
    served.client.get("/?deep_link=1")
    served.client.get("/?deep_link=2")
    assert len(served.asked) == 4


def test_files_are_packed_once_and_kept_by_browsers():
    served = Served()
    answers = [served.client.get("/assets/index-abc.css") for _ in range(2)]
    plain = served.client.get("/assets/index-abc.css", headers={"accept-encoding": "identity"})
    assert served.asked == ["/assets/index-abc.css"]
    assert [answer.headers["content-encoding"] for answer in answers] == ["gzip", "gzip"]
    assert int(answers[0].headers["content-length"]) < 100
    assert "immutable" in answers[0].headers["cache-control"]
    assert "content-encoding" not in plain.headers
    assert answers[0].text == plain.text == "a" * 2000


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/assets/missing.js", {}, 404),
        ("/assets/index.css", {"range": "bytes=0-3"}, 200),
        ("/gradio_api/file=x.css", {}, 200),
    ],
)
def test_anything_else_is_answered_by_gradio_each_time(path: str, headers: dict[str, str], status: int):
    served = Served()
    assert [served.client.get(path, headers=headers).status_code for _ in range(2)] == [status, status]
    assert served.asked == [path, path]
