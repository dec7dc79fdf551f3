"""Traces from a URL: bounded in bytes and time, http(s) only, with errors that name the fault."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import memviz
from memviz.errors import TraceError, UsageError
from tests.house.repository import ROOT

FILE = (ROOT / "sample_traces" / "training.pickle.gz").read_bytes()


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        getattr(self, f"answer_{self.path.partition('?')[0].split('/')[1]}")()

    def answer_good(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(FILE)

    def answer_cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(FILE)))
        self.end_headers()
        self.wfile.write(FILE[:5000])

    def answer_missing(self) -> None:
        self.send_error(404)

    def answer_elsewhere(self) -> None:
        self.send_response(302)
        self.send_header("Location", "/good/other-name.pickle.gz")
        self.end_headers()

    def answer_file(self) -> None:
        self.send_response(302)
        self.send_header("Location", "ftp://127.0.0.1/etc/passwd")
        self.end_headers()

    def answer_page(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def answer_drip(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(200):
                self.wfile.write(b"\x80")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as place:
        yield place


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_it_is_the_file(address):
    opened = memviz.open(f"{address}/good/my%20run.pickle.gz?download=1")
    assert opened.trace.about.source == "my run.pickle.gz"
    here = memviz.open(ROOT / "sample_traces" / "training.pickle.gz")
    assert {**opened.as_json(), "file": ""} == {**here.as_json(), "file": ""}
    assert here.compare(f"{address}/elsewhere/x.pickle.gz").delta_bytes == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/missing/run.pickle", "^run.pickle: The server answered 404. Check the address.$"),
        ("/cut/run.pickle", r"^run.pickle: The download ended after 5,000 of [\d,]+ bytes. Try again.$"),
        ("/page/run.pickle", "^run.pickle: It is a web page without a snapshot inside."),
        ("/file/run.pickle", "^run.pickle: The download failed .*ftp"),
    ],
)
def test_what_comes_in_its_place_is_refused(path, words, address):
    with pytest.raises(TraceError, match=words):
        memviz.open(address + path)


def test_more_bytes_or_seconds_than_allowed_are_not_taken(address, monkeypatch):
    monkeypatch.setenv("MEMVIZ_MAX_FILE_BYTES", "5000")
    with pytest.raises(TraceError, match="exceeds the limit of 5,000 bytes. If you trust the file, raise"):
        memviz.open(f"{address}/good/run.pickle.gz")
    # Without the time limit all 200 bytes would arrive, and the file be refused for its contents.
    monkeypatch.setenv("MEMVIZ_MAX_SECONDS", "0.5")
    with pytest.raises(TraceError, match="The download timed out after 0.5 s. Download it first"):
        memviz.open(f"{address}/drip/run.pickle")


def test_nobody_there_is_said():
    with serving() as address:
        pass
    with pytest.raises(TraceError, match="^x.pickle: The download failed"):
        memviz.open(f"{address}/good/x.pickle")


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "ftp://host/x.pickle", "s3://bucket/x", "http://", "http://["]
)
def test_other_addresses_are_refused(address):
    with pytest.raises(UsageError):
        memviz.open(address)
