"""Temporary files: what the Share menu makes of a view, in folders that cannot be guessed, and broken uploads.

A file is deleted once it was fetched. A page that its owner allows visitors to keep here is deleted when its link ends.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradio.route_utils import GradioMultiPartParser
from gradio.utils import get_upload_folder

from memviz.errors import UsageError
from memviz.trace.model import Trace
from memviz.trace.write import csv_text, safe, write_pickle

_FOLDER = "memviz-exports"
_UNFETCHED_SECONDS = 600
_LONGEST_STEM = 80
"""Bytes, which file systems count; endings come after it."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _root() -> Path:
    # Below Gradio's own folder: a file elsewhere it would copy there, and keep for a day.
    return Path(get_upload_folder()).resolve() / _FOLDER


def new_file(name: str) -> Path:
    folder = _root() / secrets.token_urlsafe(18)
    folder.mkdir(parents=True, mode=0o700)
    return folder / name


def file_stem(name: str) -> str:
    """Return a file stem from a trace's name, without characters that are special to file systems or headers."""
    plain = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name)
    return plain.strip(".").encode()[:_LONGEST_STEM].decode(errors="ignore") or "trace"


def file_with(name: str, write: Callable[[Path], object]) -> str:
    """Write a new file and return its path; a failed write leaves no file."""
    path = new_file(name)
    try:
        write(path)
    except BaseException:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise
    return str(path)


Write = Callable[[Path], object]
SharedFiles = Mapping[str, tuple[str, Write]]
"""The view of a tab, as files: by their kind (page, csv, json, snapshot) a name, and what writes it."""


def text_writer(make: Callable[[], str]) -> Write:
    return lambda path: path.write_text(make(), encoding="utf-8", errors="replace", newline="")


def json_writer(make: Callable[[], object]) -> Write:
    return text_writer(lambda: json.dumps(make(), indent=2))


def snapshot_writer(make: Callable[[], Trace]) -> Write:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            write_pickle(make(), file)

    return write


def table_writer(make_rows: Callable[[], list[dict[str, Any]]]) -> Write:
    """Write rows of JSON as CSV, without what is an object or a list in any of them."""

    def text() -> str:
        rows = make_rows()
        names = [name for name in rows[0] if not any(isinstance(row[name], dict | list) for row in rows)]
        cells = {name: [safe(row[name]) if isinstance(row[name], str) else row[name] for row in rows] for name in names}
        return csv_text(cells)

    return text_writer(text)


def _folder_of(path: str | Path) -> Path | None:
    """Return the export's own folder, or None for any other path."""
    try:
        resolved = Path(path).resolve()
    except (OSError, ValueError, RuntimeError):
        return None
    root = _root()
    return root / resolved.relative_to(root).parts[0] if root in resolved.parents else None


@dataclass
class Claim:
    is_there: bool
    is_delivered: bool = False


class Exports:
    """Exports, reachable only by their full path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: Counter[Path] = Counter()
        self._fetched: set[Path] = set()

    def is_one(self, path: str) -> bool:
        return _folder_of(path) is not None

    @contextmanager
    def claim(self, path: str, *, whole: bool) -> Iterator[Claim]:
        """Keep an export for one request, and delete it after the last request once it was delivered.

        Only a request for the whole file excludes others: a browser may send HEAD or Range first, and its GET
        arrives before that request has ended here.
        """
        folder = _folder_of(path)
        with self._lock:
            is_there = folder is not None and folder not in self._fetched and Path(path).is_file()
            if folder is not None and is_there:
                self._readers[folder] += 1
                if whole:
                    self._fetched.add(folder)
        claim = Claim(is_there)
        try:
            yield claim
        finally:
            with self._lock:
                if folder is not None and is_there:
                    self._readers[folder] -= 1
                    if whole and not claim.is_delivered:
                        self._fetched.discard(folder)
                    if not self._readers[folder]:
                        del self._readers[folder]
                        if folder in self._fetched:
                            shutil.rmtree(folder, ignore_errors=True)
                            self._fetched.discard(folder)

    def forget(self) -> None:
        """Delete exports that were not fetched for a while, and kept pages whose links have ended."""
        forget_expired()
        old = time.time() - _UNFETCHED_SECONDS
        with suppress(OSError):
            for folder in _root().iterdir():
                with suppress(OSError), self._lock:
                    if folder not in self._readers and folder.stat().st_mtime < old:
                        shutil.rmtree(folder, ignore_errors=True)


LINKS_SETTING = "MEMVIZ_LINK_HOURS"
"""Set by the owner of a server, it lets visitors keep pages here, for so many hours."""
_KEPT_FOLDER = "memviz-shared"
_MOST_HOURS = 24.0 * 365
MOST_KEPT, MOST_KEPT_BYTES = 400, 512 << 20
MOST_OF_VISITOR, MOST_BYTES_OF_VISITOR = 20, 64 << 20
_KEPT_NAME = re.compile(r"[0-9a-f]{8}[A-Za-z0-9_-]{32}")
"""A hash of the visitor, salted so that a link gives no address away, then the part that cannot be guessed."""
_SALT, _keeping = secrets.token_bytes(16), threading.Lock()


def link_hours() -> float:
    """Return for how long a page may be kept here; 0 where the owner has not allowed it."""
    text = os.environ.get(LINKS_SETTING, "0")
    with suppress(ValueError):
        if 0 <= float(text) <= _MOST_HOURS:
            return float(text)
    raise UsageError(f"{LINKS_SETTING}={text!r} is not a number of hours from 0 to {_MOST_HOURS:,.0f}.")


def _kept_pages() -> Path:
    return Path(get_upload_folder()).resolve() / _KEPT_FOLDER


def keep_page(write: Write, visitor: str) -> str:
    """Write a page that stays under a name that cannot be guessed; return it.

    The file's time of change is when the link ends, which a restart leaves as it is.
    """
    if not (hours := link_hours()):
        raise UsageError("Share links are disabled on this server.")
    forget_expired()
    theirs = hashlib.sha256(_SALT + visitor.encode()).hexdigest()[:8]
    folder, name = _kept_pages(), theirs + secrets.token_urlsafe(24)
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as apart:
        path, end = Path(apart, name), time.time() + 3600 * hours
        write(path)
        os.utime(path, (end, end))
        with _keeping:
            sizes = {kept.name: kept.stat().st_size for kept in (*folder.iterdir(), path)}
            own = [size for kept, size in sizes.items() if kept.startswith(theirs)]
            if len(own) > MOST_OF_VISITOR or sum(own) > MOST_BYTES_OF_VISITOR:
                raise UsageError("You have reached your limit of shared pages. Delete one, or save this one as a file.")
            if len(sizes) > MOST_KEPT or sum(sizes.values()) > MOST_KEPT_BYTES:
                raise UsageError("This server has reached its limit of shared pages. Try later, or save it as a file.")
            path.rename(folder / name)
    return name


def kept_page(name: str) -> Path | None:
    path = _kept_pages() / name
    with suppress(OSError):
        if _KEPT_NAME.fullmatch(name) and path.stat().st_mtime > time.time():
            return path
    return None


def drop_page(name: str) -> None:
    if (path := kept_page(name)) is not None:
        path.unlink(missing_ok=True)


def forget_expired() -> None:
    with _keeping, suppress(OSError):
        for path in _kept_pages().iterdir():
            if kept_page(path.name) is None:
                path.unlink(missing_ok=True)


def write_failure(error: OSError) -> str:
    if error.errno in _FULL:
        return "The disk of the server is full. Try again later."
    return f"The server could not save it ({error.strerror or error})."


_STALE_SECONDS = 600


def drop_leftovers(error: BaseException) -> None:
    """Delete the files of the upload that failed with this error. Its parser, in the traceback, has them."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        parser = frame.f_locals.get("self")
        for file in parser._files_to_close_on_error if isinstance(parser, GradioMultiPartParser) else ():
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                Path(file.name).unlink(missing_ok=True)


def drop_stale() -> None:
    """Delete old partial uploads, which lie next to the folders of complete files."""
    old = time.time() - _STALE_SECONDS
    with suppress(OSError):
        for path in Path(get_upload_folder()).iterdir():
            with suppress(OSError):
                if path.is_file() and path.stat().st_mtime < old:
                    path.unlink()
