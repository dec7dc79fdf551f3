"""A hostile visitor at a real server: one for all of these, which must answer in words and log no fault."""

import json
import os
import pickle
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.runner.processes import PATIENCE_SECONDS, wait_until
from tests.server import Server, started
from tests.traces import alloc, frame, snapshot

HALF = "\ud800"
API = "gradio_api/"
READINGS = f"{API}memviz/readings"
PAGE = """
from memviz.ui.app import build_app, launch_options

build_app().launch(**launch_options())
"""
Body = bytes | list[Any] | dict[str, Any] | None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {
        "MEMVIZ_RUNS": str(tmp_path_factory.mktemp("runs")),
        "MEMVIZ_KEEP_SECONDS": "4",
        "MEMVIZ_ALLOWED_HOSTS": "traces.example.org",
    }
    with started(settings, program=("-c", PAGE), quickly=True) as found:
        yield found


@pytest.fixture(autouse=True)
def quiet(server: Server) -> Iterator[None]:
    """Check that the server logs no traceback."""
    before = server.log.stat().st_size
    yield
    assert "Traceback" not in server.log.read_bytes()[before:].decode(errors="replace")


def ask(server: Server, path: str, body: Body = None, method: str = "", **headers: str) -> tuple[int, str]:
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    named = {"content-type": "application/json", **{name.replace("_", "-"): each for name, each in headers.items()}}
    request = urllib.request.Request(server.address + path, content, named, method=method or None)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return int(answer.status), answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def uploaded(server: Server, content: bytes, name: str = "run.json") -> dict[str, Any]:
    """Upload a file through Gradio's upload endpoint, as programs do."""
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
    request = urllib.request.Request(
        f"{server.address}{API}upload",
        head + content + b"\r\n--x--\r\n",
        {"content-type": "multipart/form-data; boundary=x"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return {"path": json.loads(answer.read())[0], "meta": {"_type": "gradio.FileData"}}


def told(server: Server, name: str, data: list[Any]) -> tuple[str, Any]:
    """Call an endpoint over plain HTTP and return `complete` or `error` with its data."""
    status, begun = ask(server, f"{API}call/{name}", {"data": data})
    assert status == 200, begun
    _, events = ask(server, f"{API}call/{name}/{json.loads(begun)['event_id']}")
    kind, _, rest = events.removeprefix("event: ").rpartition("event: ")[2].partition("\n")
    return kind, json.loads(rest.partition("data: ")[2].strip())


@pytest.fixture(scope="module")
def file(server: Server) -> dict[str, Any]:
    events = [alloc(512 * i, 512, frames=[frame(f"f{HALF}", f"m{HALF}.py", 1 + i % 3)]) for i in range(20)]
    return uploaded(server, json.dumps(snapshot(events)).encode())


def test_a_page_under_a_borrowed_name_reads_nothing_by_any_route(server: Server):
    paths = ["", "config", f"{API}info", f"{API}queue/data?session_hash=x", f"{API}file=x", "theme.css", "assets/x"]
    for path in paths:
        status, words = ask(server, path, host="evil.example:7860")
        assert (status, "evil.example" in words) == (403, True), path
    for path in (f"{API}upload", f"{API}queue/join", READINGS, f"{API}run/summary", "login"):
        assert ask(server, path, {}, host="evil.example")[0] == 403, path
        assert ask(server, path, {}, origin="https://evil.example")[0] == 403, path
    assert ask(server, "config", host="traces.example.org", origin="https://traces.example.org")[0] == 200


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("peak", ["site", None], "top must be a whole number from 1 to 10,000."),
        ("peak", ["site", float("nan")], "top must be a whole number"),
        ("peak", ["site", -1], "top must be a whole number"),
        ("peak", ["site", 2**80], "top must be a whole number"),
        ("peak", ["site", "many"], "/peak takes file (an uploaded file), by (a text), top (a whole number)."),
        ("peak", [HALF, 3], "is not in the list of choices"),
        ("peak", [None, 3], "by must be one of site, line, stack"),
        ("peak", [["site"], 3], "by must be one of site, line, stack"),
        ("peak", [], "/peak takes 3 values (file, by, top), not 1."),
        ("diff", [None, "site", 3], "Name a snapshot file."),
        ("diff", [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, "site", 3], "only files uploaded"),
        ("report", [], "/report takes files (a list of uploaded files)."),
        # A run is not of a file.
        ("run", [None, None, None, None], "There is no workload None."),
        ("run", [HALF, {}, [], ""], "There is no workload \ufffd."),
        ("run", ["feed_forward", [1], [], ""], "settings must be an object"),
        ("run", ["feed_forward", {"seed": 2**80}, [], ""], "settings: seed is not a supported number."),
        ("run", ["feed_forward", {"batch": "9" * 5000}, [], ""], "settings: batch is longer than 200 characters."),
        ("run", ["feed_forward", {}, [5], ""], "optimizations must be an object"),
        ("run", ["feed_forward", {}, {"name": "checkpointing"}, ""], "optimizations must be a list"),
        ("run", ["feed_forward"], "/run takes 4 values (workload, settings, optimizations, card), not 1."),
    ],
)
def test_a_wrong_question_is_answered_in_words(
    server: Server, file: dict[str, Any], name: str, more: list[Any], words: str
):
    kind, said = told(server, name, more if name == "run" else [file, *more])
    assert (kind, words in said["error"]) == ("error", True), said


def test_halves_of_characters_in_a_file_are_shown_as_what_can_be_shown(server: Server, file: dict[str, Any]):
    kind, (answer,) = told(server, "peak", [file, "site", 2])
    assert (kind, answer["rows"][0]["site"]) == ("complete", "m\ufffd.py:1 f\ufffd")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{API}call/nosuch", {"data": []}),
        (f"{API}call/v2/peak", {}),
        (f"{API}call/v2/peak", {"file": 5, "nosuch": 4}),
        (f"{API}queue/join", {"data": [], "fn_index": 9999, "session_hash": "x"}),
        (f"{API}queue/join", {"data": [], "fn_index": 2**70, "session_hash": "x"}),
        (f"{API}call/peak", b'{"data":' + b"[" * 100_000),
        (READINGS, b"no JSON"),
        (READINGS, b'{"name":"x"}'),
        (f"{API}queue/join", b"x" * (20 << 20)),
        (READINGS, b"x" * (20 << 20)),
        (READINGS, b"[" * 10_000),
        (READINGS, b'{"name":"x","size":Infinity,"packed":true}'),
        (READINGS, b'{"name":"x","size":NaN,"packed":true}'),
        (READINGS, b'{"name":"x","size":-1,"packed":true}'),
        (READINGS, b'{"name":"x","size":1e9,"packed":true}'),
        (READINGS, b'{"name":["x"],"size":1,"packed":true}'),
        (f"{READINGS}/{'A' * 24}", b"x"),
    ],
)
def test_what_no_page_would_send_gets_400_and_words(server: Server, path: str, body: Body):
    status, words = ask(server, path, body)
    assert status == 400
    assert json.loads(words).get("reason") or json.loads(words).get("detail")


def begin(server: Server, size: int, **headers: str) -> tuple[int, str]:
    status, words = ask(server, READINGS, {"name": "run.pickle", "size": size, "packed": False}, **headers)
    return status, json.loads(words).get("ticket", "")


def a_place(server: Server, size: int) -> str:
    """A ticket, as soon as this visitor gets one."""
    found: list[str] = []

    def has_one() -> bool:
        found.append(begin(server, size)[1])
        return bool(found[-1])

    wait_until(has_one)
    return found[-1]


def part(server: Server, ticket: str, body: bytes, number: int = 0, last: int = 1) -> int:
    return ask(server, f"{READINGS}/{ticket}", body, memviz_part=str(number), memviz_last=str(last))[0]


def test_refused_parts_count_as_nothing(server: Server):
    raw = pickle.dumps(snapshot([alloc(512 * i, 512) for i in range(50)]))
    _, ticket = begin(server, len(raw))
    assert part(server, ticket, raw, number=7) == 400
    try:
        assert part(server, ticket, bytes(1 << 20)) == 400
    except urllib.error.URLError as error:
        # The line may be cut before all of it was sent, and then the answer is lost with it.
        assert isinstance(error.reason, BrokenPipeError | ConnectionResetError)
    assert part(server, ticket, raw[:900], last=0) == 204
    assert part(server, ticket, raw[:900], last=0) == 400
    assert part(server, ticket, raw[900:], number=1) == 204
    assert '"kind": "opened"' in ask(server, f"{READINGS}/{ticket}")[1]


def lines_of(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def raw_request(server: Server, text: str) -> socket.socket:
    made = socket.create_connection((urlsplit(server.address).hostname, server.port), timeout=PATIENCE_SECONDS)
    made.sendall(text.encode())
    return made


def test_parts_in_parallel_are_no_way_around_the_announced_size(server: Server):
    """Each by itself is small enough; the second is refused while the first is still on its way."""
    _, ticket = begin(server, 1000)
    head = f"POST /{READINGS}/{ticket} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n"
    first = raw_request(server, f"{head}memviz-part: 0\r\n\r\n")
    first.sendall(b"x" * 100)
    for _ in range(10):
        with raw_request(server, f"{head}memviz-part: 1\r\nConnection: close\r\n\r\n") as line:
            line.sendall(b"x" * 60_000)
            assert line.recv(12) == b"HTTP/1.1 400"
    first.close()


@pytest.mark.slow
def test_half_open_uploads_and_many_tickets_keep_nobody_out(server: Server):
    """With slow uploads, and tickets under many cookies, a later visitor's file is still read."""
    slow = []
    for i in range(30):
        _, ticket = begin(server, 100_000, cookie=f"session={i}")
        if ticket:
            head = f"POST /{READINGS}/{ticket} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n"
            slow.append(raw_request(server, f"{head}memviz-part: 0\r\n\r\nx"))
    raw = pickle.dumps(snapshot([alloc(512 * i, 512) for i in range(50)]))
    found = a_place(server, len(raw))
    assert part(server, found, raw) == 204
    assert '"kind": "opened"' in ask(server, f"{READINGS}/{found}")[1]
    for each in slow:
        each.close()


def test_a_visitor_who_goes_leaves_nothing_open(server: Server):
    raw = pickle.dumps(snapshot([alloc(512 * i, 512) for i in range(50)]))
    ask(server, "config")
    before = lines_of(server)
    for _ in range(5):
        ticket = a_place(server, len(raw))
        assert part(server, ticket, raw[:900], last=0) == 204
        listening = raw_request(server, f"GET /{READINGS}/{ticket} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert listening.recv(15) == b"HTTP/1.1 200 OK"
        listening.close()
    wait_until(lambda: lines_of(server) <= before)


def test_paths_in_names_of_files_lead_nowhere(server: Server):
    for name in ("../../escaped.json", "..\\..\\escaped.json", "/etc/escaped.json", "%2e%2e%2fescaped", "x" * 300):
        path = Path(uploaded(server, b"{}", name)["path"])
        assert server.folder in path.parents
        assert path.resolve() == path
    for path in (
        "../../../../etc/passwd",
        "/etc/passwd",
        str(server.folder / ".." / "output.txt"),
        "file:///etc/passwd",
    ):
        assert ask(server, f"{API}file={quote(path)}")[0] in (403, 404)


def test_exports_are_given_once_and_to_nobody_who_only_guesses(server: Server, file: dict[str, Any]):
    kind, (page,) = told(server, "report", [[file]])
    assert kind == "complete"
    path = Path(page["path"])
    root = path.parents[1]
    assert ask(server, f"{API}file={root}/{'A' * 24}/report.html")[0] == 404
    assert ask(server, f"{API}file={path.parent}")[0] == 404
    status, text = ask(server, f"{API}file={path}")
    assert (status, text.startswith("<!doctype html>")) == (200, True)
    wait_until(lambda: not path.parent.exists())
    status, words = ask(server, f"{API}file={path}")
    assert (status, "already downloaded" in words) == (404, True)


def test_an_upload_that_breaks_off_leaves_nothing_on_the_disk(server: Server):
    server.folder.mkdir(exist_ok=True)

    def loose() -> set[str]:
        return {each.name for each in server.folder.iterdir() if each.is_file()}

    before = loose()
    head = (
        f"POST /{API}upload HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        'Content-Length: 9000000\r\n\r\n--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
    )
    line = raw_request(server, head)
    line.sendall(b"x" * 3_000_000)
    wait_until(lambda: bool(loose() - before))
    line.close()
    wait_until(lambda: loose() <= before)


def test_a_guessed_session_shows_nothing_and_events_in_it_tell_nothing(server: Server):
    """Open traces are reached only by the session that opened them, and an invented session is empty."""
    status, words = ask(server, f"{API}queue/data?session_hash={'0' * 11}")
    assert (status, "session_not_found" in words) == (200, True)
    assert ask(server, f"{API}cancel", {"session_hash": "x", "fn_index": 0, "event_id": "y"})[0] == 200
    assert ask(server, f"{API}stream/abc/x/1/playlist.m3u8")[0] == 404
