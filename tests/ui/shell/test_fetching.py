"""Files at addresses that strangers name: not fetched at all, or from public places and no further than a bound."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from memviz.errors import UsageError
from memviz.ui.shell import fetching
from memviz.ui.shell.fetching import fetched, is_public
from memviz.ui.shell.programs import address_of, fetch_files, uploaded

ON = {"MEMVIZ_FETCH": "1"}


class Elsewhere(BaseHTTPRequestHandler):
    heard: list[str] = []

    def do_GET(self) -> None:
        self.heard.append(self.path)
        if self.path.startswith("/leads-to"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.end_headers()
            return
        self.send_response(404 if self.path == "/none" else 200)
        if self.path != "/endless":
            self.send_header("Content-Length", "2000" if self.path == "/cut" else "1000")
        self.end_headers()
        self.wfile.write(b"x" * (5000 if self.path == "/endless" else 1000))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that passes for a public one."""
    Elsewhere.heard.clear()
    monkeypatch.setattr(fetching, "is_public", lambda place: place == "127.0.0.1" or is_public(place))
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_nothing_is_fetched_unless_the_owner_says_so(elsewhere: str):
    with pytest.raises(UsageError, match="MEMVIZ_FETCH=1"):
        fetched(f"{elsewhere}/run.pickle", 5000, {})
    assert not Elsewhere.heard


def test_a_file_comes_as_it_is_under_its_own_name(elsewhere: str, folder: Path):
    path = Path(fetched(f"{elsewhere}/traces/my%20run.pickle?token=1", 1000, ON))
    assert path.read_bytes() == b"x" * 1000 and path.name == "my_run.pickle" and folder in path.parents
    assert Elsewhere.heard == ["/traces/my%20run.pickle?token=1"]


@pytest.mark.parametrize(
    "place",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "192.168.0.1",
        "0.0.0.0",
        "100.64.1.1",
        "224.0.0.1",
        "::1",
        "fe80::1%eth0",
    ]
    + ["::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "fd00::1", "::127.0.0.1", "localhost", ""],
)
def test_no_private_address_is_public(place: str):
    assert not is_public(place)


def test_public_addresses_are():
    assert is_public("8.8.8.8") and is_public("2606:4700::1111") and is_public("::ffff:8.8.8.8")


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]/x", "http://2130706433/", "http://0x7f.1/"]
)
def test_this_machine_is_not_asked(address: str):
    with pytest.raises(UsageError, match=r"no public address|There is no"):
        fetched(address, 5000, ON)


@pytest.mark.parametrize("to", ["http://10.0.0.1/", "http://[::1]/x", "file:///etc/passwd", "ftp://a.example/x"])
def test_nobody_is_led_to_where_he_may_not_go(elsewhere: str, to: str):
    with pytest.raises(UsageError, match=r"no public address|begins with http"):
        fetched(f"{elsewhere}/leads-to?{to}", 5000, ON)
    assert len(Elsewhere.heard) == 1


def test_a_name_in_another_way_of_writing_is_followed_a_few_times(elsewhere: str):
    assert Path(fetched(f"{elsewhere}/leads-to?/run.pickle", 5000, ON)).name == "run.pickle"
    with pytest.raises(UsageError, match="more than 5 times"):
        fetched(f"{elsewhere}/leads-to?/leads-to?/leads-to?/leads-to?/leads-to?/leads-to?/run.pickle", 5000, ON)


@pytest.mark.parametrize(
    ("path", "words"),
    [("/run.pickle", "more than the 999 bytes"), ("/endless", "more than the 999"), ("/none", "answers 404")],
)
def test_what_is_refused_leaves_nothing_behind(elsewhere: str, folder: Path, path: str, words: str):
    with pytest.raises(UsageError, match=words):
        fetched(f"{elsewhere}{path}", 999, ON)
    assert not [left for left in folder.rglob("*") if left.is_file()]


def test_a_file_that_is_cut_off_is_refused(elsewhere: str, folder: Path):
    with pytest.raises(UsageError, match="ended before all"):
        fetched(f"{elsewhere}/cut", 5000, ON)
    assert not [left for left in folder.rglob("*") if left.is_file()]


@pytest.mark.parametrize("address", ["http://me:secret@a.example/x", "http://", "http://a.example\n/x", "http://[/x"])
def test_odd_addresses_are_refused_in_words(address: str):
    with pytest.raises(UsageError, match="address"):
        fetched(address, 5000, ON)


def _here(inputs: list[Any], *kinds: type) -> list[Any]:
    components = [gr.File.__new__(gr.File) if kind is gr.File else object() for kind in kinds]

    async def ask() -> list[Any]:
        async with fetch_files(components, inputs, None) as here:
            return here

    return asyncio.run(ask())


def test_what_was_uploaded_is_found_by_its_address_under_any_name(folder: Path):
    file = folder / "ab12" / "my run.pickle"
    file.parent.mkdir()
    file.write_bytes(b"x")
    address = address_of(str(file), "https://owner-space.hf.space")
    assert uploaded(address) == str(file)
    assert uploaded(address.replace("my run", "my%20run")) == str(file)
    for other in ("/etc/passwd", f"{folder}/../x", "", str(folder), f"{folder}/none", "\x00"):
        assert uploaded(address_of(other, "http://here")) is None
    meta = {"_type": "gradio.FileData"}
    assert _here([address], gr.File) == [{"path": str(file), "meta": meta, "url": None}]
    assert _here([[address]], gr.File)[0][0]["path"] == str(file)
    given = {"path": address, "meta": meta, "url": address, "orig_name": "a"}
    assert _here([given, {"deep": [given]}], gr.File, gr.JSON) == [
        {**given, "path": str(file), "url": None},
        {"deep": [{**given, "path": str(file), "url": None}]},
    ]


def test_other_values_stay_as_they_are():
    values: list[Any] = ["http://a.example is a text", 3, None, {"path": "/tmp/x", "meta": {}}, {"path": "http://a"}]
    assert _here(values, *[object] * 5) == values
    assert _here([*values, "more than there are inputs"], *[object] * 5)[5:] == ["more than there are inputs"]


def test_no_address_reaches_gradio_wherever_it_stands():
    given = {"path": " HTTP://169.254.169.254/x", "meta": {"_type": "gradio.FileData"}}
    for value in (given, {"a": [{"b": given}]}):
        with pytest.raises(UsageError, match="fetches nothing from other addresses"):
            _here([value], gr.JSON)


def test_what_was_fetched_is_gone_when_gradio_has_its_copy(
    elsewhere: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MEMVIZ_FETCH", "yes")
    path = Path(_here([f"{elsewhere}/run.pickle"], gr.File)[0]["path"])
    assert path.name == "run.pickle" and not path.exists() and not [left for left in folder.rglob("*.pickle")]
