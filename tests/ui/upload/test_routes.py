"""Tests of the upload routes: who may send a file, and in which form."""

import asyncio
import json
import pickle
from collections.abc import Iterator
from typing import Any

import gradio as gr
import pytest
from gradio.routes import App
from starlette.testclient import TestClient

from memviz.ui.shell.session import Context
from memviz.ui.shell.store import TraceStore
from memviz.ui.upload.reading import Readings
from memviz.ui.upload.routes import PATH, routes, stream_messages
from tests.runner.processes import wait_until
from tests.traces import alloc, snapshot

RAW = pickle.dumps(snapshot([alloc(512 * i, 512) for i in range(50)]))
LOGIN = {"username": "somebody", "password": "a secret"}


@pytest.fixture(autouse=True, scope="module")
def no_loops_left() -> Iterator[None]:
    """Gradio makes event loops for its locks while it is built, and leaves them open."""
    made: list[asyncio.AbstractEventLoop] = []
    make = asyncio.new_event_loop

    def new() -> asyncio.AbstractEventLoop:
        made.append(make())
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "new_event_loop", new)
        yield
    for each in made:
        each.close()


def visitor(auth: Any = None) -> TestClient:
    with gr.Blocks(analytics_enabled=False) as blocks:
        pass
    blocks.auth, blocks.auth_message = auth, None
    blocks.readings = Readings(Context(TraceStore()))
    return TestClient(App.create_app(blocks, app_kwargs={"routes": routes()}))


@pytest.fixture(scope="module")
def client(no_loops_left: None) -> TestClient:
    return visitor()


def begin(client: TestClient, **headers: str) -> Any:
    said = {"name": "C:\\folder\\run.pickle", "size": len(RAW), "packed": False}
    return client.post(PATH, json=said, headers=headers)


def part(client: TestClient, ticket: str, body: bytes, *, number: int = 0, last: bool = True) -> int:
    headers = {"memviz-part": str(number), "memviz-last": str(int(last))}
    return int(client.post(f"{PATH}/{ticket}", content=body, headers=headers).status_code)


def test_a_file_goes_in_and_what_is_read_comes_out(client: TestClient):
    ticket = begin(client).json()["ticket"]
    assert part(client, ticket, RAW[:900], last=False) == 204
    assert part(client, ticket, RAW[900:], number=1) == 204
    answer = client.get(f"{PATH}/{ticket}")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert b'"kind": "opened"' in answer.content
    assert b'"name": "run.pickle"' in answer.content
    # A fully received answer ends its ticket.
    assert client.get(f"{PATH}/{ticket}").status_code == 400


@pytest.mark.parametrize(("last_heard", "is_kept"), [("curve", False), ("piece", False), ("opened", True)])
def test_who_hangs_up_on_hearing_that_it_is_open_finds_it_open(last_heard: str, is_kept: bool):
    store = TraceStore()
    readings = Readings(Context(store))
    ticket = readings.begin("run.pickle", len(RAW), packed=False)
    reading = readings.get(ticket)
    assert reading is not None
    reading.begin()
    reading.arriving.add(RAW)
    reading.arriving.end()

    async def listen() -> str:
        messages = stream_messages(readings, ticket, reading)
        async for message in messages:
            if f'"kind": "{last_heard}"'.encode() in message:
                await messages.aclose()
                return message.decode(errors="ignore")
        raise AssertionError

    was_heard = asyncio.run(listen())
    wait_until(lambda: reading.arriving.closed)
    key = json.loads(was_heard[was_heard.index("{") :])["stored"] if is_kept else reading._stored[0]
    assert (store.get(key) is not None) == is_kept


def test_behind_a_login_only_who_has_logged_in_may_send_a_file():
    client = visitor(auth=[tuple(LOGIN.values())])
    assert begin(client).status_code == 401
    assert client.post("/login", data={**LOGIN, "password": "a guess"}).status_code == 400
    assert begin(client).status_code == 401
    assert client.post("/login", data=LOGIN).status_code == 200
    assert begin(client).status_code == 200


def test_only_the_page_itself_may_ask_in_a_browser(client: TestClient):
    asked = {
        ("sec-fetch-site", "same-origin"): 200,
        ("sec-fetch-site", "cross-site"): 403,
        ("sec-fetch-site", "same-site"): 403,
        ("origin", "http://testserver"): 200,
        ("origin", "https://evil.example"): 403,
        ("origin", "null"): 403,
        ("user-agent", "a program"): 200,
    }
    assert {header: begin(client, **dict([header])).status_code for header in asked} == asked


def test_a_cancelled_file_is_forgotten(client: TestClient):
    ticket = begin(client).json()["ticket"]
    assert part(client, ticket, RAW[:900], last=False) == 204
    assert client.delete(f"{PATH}/{ticket}").status_code == 204
    assert part(client, ticket, RAW[900:], number=1) == 400
