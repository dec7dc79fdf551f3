"""Tests of the request guard: host names, origins, bodies, uploads and exports."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from memviz.ui.shell.request_guard import RequestGuard
from memviz.ui.shell.temporary_files import Exports, new_file
from memviz.ui.shell.visitors import OpenPages
from tests.facts import missing


async def _echo(request: Request) -> Response:
    return JSONResponse({"heard": await request.json()})


async def _file(request: Request) -> Response:
    return FileResponse(request.path_params["path"])


class Visited:
    """A server that echoes requests, behind the request guard."""

    def __init__(self, upload: Callable[[Request], Any] = _echo) -> None:
        self.handlers = [_file]
        """The last answers the next request for a file; the first all after it."""

        async def file(request: Request) -> Response:
            return await (self.handlers.pop() if len(self.handlers) > 1 else self.handlers[0])(request)

        app = Starlette(
            routes=[
                Route("/gradio_api/upload", upload, methods=["POST"]),
                Route("/gradio_api/file={path:path}", file),
                Route("/{path:path}", _echo, methods=["POST"]),
                Route("/{path:path}", lambda _: JSONResponse("a page")),
            ],
            middleware=[Middleware(RequestGuard)],
        )
        self.page = SimpleNamespace(
            exports=Exports(), open_pages=OpenPages(), share_url="https://ab12.gradio.live", server_name="box.example"
        )
        app.get_blocks = lambda: self.page  # type: ignore[attr-defined]
        self.client = TestClient(app, base_url="http://localhost:7860")

    def status(self, **headers: str) -> int:
        named = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
        return int(self.client.get("/config", headers=named).status_code)


def test_a_borrowed_name_gets_nothing_and_is_told_the_remedy():
    visited = Visited()
    answer = visited.client.get("/config", headers={"host": "evil.example:7860"})
    assert answer.status_code == 403
    assert missing(answer.text, "the host name evil.example", "MEMVIZ_ALLOWED_HOSTS=evil.example") == []
    assert visited.client.post("/gradio_api/queue/join", json={}, headers={"host": "evil.example"}).status_code == 403
    assert "the host name of the request." in visited.client.get("/x", headers={"host": "<script>"}).text
    visited = Visited()
    with pytest.raises(WebSocketDisconnect) as refused, visited.client.websocket_connect("ws://evil.example/any"):
        pass
    assert (refused.value.code, "host name evil.example" in refused.value.reason) == (1008, True)
    assert Visited().client.get("/gradio_api/file=http://example.org/x").status_code == 403


HOSTS = {
    "MEMVIZ_ALLOWED_HOSTS": "traces.example.org, https://other.example:8443/x *.lab.example .corp.example",
    "GRADIO_ROOT_PATH": "https://hub.example.org/user/me/proxy/7860",
    "GRADIO_SERVER_NAME": "0.0.0.0",
}
NAMES = [
    ({}, "localhost:7860 LOCALHOST app.localhost localhost. 127.0.0.1:8080 [::1]:7860 [fe80::1] 10.0.0.7", 200),
    ({}, f"{socket.gethostname()} ab12.gradio.live box.example user@localhost", 200),
    ({}, "evil.example localhost.evil.example 127.0.0.1.evil.example 127.0.0.1@evil.example notlocalhost", 403),
    ({}, "hf.space a/b, [::1 null exämple.org", 403),
    (HOSTS, "traces.example.org other.example a.lab.example b.c.corp.example hub.example.org:80", 200),
    (HOSTS, "example.org lab.example evil-lab.example other.hf.space traces.example.org.evil.example", 403),
    ({"MEMVIZ_ALLOWED_HOSTS": "*"}, "anything.example", 200),
    ({"MEMVIZ_ALLOWED_HOSTS": " , ", "GRADIO_ROOT_PATH": "/memviz"}, "evil.example", 403),
]


@pytest.mark.parametrize(("environment", "names", "status"), NAMES)
def test_names_of_this_machine_of_the_settings_and_of_the_page_are_answered(
    environment: dict[str, str], names: str, status: int, monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    visited = Visited()
    assert {name: visited.status(host=name) for name in names.split()} == dict.fromkeys(names.split(), status)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "ab12.gradio.live", "origin": "https://ab12.gradio.live"}, 200),
        *(({"origin": f"http://{name}"}, 200) for name in ("localhost:7860", "127.0.0.1", "127.9.9.9", "[::1]:80")),
        *(({"origin": f"http://{name}"}, 403) for name in ("10.0.0.1", "0.0.0.0", "localhost.evil", "a b", "[::1")),
        ({"host": "192.168.1.9:7860", "origin": "http://192.168.1.9:7860"}, 200),
        ({"host": "192.168.1.9:7860", "origin": "http://192.168.1.66"}, 403),
        ({"host": "192.168.1.9:7860", "origin": "https://evil.example"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://localhost.evil.example"}, 403),
        ({"x_forwarded_host": "evil.example"}, 403),
        ({"x_forwarded_host": "evil.example", "origin": "https://evil.example"}, 403),
    ],
)
def test_which_pages_are_answered(headers: dict[str, str], status: int):
    assert Visited().status(**headers) == status


def test_behind_a_proxy_and_on_a_space_its_own_address_is_known(monkeypatch: pytest.MonkeyPatch):
    # A proxy that passes the host on, or sends it as X-Forwarded-Host, and a page of that origin.
    monkeypatch.setenv("MEMVIZ_ALLOWED_HOSTS", "public.example.org")
    visited = Visited()
    own = "https://public.example.org"
    assert visited.status(host="public.example.org", origin=own) == 200
    assert visited.status(host="127.0.0.1:7860", x_forwarded_host="public.example.org, inner:80", origin=own) == 200
    assert visited.status(host="evil.example") == 403
    monkeypatch.setenv("SPACE_ID", "me/memviz")
    monkeypatch.setenv("SPACE_HOST", "me-memviz.hf.space")
    visited = Visited()
    assert visited.status(host="me-memviz.hf.space", origin="https://me-memviz.hf.space") == 200
    assert visited.status(host="me-memviz--dev.hf.space") == 200
    assert visited.status(host="10.20.30.40:7860") == 200
    assert visited.status(host="me-memviz.hf.space", origin="https://evil.hf.space") == 403
    assert visited.status(host="me-memviz.hf.space", origin="https://huggingface.co") == 403


def test_halves_of_characters_and_what_is_no_number_become_what_everybody_can_read():
    client = Visited().client
    sent = b'{"a": "x\\ud800y", "b": [NaN, -Infinity, 1.5], "pair": "\\ud83d\\ude00", "\\udc00": 1}'
    assert client.post("/any", content=sent).json() == {
        "heard": {"a": "x\ufffdy", "b": [None, None, 1.5], "pair": "\U0001f600", "\ufffd": 1}
    }


def test_what_breaks_or_is_not_there_is_said_in_words():
    async def missing(_: Request) -> Response:
        raise KeyError("/nosuch")

    app = Starlette(routes=[Route("/x", missing, methods=["POST"])], middleware=[Middleware(RequestGuard)])
    app.get_blocks = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    answer = TestClient(app, base_url="http://localhost").post("/x", json={})
    assert (answer.status_code, "request failed (KeyError: '/nosuch')" in answer.json()["detail"]) == (400, True)

    async def full(_: Request) -> Response:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    answer = Visited(full).client.post("/gradio_api/upload", content=b"x")
    assert answer.status_code == 507 and "disk of the server is full" in answer.json()["detail"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    path = new_file("report.html")
    path.write_text("a page")
    return path


def test_an_export_is_given_once_and_deleted(made: Path):
    client = Visited().client
    assert client.head(f"/gradio_api/file={made}").status_code == 200
    assert client.get(f"/gradio_api/file={made}", headers={"range": "bytes=0-1"}).status_code == 206
    answer = client.get(f"/gradio_api/file={made}")
    assert (answer.status_code, answer.text) == (200, "a page")
    assert not made.parent.exists()
    again = client.get(f"/gradio_api/file={made}")
    assert (again.status_code, "already downloaded" in again.json()["detail"]) == (404, True)


@pytest.mark.parametrize(("method", "headers"), [("HEAD", {}), ("GET", {"range": "bytes=0-1"})])
def test_a_look_at_an_export_that_has_not_ended_keeps_no_download_from_it(
    made: Path, method: str, headers: dict[str, str]
):
    visited = Visited()
    downloads: list[tuple[int, str]] = []

    async def look(request: Request) -> Response:
        answer = await run_in_threadpool(visited.client.get, f"/gradio_api/file={made}")
        downloads.append((answer.status_code, answer.text))
        return await _file(request)  # the file is still there

    visited.handlers.append(look)
    looked = visited.client.request(method, f"/gradio_api/file={made}", headers=headers)
    assert (looked.is_success, downloads) == (True, [(200, "a page")])
    assert not made.parent.exists()


def test_who_holds_a_line_is_here_and_who_has_let_go_has_left():
    presence = OpenPages()
    with presence.of("a"):
        with presence.of("a"):
            pass
        assert (presence.is_open("a"), presence.is_gone("a", 0)) == (True, False)
    assert (presence.is_open("a"), presence.is_gone("a", 0), presence.is_gone("a", 60)) == (False, True, False)
    with presence.of("a"):
        assert not presence.is_gone("a", 0)
    assert (presence.was_open("a"), presence.was_open("b"), presence.is_gone("b", 0)) == (True, False, False)
