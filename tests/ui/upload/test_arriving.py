"""Tests of a file that is read while it arrives."""

import errno
import gzip
import io
import os
import pickle
import random
import tempfile
import threading
import zipfile
import zlib
from typing import BinaryIO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memviz.errors import TraceError
from memviz.trace.load import read_trace
from memviz.ui.upload.arriving import Arriving, TooMuch
from tests.traces import alloc, free, snapshot


def packed(raw: bytes) -> bytes:
    press = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    return press.compress(raw) + press.flush()


def arrived(raw: bytes, *, cuts: tuple[int, ...] = (), is_packed: bool = False, **options: float) -> Arriving:
    """Send the bytes in parts with these cuts, and return the complete upload."""
    sent = packed(raw) if is_packed else raw
    arriving = Arriving(len(raw), packed=is_packed, gate=threading.Semaphore(0), **options)
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    for begin, end in zip(edges, edges[1:], strict=False):
        arriving.add(sent[begin:end])
    arriving.end()
    return arriving


@settings(max_examples=60, deadline=None)
@given(
    raw=st.binary(max_size=3000),
    cuts=st.lists(st.integers(0, 3000), max_size=5),
    is_packed=st.booleans(),
    moves=st.lists(st.tuples(st.sampled_from(["read", "seek", "end"]), st.integers(0, 3500)), max_size=12),
)
def test_reading_and_moving_about_is_that_of_a_file(raw, cuts, is_packed, moves):
    mine, theirs = arrived(raw, cuts=tuple(cuts), is_packed=is_packed), io.BytesIO(raw)
    for what, number in moves:
        if what == "read":
            assert mine.read(number) == theirs.read(number)
        elif what == "end":
            assert mine.seek(0, io.SEEK_END) == theirs.seek(0, io.SEEK_END)
        else:
            mine.seek(min(number, len(raw)))
            theirs.seek(min(number, len(raw)))
        assert mine.tell() == theirs.tell()
    assert mine.read() == theirs.read()


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(st.binary(max_size=800), st.booleans()), max_size=8),
    rest=st.binary(min_size=1, max_size=800),
    ends_plain=st.booleans(),
)
def test_parts_as_they_are_may_stand_between_packed_ones(parts, rest, ends_plain):
    raw = b"".join(data for data, _ in parts) + rest
    arriving = Arriving(len(raw), packed=True, gate=threading.Semaphore(0))
    for data, is_plain in parts:
        press = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
        arriving.add(data if is_plain else press.compress(data) + press.flush(zlib.Z_FULL_FLUSH), plain=is_plain)
    arriving.add(rest if ends_plain else packed(rest), plain=ends_plain)
    arriving.end()
    for _ in range(2):
        arriving.seek(0)
        assert arriving.read() == raw


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_snapshot_is_read_while_its_parts_come(is_packed):
    events = [each for i in range(3000) for each in (alloc(512 * i, 64 + i), free(512 * i, 64 + i))]
    raw = pickle.dumps(snapshot(events))
    sent = packed(raw) if is_packed else raw
    gate = threading.Semaphore(0)
    arriving = Arriving(len(raw), packed=is_packed, gate=gate)
    seen: list[int] = []

    def bring() -> None:
        for at in range(0, len(sent), 997):
            # The reader releases the gate while it waits.
            with gate:
                arriving.add(sent[at : at + 997])
        arriving.end()

    bringing = threading.Thread(target=bring)
    bringing.start()
    trace = read_trace(cast(BinaryIO, arriving), "run.pickle", len(raw), watch=lambda part, _: seen.append(len(part)))
    bringing.join()
    assert trace == read_trace(io.BytesIO(raw), "run.pickle", len(raw))
    assert 0 < sum(seen) <= trace.event_count


def test_a_gzipped_snapshot_and_a_checkpoint_are_known_by_their_bytes():
    raw = pickle.dumps(snapshot([alloc(0, 512)]))
    assert arrived(gzip.compress(raw)).read() == gzip.compress(raw)
    trace = read_trace(cast(BinaryIO, arrived(gzip.compress(raw))), "run.pickle.gz", len(gzip.compress(raw)))
    assert trace.about.format == "pickle, protocol 4, gzip"
    checkpoint = io.BytesIO()
    with zipfile.ZipFile(checkpoint, "w") as archive:
        archive.writestr("archive/data.pkl", random.Random(0).randbytes(5000))
    with pytest.raises(TraceError, match="model checkpoint"):
        read_trace(cast(BinaryIO, arrived(checkpoint.getvalue(), is_packed=True)), "m.pt", len(checkpoint.getvalue()))


@pytest.mark.parametrize("is_packed", [True, False])
def test_what_stops_half_way_or_never_ends_is_refused(is_packed):
    raw = random.Random(1).randbytes(100_000)
    sent = packed(raw) if is_packed else raw
    gate = threading.Semaphore(0)
    slow = Arriving(len(raw), packed=is_packed, gate=gate, patience_seconds=0.02)
    slow.add(sent[:500])
    with pytest.raises(TraceError, match="was interrupted"):
        slow.read()
    cancelled = Arriving(len(raw), packed=is_packed, gate=gate)
    cancelled.end("It was cancelled.")
    with pytest.raises(TraceError, match="cancelled"):
        cancelled.read()
    longer = arrived(raw, is_packed=is_packed)
    longer.size = 50_000
    with pytest.raises(TraceError, match="more than the 50,000 bytes"):
        longer.read()


def test_more_than_was_announced_is_neither_unpacked_nor_kept():
    bomb = Arriving(1000, packed=True, gate=threading.Semaphore(0))
    bomb.add(packed(bytes(5_000_000)))
    bomb.end()
    with pytest.raises(TraceError, match="more than the 1,000 bytes"):
        bomb.read()
    broken = Arriving(1000, packed=True, gate=threading.Semaphore(0))
    broken.add(b"\xff" * 100)
    broken.end()
    with pytest.raises(TraceError, match="was damaged"):
        broken.read()
    arriving = Arriving(1000, packed=False, gate=threading.Semaphore(0))
    arriving.add(bytes(60_000))
    with pytest.raises(TooMuch):
        arriving.add(bytes(60_000))
    assert arriving.arrived == 60_000
    with pytest.raises(TraceError, match="The file is larger than announced"):
        arriving.read()


def test_a_full_disk_frees_what_was_taken_and_says_so(monkeypatch: pytest.MonkeyPatch):
    """A write fails for lack of space after its first bytes fit."""
    made: list[io.BufferedIOBase] = []
    make = tempfile.TemporaryFile

    def small(*given: int, **options: int) -> io.BufferedIOBase:
        made.append(make(*given, **options))
        write = made[-1].write

        def limited(part: bytes) -> int:
            if made[-1].tell() + len(part) > 1000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(part)

        monkeypatch.setattr(made[-1], "write", limited, raising=False)
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", small)
    arriving = Arriving(50_000, packed=False, gate=threading.Semaphore(0))
    arriving.add(bytes(900))
    with pytest.raises(OSError, match="No space left"):
        arriving.add(bytes(900))
    assert [each.closed for each in made] == [True]
    with pytest.raises(TraceError, match="disk of the server is full"):
        arriving.read()
    arriving.add(bytes(900))
    assert len(made) == 1


def test_what_is_announced_as_large_is_not_read_before_it_can_be_that_large():
    """A file may take of the machine what its size allows: 330 bytes shall not pass for gigabytes."""
    gate = threading.Semaphore(0)
    arriving = Arriving(1 << 30, packed=False, gate=gate, patience_seconds=0.02)
    arriving.add(bytes(330))
    with pytest.raises(TraceError, match="was interrupted"):
        arriving.read(1)
    ended = Arriving(1 << 30, packed=False, gate=gate)
    ended.add(bytes(330))
    ended.end()
    with pytest.raises(TraceError, match="The file is shorter than announced"):
        ended.read(1)
