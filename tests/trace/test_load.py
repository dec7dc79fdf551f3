"""Files as people have them: old, packed, cut off, mistaken for something else, hostile."""

import base64
import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from memviz.errors import MemvizError, TraceError, UsageError
from memviz.trace.limits import Limits
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from tests.traces import alloc, block, frame, free, segment, snapshot

ROOT = snapshot(
    [
        {"action": "segment_alloc", "addr": 0x7F0000000000, "size": 2 << 20, "stream": 0, "time_us": 1, "frames": []},
        *(
            alloc(0x7F0000000000 + 512 * i, 300 + i, time_us=10 + i, frames=[frame("f", line=i % 3)], pool_id=(0, 0))
            for i in range(40)
        ),
        *free(0x7F0000000000 + 512, 301, time_us=60, frames=[]),
    ],
    [segment(0x7F0000000000, 2 << 20, [block(0x7F0000000000, 512, 300)])],
    allocator_settings={"expandable_segments": False},
    external_annotations=[{"name": "step", "stage": "START", "device": 0, "time_us": 5}],
)


def written(tmp_path: Path, raw: bytes, name: str = "a.pickle") -> Path:
    path = tmp_path / name
    path.write_bytes(raw)
    return path


def refusal(path: Path, **more: Any) -> str:
    with pytest.raises(TraceError) as caught:
        load_trace(path, **more)
    text = str(caught.value)
    assert text.startswith(path.name), "every refusal names the file"
    return text


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return raw.getvalue()


def viewer_page(raw: bytes) -> bytes:
    """A page of `torch.cuda._memory_viz trace_plot`, with its zeros at the end of the pickle."""
    raw += b"\0" * (3 - len(raw) % 3)
    files = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(raw).decode()}])
    return f"\n<!DOCTYPE html>\n<script>\nimport {{add_local_files}} from 'x'\nconst local_files = {files}\n".encode()


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return load_trace(written(tmp_path, pickle.dumps(ROOT)))


@pytest.mark.parametrize(
    ("raw", "format"),
    [
        *((pickle.dumps(ROOT, number), f"pickle, protocol {number or '0 or 1'}") for number in (0, 2, 3, 4, 5)),
        (pickle.dumps(ROOT, 1), "pickle, protocol 0 or 1"),
        (b"\xef\xbb\xbf\n" + json.dumps(ROOT).encode(), "JSON"),
        (gzip.compress(pickle.dumps(ROOT)), "pickle, protocol 4, gzip"),
    ],
    ids=[*"023451", "JSON", "gzip"],
)
def test_every_format_is_seen_by_content_and_gives_the_same_trace(
    tmp_path: Path, trace: Trace, raw: bytes, format: str
) -> None:
    other = load_trace(written(tmp_path, raw, "a.bin"))
    assert (other.devices, other.strings) == (trace.devices, trace.strings)
    assert other.about.format == format


@pytest.mark.slow
def test_progress_ends_with_the_whole_file(tmp_path: Path) -> None:
    path = written(tmp_path, pickle.dumps({**ROOT, "padding": ["x" * 100_000] * 3 + [str(i) for i in range(900_000)]}))
    seen: list[tuple[int, int]] = []
    load_trace(path, progress=lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "The file is empty"),
        (b"hello, world", "It is not a pickle or JSON"),
        (b"\x89PNG\r\n\x1a\n", "It is not a pickle or JSON"),
        (b'{"segments": [', "not valid JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"segments": NaN}', "NaN is not a number"),
        (b'{"segments": [' + b"9" * 5_000 + b"]}", "(a number has thousands of digits)"),
        (b"PK\x03\x04 something", "The zip archive"),
        (bytes.fromhex("28b52ffd") + bytes(9), "It is packed with zstandard. Unpack it"),
        (b"\xfd7zXZ\0" + bytes(9), "It is packed with xz."),
        (gzip.compress(gzip.compress(b"}")), "It is packed with gzip once more. Unpack it"),
        (pickle.dumps({"model": 1}), "It holds a dict with the keys 'model', not a memory snapshot"),
        (pickle.dumps({}), "an empty dict"),
        (pickle.dumps(5), "It holds an int"),
        (pickle.dumps({"segments": [], "device_traces": [[]]}), "is empty: no segments and no events"),
        (b"[]", "snapshot is empty"),
        (pickle.dumps(ROOT)[:-40], "truncated"),
        (gzip.compress(pickle.dumps(ROOT))[:-40], "truncated"),
        (b"\x1f\x8bnot gzip", "The gzip data is damaged"),
        (gzip.compress(pickle.dumps(ROOT)) + b"and more", "or other data follows it"),
        (zipped(("rank0.pickle", b"x"), ("rank1.pickle", b"x")), "The zip archive has 2 snapshots."),
        (zipped(("a.txt", b"x")), "The zip archive has no snapshot."),
        (zipped(("a.pickle", zipped(("b.pickle", b"x")))), "It contains a zip archive or a checkpoint."),
        (viewer_page(zipped(("b.pickle", b"x"))), "It contains a zip archive or a checkpoint."),
        (zipped(("a.pickle", pickle.dumps(ROOT)), method=zipfile.ZIP_BZIP2), "not compressed with deflate"),
        (zipped(("a.pickle", pickle.dumps(ROOT)))[:-40], "The zip archive is damaged or truncated."),
        (zipped(("model/data.pkl", b"x")), "It is a model checkpoint"),
        (viewer_page(pickle.dumps(ROOT))[:900], "The file is truncated"),
        (viewer_page(pickle.dumps(ROOT)).replace(b"gA", b"g*"), "not valid base64"),
        (b"<html><title>GPU Memory Timeline HTML</title>", "a picture from export_memory_timeline"),
        (b"<!doctype html><p>", "It is a web page without a snapshot inside."),
        (b'<script type="application/json" id="mv-saved">', "It is a page that memviz saved"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_wrong_file_gets_its_own_words(tmp_path: Path, raw: bytes, words: str) -> None:
    assert words in refusal(written(tmp_path, raw))


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    assert "It is a folder" in refusal(tmp_path)
    assert "The file does not exist" in refusal(tmp_path / "absent.pickle")


@pytest.mark.slow
def test_a_bomb_in_gzip_or_zip_stops_at_the_limit(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(b"\x80\x04" + bytes(50_000_000)))
    assert "1,000,000" in refusal(path, limits=Limits(unpacked_bytes=1_000_000))
    path = written(tmp_path, gzip.compress(b"[" + b" " * 50_000_000))
    assert "1,000,000 bytes" in refusal(path, limits=Limits(unpacked_bytes=1_000_000))
    path = written(tmp_path, zipped(("a.json", b" " * 50_000_000)))
    assert "1,000,000 bytes" in refusal(path, limits=Limits(unpacked_bytes=1_000_000))


def test_files_and_json_beyond_their_limits(tmp_path: Path) -> None:
    raw = json.dumps(ROOT).encode()
    path = written(tmp_path, raw)
    assert "MEMVIZ_MAX_FILE_BYTES" in refusal(path, limits=Limits(file_bytes=100))
    assert "MEMVIZ_MAX_JSON_BYTES" in refusal(path, limits=Limits(json_bytes=100))


def test_one_list_named_a_thousand_times_is_counted_before_it_is_read(tmp_path: Path) -> None:
    events = [alloc(i, 1) for i in range(1000)]
    path = written(tmp_path, pickle.dumps({"segments": [], "device_traces": [events] * 500}))
    assert "more than 100,000 events" in refusal(path, limits=Limits(events=100_000))
    blocks = [block(i, 1) for i in range(1000)]
    one = {"device": 0, "address": 0, "total_size": 1000, "stream": 0, "blocks": blocks}
    path = written(tmp_path, pickle.dumps({"segments": [one] * 4000}))
    assert "more than 100,000 objects" in refusal(path, limits=Limits(items=100_000))


def test_limits_come_from_the_environment() -> None:
    assert Limits.from_environment({"MEMVIZ_MAX_EVENTS": "5", "MEMVIZ_MAX_SECONDS": "2.5"}) == Limits(
        events=5, seconds=2.5
    )
    with pytest.raises(UsageError, match="MEMVIZ_MAX_DEPTH='many'"):
        Limits.from_environment({"MEMVIZ_MAX_DEPTH": "many"})


# -- damage ----------------------------------------------------------------------------------------------

WHOLE = {
    "pickle 4": pickle.dumps(ROOT, 4),
    "pickle 2": pickle.dumps(ROOT, 2),
    "pickle 0": pickle.dumps(ROOT, 0),
    "json": json.dumps(ROOT).encode(),
    "gzip": gzip.compress(pickle.dumps(ROOT), mtime=0),
}
TIGHT = Limits(memory_bytes=256 << 20, unpacked_bytes=16 << 20)


def trace_or_refusal(path: Path) -> Trace | None:
    try:
        return load_trace(path, limits=TIGHT)
    except MemvizError as error:
        assert str(error).startswith(path.name)
        return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", WHOLE)
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    raw = WHOLE[kind]
    # What follows the checksum-bearing end of gzip's data is its trailer: cut there it is refused as well.
    # Every byte near the ends; between them one in so many that all kinds of values are cut through.
    step = max(1, len(raw) // 700)
    for length in (*range(200), *range(200, len(raw) - 200, step), *range(max(0, len(raw) - 200), len(raw))):
        assert trace_or_refusal(written(tmp_path, raw[:length])) is None, length


def test_a_line_that_is_no_whole_number_is_refused_in_json_however_like_another_it_is(tmp_path: Path) -> None:
    frames = [{"name": "f", "filename": "a.py", "line": line} for line in (1, True)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(snapshot([alloc(0, 512, frames=frames)])))
    with pytest.raises(TraceError, match="expected as line, found bool"):
        load_trace(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_zip_with_one_snapshot_and_a_page_of_the_viewer_are_read(
    tmp_path: Path, trace: Trace, *, packed: bool
) -> None:
    raw = gzip.compress(pickle.dumps(ROOT)) if packed else pickle.dumps(ROOT)
    archive = zipped(("job/a.pickle", raw), ("job/log.txt", b"x"), ("__MACOSX/job/._a.pickle", b"x"))
    for content, format in ((archive, "zip"), (viewer_page(raw), "HTML page")):
        found = load_trace(written(tmp_path, content))
        assert found.devices == trace.devices
        assert f", {format}{', gzip' if packed else ''}" in found.about.format


def test_a_damaged_member_of_a_zip_is_refused(tmp_path: Path) -> None:
    raw = bytearray(zipped(("a.pickle", pickle.dumps(ROOT)), method=zipfile.ZIP_STORED))
    raw[len(raw) // 2] ^= 0xFF
    refusal(written(tmp_path, bytes(raw)))
