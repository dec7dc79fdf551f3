"""The samples, the upload routes, the messages about an upload, and who may have a place."""

import asyncio
import base64
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import pytest
from gradio.routes import App
from PIL import Image
from starlette.testclient import TestClient

from memviz.analysis.timeline import timeline
from memviz.figures.packed_timeline import PackedTimeline, pack_allocations, thumbnail_address, unpack
from memviz.ranks.gather import Gathering, gather_ranks
from memviz.ranks.reduce_rank import kept_row
from memviz.trace.load import read_trace
from memviz.ui.ranks.answer import has_ranks
from memviz.ui.shell.session import Context, Session, open_trace
from memviz.ui.shell.store import RankTables, TraceStore
from memviz.ui.upload.opening import on_upload
from memviz.ui.upload.reading import Busy, FileTooLarge, Outbox, Reading, Readings
from memviz.ui.upload.routes import PATH, routes, stream_messages
from memviz.ui.upload.samples import OFFERED_SAMPLES, RECORD, OfferedSample, draw_card, load_cards
from tests.house.repository import text_of
from tests.ranks.files import write_ranks
from tests.runner.processes import PATIENCE_SECONDS, wait_until
from tests.traces import alloc, free, snapshot

FAKE_TORCH = """
from types import SimpleNamespace

said = []

def dump(path):
    with open(path, "w") as file:
        file.write(" ".join(said))

memory = SimpleNamespace(_record_memory_history=lambda enabled="all": said.append(str(enabled)), _dump_snapshot=dump)
cuda = SimpleNamespace(memory=memory)
"""
OUT_OF_MEMORY = """import torch

def train_a_few_steps():
    raise RuntimeError("CUDA out of memory")

"""


def test_a_training_that_runs_out_of_memory_leaves_its_snapshot(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    (tmp_path / "train.py").write_text(OUT_OF_MEMORY + RECORD)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "CUDA out of memory" in done.stderr and done.returncode
    assert (tmp_path / "run.pickle").read_text() == "all", "recorded until it was written"


def test_the_readme_says_the_same() -> None:
    assert f"```python\n{RECORD}\n```" in text_of("README.md")


AGAIN = "Make them again: python -m memviz.ui.upload.samples"


@pytest.mark.parametrize("sample", OFFERED_SAMPLES, ids=lambda sample: sample.name)
def test_pictures_and_peaks_are_those_that_would_be_drawn(sample: OfferedSample) -> None:
    kept, now = load_cards()[sample.name], draw_card(sample)
    assert kept["peaks"] == now["peaks"], AGAIN
    # Another zlib packs the same pixels into other bytes.
    for pictures in zip(kept["pictures"], now["pictures"], strict=True):
        one, other = (np.asarray(Image.open(io.BytesIO(base64.b64decode(picture)))) for picture in pictures)
        assert np.array_equal(one, other), AGAIN


SHORT = pickle.dumps(snapshot([alloc(512 * i, 512) for i in range(50)]))
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
    said = {"name": "C:\\folder\\run.pickle", "size": len(SHORT), "packed": False}
    return client.post(PATH, json=said, headers=headers)


def part(client: TestClient, ticket: str, body: bytes, *, number: int = 0, last: bool = True) -> int:
    headers = {"memviz-part": str(number), "memviz-last": str(int(last))}
    return int(client.post(f"{PATH}/{ticket}", content=body, headers=headers).status_code)


def test_a_file_goes_in_and_what_is_read_comes_out(client: TestClient):
    ticket = begin(client).json()["ticket"]
    assert part(client, ticket, SHORT[:900], last=False) == 204
    assert part(client, ticket, SHORT[900:], number=1) == 204
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
    ticket, reading = ticket_of(readings, SHORT)
    reading.begin()
    reading.arriving.add(SHORT)
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
    assert part(client, ticket, SHORT[:900], last=False) == 204
    assert client.delete(f"{PATH}/{ticket}").status_code == 204
    assert part(client, ticket, SHORT[900:], number=1) == 400


EVENTS = [each for i in range(400) for each in (alloc(512 * i, 100 + i), *([free(512 * i, 100 + i)] if i % 3 else []))]
RAW = pickle.dumps(snapshot(EVENTS))


def messages_of(reading: Reading) -> list[tuple[dict[str, Any], bytes]]:
    """Every message, taken apart, but those that say how far it is."""

    async def listen() -> bytes:
        return b"".join([message async for message in reading.outbox.messages()])

    raw, messages = asyncio.run(asyncio.wait_for(listen(), PATIENCE_SECONDS)), []
    while raw:
        length = int.from_bytes(raw[:4], "little")
        header = json.loads(raw[4 : 4 + length])
        body = raw[4 + length : 4 + length + header["bytes"]]
        messages += [(header, body)] if header["kind"] != "reading" else []
        raw = raw[4 + length + header["bytes"] :]
    return messages


def ticket_of(readings: Readings, raw: bytes, name: str = "run.pickle", **options: bool) -> tuple[str, Reading]:
    ticket = readings.begin(name, len(raw), packed=False, **options)
    reading = readings.get(ticket)
    assert reading is not None
    return ticket, reading


def begun(readings: Readings, raw: bytes, name: str = "run.pickle", **options: bool) -> Reading:
    reading = ticket_of(readings, raw, name, **options)[1]
    reading.begin()
    return reading


def said_of(readings: Readings, raw: bytes, name: str, **options: bool) -> list[dict[str, Any]]:
    """The headers of what is said of a whole file."""
    reading = begun(readings, raw, name, **options)
    reading.arriving.add(raw)
    reading.arriving.end()
    return [header for header, _ in messages_of(reading)]


def wait_for_the_end(reading: Reading) -> None:
    wait_until(lambda: reading.arriving.closed)


def test_first_the_total_then_every_allocation_then_the_colours():
    store = TraceStore()
    reading = begun(Readings(Context(store)), RAW)
    for at in range(0, len(RAW), 4000):
        reading.arriving.add(RAW[at : at + 4000])
    reading.arriving.end()
    messages = messages_of(reading)
    assert [header["kind"] for header, _ in messages] == ["curve", "piece", "piece", "opened"]
    (curve, _), (first, columns), (second, _), (opened, _) = messages
    trace = store.get(opened["stored"])
    assert trace is not None
    line = timeline(trace.devices[0])
    assert max(curve["live"]) == curve["peak_bytes"] == line.peak_bytes
    assert (curve["live"], curve["reserved"]) == (line.live.tolist(), line.reserved.tolist())
    sent, expected = unpack(PackedTimeline(first["header"], columns)), unpack(pack_allocations(trace.devices[0]))
    assert {name: column.tolist() for name, column in sent.items()} == {n: c.tolist() for n, c in expected.items()}
    assert (first["piece"], second["piece"], second["header"]["meaning"]) == ("timeline", "groups", "category")
    assert opened["key"] == f"{opened['stored']}/{trace.devices[0].name}"


@pytest.mark.parametrize(("raw", "reason"), [(RAW, None), (RAW[:-100], "The file is truncated"), (b"no", "It is")])
def test_one_of_many_files_is_read_by_a_process_that_sends_no_timeline(raw: bytes, reason: str | None):
    context = Context(TraceStore())
    readings = Readings(context)
    [message] = said_of(readings, raw, "rank_1.pickle", is_beside=True)
    readings._helpers.end_idle(0)
    if reason:
        assert (message["kind"], message["name"]) == ("refused", "rank_1.pickle")
        assert message["reason"].startswith(reason)
        return
    trace, alone = context.store.get(message["stored"]), read_trace(io.BytesIO(raw), "rank_1.pickle", len(raw))
    assert trace is not None
    [device], [expected] = trace.devices, alone.devices
    assert trace.about == alone.about
    assert (timeline(device).live == timeline(expected).live).all()
    assert kept_row(trace, device.name) == kept_row(alone, device.name)
    assert thumbnail_address(trace, device) == thumbnail_address(alone, expected)


def archive_of(**files: bytes) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"job/{name}/snapshot.pickle", content)
    return raw.getvalue()


def test_a_process_that_ends_while_it_reads_refuses_its_archive_alone():
    readings = Readings(Context(TraceStore()))
    said, raw = [], archive_of(rank_0=RAW, rank_1=RAW)
    for _ in range(2):
        if not said:
            helper = readings._helpers.take()
            assert helper is not None
            helper.kill()
            readings._helpers.put_back(helper)
        said.append(said_of(readings, raw, "job.zip")[-1])
    readings._helpers.end_idle(0)
    assert "that read it was killed" in said[0]["reason"]
    assert said[1]["kind"] == "opened"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (archive_of(rank_0=RAW, rank_10=RAW, rank_9=RAW), ["job/rank_0", "job/rank_9", "job/rank_10"]),
        (archive_of(rank_0=RAW, rank_1=RAW[:-100]), "job/rank_1/snapshot.pickle: The file is truncated"),
        (archive_of(**{f"rank_{number}": RAW for number in range(65)}), "It holds 65 snapshots; at most 64"),
        (archive_of(rank_0=RAW, rank_1=RAW)[:-60], "The zip archive is damaged"),
    ],
)
def test_an_archive_of_ranks_opens_them_all_or_is_refused(raw: bytes, expected: list[str] | str):
    context = Context(TraceStore())
    readings = Readings(context)
    header = said_of(readings, raw, "job.zip")[-1]
    readings._helpers.end_idle(0)
    if isinstance(expected, str):
        assert header["kind"] == "refused" and header["reason"].startswith(expected)
        assert not context.store._kept
        return
    after = on_upload(context, Session(), {"stored": header["stored"], "begins": "1"})
    traces = [context.store.get(opened.key) for opened in after.opened]
    assert [trace and trace.about.source for trace in traces] == [f"{name}/snapshot.pickle" for name in expected]
    assert after.chosen == after.opened[0].key and has_ranks(context, after)


def test_a_broken_file_is_refused_in_words_and_nothing_is_kept():
    store = TraceStore()
    reading = begun(Readings(Context(store)), RAW)
    reading.arriving.add(RAW[:-100])
    reading.arriving.end()
    [(header, _)] = messages_of(reading)
    assert (header["name"], header["reason"]) == (
        "run.pickle",
        "The file is truncated: writing or copying it was interrupted. Dump or copy it again.",
    )
    assert not store._kept


def test_a_reading_that_nobody_waits_for_ends_and_leaves_nothing():
    store = TraceStore()
    readings = Readings(Context(store))
    ticket, reading = ticket_of(readings, RAW)
    reading.begin()
    reading.arriving.add(RAW)
    readings.drop(ticket)
    assert readings.get(ticket) is None
    wait_for_the_end(reading)
    assert not store._kept


def test_what_is_cancelled_at_the_last_moment_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    store = TraceStore()
    readings = Readings(Context(store))
    ticket, reading = ticket_of(readings, RAW)

    def opened_too_late(*given: Any) -> Any:
        found = open_trace(*given)
        readings.drop(ticket)
        return found

    monkeypatch.setattr("memviz.ui.upload.reading.open_trace", opened_too_late)
    reading.begin()
    reading.arriving.add(RAW)
    reading.arriving.end()
    assert messages_of(reading) == []
    wait_for_the_end(reading)
    assert not store._kept


def test_nothing_newer_of_one_kind_waits_behind_what_nobody_fetched():
    """A visitor with a slow line hears how far it is now, not how far it was."""
    outbox = Outbox()
    for share in (0.1, 0.2, 0.3):
        outbox.put("reading", share=share)
    outbox.put("piece", b"first")
    outbox.put("piece", b"second")
    outbox.close()
    outbox.put("reading", share=0.9)

    async def listen() -> bytes:
        return b"".join([message async for message in outbox.messages()])

    raw = asyncio.run(listen())
    assert (raw.count(b'"kind": "reading"'), raw.count(b'"share": 0.3')) == (1, 1)
    assert raw.index(b"first") < raw.index(b"second")


def test_limits_are_said_before_anything_is_sent():
    readings = Readings(Context(TraceStore()), most_bytes=1 << 20)
    with pytest.raises(FileTooLarge, match=r"It has 2\.00 MiB; the limit here is 1\.00 MiB\. On your own machine"):
        readings.begin("run.pickle", 2 << 20, packed=True)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The clock of all readings is put forward."""
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + seconds)


def test_one_visitor_with_many_tickets_keeps_nobody_else_out_and_none_takes_threads_or_files(
    monkeypatch: pytest.MonkeyPatch,
):
    readings = Readings(Context(TraceStore()))
    begin = partial(readings.begin, "run.pickle", 100_000, packed=False)
    tickets = [begin(visitor="hostile") for _ in range(16)]
    with pytest.raises(Busy):
        begin(visitor="hostile")
    begin(visitor="friend")
    # Nothing comes under any of them: the oldest makes way for the next.
    later(monkeypatch, 10)
    tickets.append(begin(visitor="hostile"))
    assert [readings.get(ticket) is None for ticket in tickets] == [True] + 16 * [False]

    def count() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    readings, before = Readings(Context(TraceStore())), count()
    for i in range(100):
        readings.begin("run.pickle", 1000, packed=False, visitor=str(i))
    # Readings left by earlier tests may end in between.
    assert all(now <= then for now, then in zip(count(), before, strict=True))


def test_whoever_takes_every_place_under_many_names_loses_them_to_who_comes_later(monkeypatch: pytest.MonkeyPatch):
    readings = Readings(Context(TraceStore()))
    begin = partial(readings.begin, "run.pickle", 100_000, packed=False)
    useful = readings.get(begin(visitor="busy"))
    assert useful is not None
    useful.arriving.add(bytes(90_000))
    for i in range(255):
        begin(visitor=f"hostile {i % 16}")
    with pytest.raises(Busy):
        begin(visitor="friend")
    later(monkeypatch, 10)
    for _ in range(16):
        begin(visitor="friend")
    assert useful in readings._under_way.values()
    useful.arriving.close()


def test_what_trickles_in_is_forgotten_by_the_clock_and_frees_what_it_took(monkeypatch: pytest.MonkeyPatch):
    readings = Readings(Context(TraceStore()))
    slow = begun(readings, RAW)
    slow.arriving.add(RAW[:500])
    silent = begun(readings, RAW)
    was_heard = begun(readings, RAW)
    was_heard.has_listener = True
    was_heard.arriving.add(RAW)
    was_heard.arriving.end()
    later(monkeypatch, 150)
    slow.arriving.add(RAW[500:1000])
    slow.has_listener = True
    readings.forget()
    assert list(readings._under_way.values()) == [was_heard]
    for each in (slow, silent, was_heard):
        wait_for_the_end(each)


def test_a_reading_stops_in_the_middle_when_its_visitor_goes(monkeypatch: pytest.MonkeyPatch):
    """The file is whole: nothing else than the visitor's going could end it."""
    said: list[int] = []
    readings = Readings(Context(TraceStore()))
    raw = pickle.dumps(snapshot(EVENTS * 200), 2)
    ticket, reading = ticket_of(readings, raw)

    def read(*given: Any, progress: Any, **options: Any) -> Any:
        def say(done: int, total: int) -> None:
            said.append(done)
            readings.drop(ticket)
            progress(done, total)

        return read_trace(*given, progress=say, **options)

    monkeypatch.setattr("memviz.ui.upload.reading.read_trace", read)
    reading.arriving.add(raw)
    reading.arriving.end()
    reading.begin()
    wait_for_the_end(reading)
    assert 0 <= max(said) < len(raw) / 2
    assert not readings._context.store._kept


def test_a_table_of_ranks_is_open_without_a_timeline_and_a_damaged_one_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table, tables = tmp_path / "ranks.parquet", RankTables()
    gather_ranks(Gathering((str(write_ranks(tmp_path / "job", 2)),), output=table, processes=1))
    raw = table.read_bytes()
    readings = Readings(Context(TraceStore(), tables=tables))
    kinds = {header["kind"]: header for header in said_of(readings, raw, "ranks.parquet")}
    assert kinds["opened"]["key"] == "" and "curve" not in kinds
    named = tables.get(kinds["opened"]["stored"])
    assert named is not None and (named.name, len(named.job.ranks)) == ("ranks.parquet", 2)
    [refused] = said_of(readings, b"PAR1" + bytes(999), "ranks.parquet")
    assert refused["kind"] == "refused" and "damaged" in refused["reason"]
