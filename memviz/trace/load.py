"""A file of any age -> Trace. What is inside is found out by looking, never by the file's name."""

from __future__ import annotations

import binascii
import codecs
import gzip
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from memviz.errors import TraceError
from memviz.memory import trim_heap_if_large
from memviz.trace.intern import Interner
from memviz.trace.limits import Budget, IsWanted, Limits, MiB
from memviz.trace.model import About, Trace
from memviz.trace.profile import is_profile, is_timeline, read_profile, read_timeline
from memviz.trace.snapshot import read_snapshot
from memviz.trace.unpickle import RefersToRow, Watch, unpickle
from memviz.trace.unpickle.stream import AGAIN, TRUNCATED, WINDOW, Progress

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

_RECORD = "Record one with torch.cuda.memory._dump_snapshot('trace.pickle')."
_FIRST_BYTES_OF_PICKLES = b"\x80(]})lcd"
_GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
_BLANK = b"\xef\xbb\xbf \t\r\n"
_CHECKED_EVERY = 4096
_LONG_JSON = 128 * MiB
"""Characters. Shorter texts may have long numbers: checking each number takes a third more time."""
_MOST_DIGITS = 150
"""Maximum digits of a number, as in pickles."""
_PACKED = {
    _GZIP: "gzip",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"\x04\x22\x4d\x18": "lz4",
}
"""Only gzip of these formats is read, one layer deep. No pickle starts with zstandard's four bytes."""
_UNPACK = "Unpack it and open the snapshot inside."
_NESTED = "It contains a zip archive or a checkpoint."
_JSON_COSTS = {b"{": 240, b"[": 88, b",": 60}


def load_trace(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
    is_wanted: IsWanted | None = None,
) -> Trace:
    """Reads a snapshot: a pickle of any protocol or JSON, plain, gzipped, in a zip, or in a page of torch's memory_viz.

    Args:
        path: The file.
        limits: What it may take of this machine; by default `Limits.from_environment()`.
        progress: Called now and then with the bytes read so far and the file's size.
        is_wanted: Called now and then; if it returns False, reading ends with `Unwanted`.

    Raises:
        TraceError: The file is not a snapshot, is damaged, or goes beyond the limits.
    """
    path = Path(path)
    with _refusals(path.name or str(path)):
        if path.is_dir():
            raise TraceError("It is a folder.", remedy="Name the snapshot file inside it.")
        if not path.exists():
            raise TraceError("The file does not exist.")
        size = path.stat().st_size
        with path.open("rb") as file:
            # A pipe has no size; only a file can be called empty before it is read.
            known = size if path.is_file() else None
            return read_trace(file, path.name, known, limits=limits, progress=progress, is_wanted=is_wanted)


def read_trace(
    file: BinaryIO,
    name: str,
    size: int | None,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    is_wanted: IsWanted | None = None,
) -> Trace:
    """`load_trace` for what is open already, and may still be arriving: it is read from its start to its end.

    Args:
        file: Can go back to its start.
        name: The file's own name.
        size: Its bytes, where they are known.
        limits: What it may take of this machine.
        progress: Called now and then with the bytes read so far and the size.
        watch: Shown events as they are decoded, long before the trace is whole.
        is_wanted: Called now and then; if it returns False, reading ends with `Unwanted`.
    """
    limits = limits or Limits.from_environment()
    with _refusals(name):
        if size == 0:
            raise TraceError("The file is empty: the program that wrote it was probably stopped.", remedy=AGAIN)
        if size is not None and size > limits.file_bytes:
            reason = f"It has {size:,} bytes, more than the {limits.file_bytes:,} allowed here."
            raise TraceError(reason, remedy="If you trust the file, raise MEMVIZ_MAX_FILE_BYTES.")
        # The reader behind a decompressor does not know how far the file itself is read.
        tell = None if progress is None else lambda _done, _total: progress(file.tell(), size or 0)
        root, format, interner = _read(file, Budget(limits, size, is_wanted), tell, watch)
        about = About("measured", source=name, format=format)
        reads = read_profile if is_profile(root) else read_timeline if is_timeline(root) else read_snapshot
        trace = reads(root, about, interner)
        del root, interner
        trim_heap_if_large(trace.event_count)
        return trace


def load_zip_member(path: Path, member: str) -> Trace:
    """Read one snapshot of several in a zip archive."""
    limits = Limits.from_environment()
    with _refusals(PurePosixPath(member).name), path.open("rb") as file:
        size = path.stat().st_size
        archive, found = zip_snapshots(file, size, Budget(limits, size))
        wanted = next((one for one in found if one.filename == member), None)
        if wanted is None:
            raise TraceError(f"It is not in {path.name} any more.")
        stream = ZipMember(archive.open(wanted))
        if stream.read(4) == ZIP:
            raise TraceError(_NESTED, remedy=_UNPACK)
        return read_trace(cast(BinaryIO, stream), PurePosixPath(member).name, wanted.file_size, limits=limits)


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Add the file's name to errors."""
    try:
        yield
    except TraceError as error:
        raise error.named(name) from None
    except OSError as error:
        raise TraceError(f"It cannot be read ({error.strerror or error}).", source=name) from None
    except MemoryError:
        reason = "Reading it needs more memory than this machine has free."
        raise TraceError(reason, remedy="Record fewer events (max_entries).", source=name) from None


def _read(file: BinaryIO, budget: Budget, progress: Progress | None, watch: Watch | None) -> tuple[Any, str, Interner]:
    """Look into an open file and read it, from the start again if need be."""
    file.seek(0)
    head, stream, packed = file.read(64), file, ""
    if head.startswith(ZIP):
        archive, found = zip_snapshots(file, file.seek(0, io.SEEK_END), budget)
        if len(found) > 1:
            reason = f"The zip archive has {len(found):,} snapshots."
            raise TraceError(reason, remedy="Read them with `memviz ranks`, or unpack it and open the files together.")
        stream, packed = cast(BinaryIO, ZipMember(archive.open(found[0]))), ", zip"
    elif head.lstrip(_BLANK)[:1] == b"<":
        stream, packed = cast(BinaryIO, Base64File(file, _base64_start(file))), ", HTML page"
    stream.seek(0)
    head = stream.read(4)
    stream.seek(0)
    if head.startswith(ZIP):
        raise TraceError(_NESTED, remedy=_UNPACK)
    if head.startswith(_GZIP):
        stream, packed = cast(BinaryIO, _Bounded(stream, budget)), f"{packed}, gzip"
    head = stream.read(64)
    stream.seek(0)
    first = head.lstrip(_BLANK)[:1]
    if first in (b"{", b"["):
        return _json(stream, budget), f"JSON{packed}", Interner(budget)
    for first_bytes, how in _PACKED.items():
        if head.startswith(first_bytes):
            raise TraceError(f"It is packed with {how}{' once more' if packed else ''}.", remedy=_UNPACK)
    if not head or head[0] not in _FIRST_BYTES_OF_PICKLES:
        raise TraceError("It is not a pickle or JSON.", remedy=_RECORD)
    protocol = f"protocol {head[1]}" if head[0] == 0x80 and len(head) > 1 else "protocol 0 or 1"
    interner = Interner(budget)
    try:
        root = unpickle(stream, interner, progress, watch=watch)
    except RefersToRow:
        budget.spent = 0
        interner = Interner(budget)
        stream.seek(0)
        root = unpickle(stream, interner, progress, runs=False)
    return root, f"pickle, {protocol}{packed}", interner


_BAD_GZIP = "The gzip data is damaged, or other data follows it in the file."


class _Bounded(gzip.GzipFile):
    """A gzip file that ends with an error where it unpacks to more than is allowed."""

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        super().__init__(fileobj=file, mode="rb")
        self.budget = budget

    def read(self, size: int | None = -1) -> bytes:
        try:
            piece: bytes = super().read(size)
        except EOFError:
            raise TraceError(TRUNCATED, remedy=AGAIN) from None
        except (zlib.error, gzip.BadGzipFile):
            raise TraceError(_BAD_GZIP, remedy=AGAIN) from None
        if self.tell() > self.budget.limits.unpacked_bytes:
            raise self.budget.too_large("unpacked_bytes")
        return piece


def _json(stream: BinaryIO, budget: Budget) -> Any:
    try:
        text = _json_text(stream, budget)
        parse_int = _short_number if len(text) > _LONG_JSON else None
        once = _each_frame_once(budget)
        return json.loads(text, parse_constant=_no_constant, parse_int=parse_int, object_hook=once)
    except RecursionError:
        fault = "nested too deep"
    except ValueError as error:
        # Python's own message is about its limit of digits, which a reader cannot change.
        is_long = "set_int_max_str_digits" in str(error)
        fault = "a number has thousands of digits" if is_long else str(error)[:200]
    raise TraceError(f"It starts like JSON but is not valid JSON ({fault}).", remedy=AGAIN)


def _json_text(stream: BinaryIO, budget: Budget) -> str:
    """Read the whole file, decoded while it is read: bytes and text are never in memory together."""
    most = budget.limits.json_bytes
    texts: list[str] = []
    decoder: codecs.IncrementalDecoder | None = None
    size = characters = charged = 0
    width = 1
    while piece := stream.read(WINDOW):
        size += len(piece)
        if size > most:
            reason = f"As JSON it has more than {most:,} bytes, which is the limit here."
            remedy = "Dump it as a pickle, which is far smaller, or raise MEMVIZ_MAX_JSON_BYTES."
            raise TraceError(reason, remedy=remedy)
        # Counted before it is read: three bytes of text can become a dict of 64. Too much rather than too little.
        budget.charge(len(piece) + sum(cost * piece.count(mark) for mark, cost in _JSON_COSTS.items()))
        budget.check()
        decoder = decoder or codecs.getincrementaldecoder(json.detect_encoding(piece))("surrogatepass")
        text = decoder.decode(piece)
        texts.append(text)
        if text:
            # With a single character beyond Latin, each of the whole text takes up to 4 bytes. What a text takes says
            # how wide it is, without a look at every character.
            characters += len(text)
            width = max(width, min(sys.getsizeof(text) // len(text), 4))
            # Twice: the whole text, and what is cut out of it.
            due = 2 * (width - 1) * characters
            budget.charge(due - charged)
            charged = due
    texts.append(decoder.decode(b"", final=True) if decoder else "")
    return "".join(texts)


def _each_frame_once(budget: Budget) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """JSON repeats a frame in every stack; keep each once, as pickles do."""
    seen: dict[tuple[str, str, int], dict[str, Any]] = {}
    numbers = count(1)

    def once(made: dict[str, Any]) -> dict[str, Any]:
        """Called for every dict as soon as it is there."""
        if next(numbers) % _CHECKED_EVERY == 0:
            budget.check()
        name, filename, line = made.get("name"), made.get("filename"), made.get("line")
        if type(line) is not int or type(name) is not str or type(filename) is not str or len(made) > 3:
            return made
        return seen.setdefault((name, filename, line), made)

    return once


def _short_number(digits: str) -> int:
    """Python's own bound, 4,300 digits, keeps a processor busy for 16 s where a file is full of such numbers."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


_HEAD = 1 << 16
"""Bytes in which a page says what it is."""
_BASE64 = re.compile(rb'"base64"\s*:\s*"')
_PAGES = {
    b"GPU Memory Timeline HTML": (
        "It is a picture from export_memory_timeline, without data.",
        "Export to a name that ends in .raw.json.gz, or record a snapshot.",
    ),
    b"mv-saved": ("It is a page that memviz saved, for a browser.", "Open the snapshot that it was made from."),
}
_NO_PAGE = "It is a web page without a snapshot inside.", "Open the snapshot that it was made from."


def _base64_start(file: BinaryIO) -> int:
    """Return where the snapshot begins in a page of torch.cuda._memory_viz.

    Raises:
        TraceError: No snapshot is in the page.
    """
    file.seek(0)
    head = file.read(_HEAD)
    found = _BASE64.search(head)
    if found is None or b"add_local_files" not in head:
        reason, remedy = next((words for mark, words in _PAGES.items() if mark in head), _NO_PAGE)
        raise TraceError(reason, remedy=remedy)
    return found.end()


class Base64File:
    """The bytes of a text in base64 that ends with a quotation mark, read in pieces."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file, self._start = file, start
        self.seek(0)

    def seek(self, place: int, /) -> int:
        """Go back to the start; no reader needs another place."""
        self._file.seek(self._start + place)
        self._text, self._bytes, self._ended = b"", bytearray(), False
        return place

    def read(self, size: int = -1, /) -> bytes:
        while not self._ended and (size < 0 or len(self._bytes) < size):
            self._fill()
        size = len(self._bytes) if size < 0 else size
        piece = bytes(self._bytes[:size])
        del self._bytes[:size]
        return piece

    def _fill(self) -> None:
        piece = self._file.read(WINDOW)
        if not piece:
            raise TraceError(TRUNCATED, remedy=AGAIN)
        text, quote, _ = (self._text + piece).partition(b'"')
        self._ended = bool(quote)
        whole = len(text) if quote else len(text) // 4 * 4
        try:
            self._bytes += binascii.a2b_base64(text[:whole], strict_mode=True)
        except binascii.Error:
            raise TraceError("The snapshot in the page is not valid base64.", remedy=AGAIN) from None
        self._text = text[whole:]


_BAD_ZIP = "The zip archive is damaged or truncated."
_ZIP_END = b"PK\x05\x06"
_LARGE_ZIP = b"PK\x06\x07"
_MOST_DIRECTORY = 8 * MiB
"""Bytes of a zip's list of files, which is read whole."""
_SNAPSHOTS = (".pickle", ".pkl", ".json", ".pickle.gz", ".pkl.gz", ".json.gz")


def zip_snapshots(file: BinaryIO, size: int, budget: Budget) -> tuple[ZipFile, list[ZipInfo]]:
    """Return the archive and its snapshots; all together they unpack to no more than the limits allow.

    Raises:
        TraceError: There is none, or it is damaged, encrypted or too large.
    """
    # Nothing that is read needs it, nor the compressors that it loads.
    import zipfile

    file.seek(max(size - 98 - 0xFFFF, 0))
    rest, mark, end = file.read().rpartition(_ZIP_END)
    # A larger archive has a second end of 56 bytes, and 20 that say so, before the first.
    listed = rest[-36:-28] if rest[-20:].startswith(_LARGE_ZIP) else end[8:12]
    if mark and int.from_bytes(listed, "little") > _MOST_DIRECTORY:
        raise TraceError("The zip archive has too many files.", remedy=_UNPACK)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        raise TraceError(_BAD_ZIP, remedy=AGAIN) from None
    members = [member for member in archive.infolist() if not member.is_dir()]
    if any(member.filename.endswith("data.pkl") for member in members):
        raise TraceError("It is a model checkpoint (torch.save), not a memory snapshot.", remedy=_RECORD)
    found = [one for one in members if one.filename.lower().endswith(_SNAPSHOTS) and not _is_hidden(one.filename)]
    if not found:
        raise TraceError("The zip archive has no snapshot.", remedy="Name the snapshots .pickle or .json.")
    if any(member.flag_bits & 1 or member.compress_type not in (0, zipfile.ZIP_DEFLATED) for member in found):
        raise TraceError("The zip archive is encrypted, or not compressed with deflate.", remedy=_UNPACK)
    if sum(member.file_size for member in found) > budget.limits.unpacked_bytes:
        raise budget.too_large("unpacked_bytes")
    return archive, found


def _is_hidden(name: str) -> bool:
    """True for files of the system, as macOS adds them to an archive."""
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


class ZipMember:
    """A file of an archive, whose faults are a `TraceError`."""

    def __init__(self, member: IO[bytes]) -> None:
        self._member = member
        self.seek = member.seek

    def read(self, size: int = -1, /) -> bytes:
        from zipfile import BadZipFile

        try:
            return self._member.read(size)
        except (BadZipFile, EOFError, zlib.error):
            raise TraceError(_BAD_ZIP, remedy=AGAIN) from None
