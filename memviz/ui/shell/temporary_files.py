"""Temporary files: exports in folders that cannot be guessed, deleted once fetched, and leftovers of broken uploads."""

from __future__ import annotations

import errno
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradio.route_utils import GradioMultiPartParser
from gradio.utils import get_upload_folder

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
        delete_export(path)
        raise
    return str(path)


def page_file(name: str, html: str) -> str:
    return file_with(name, lambda path: path.write_text(html, encoding="utf-8", errors="replace"))


def delete_export(path: str | Path) -> None:
    folder = _folder_of(path)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


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
            if folder is not None and is_there:
                self._release(folder, is_fetched_still=not whole or claim.is_delivered)

    def _release(self, folder: Path, is_fetched_still: bool) -> None:
        with self._lock:
            self._readers[folder] -= 1
            if not is_fetched_still:
                self._fetched.discard(folder)
            if not self._readers[folder]:
                del self._readers[folder]
                if folder in self._fetched:
                    shutil.rmtree(folder, ignore_errors=True)
                    self._fetched.discard(folder)

    def forget(self) -> None:
        """Delete exports that were not fetched for a while."""
        old = time.time() - _UNFETCHED_SECONDS
        with suppress(OSError):
            for folder in _root().iterdir():
                with suppress(OSError), self._lock:
                    if folder not in self._readers and folder.stat().st_mtime < old:
                        shutil.rmtree(folder, ignore_errors=True)


def write_failure(error: OSError) -> str:
    if error.errno in _FULL:
        return "The disk of the server is full. Try it again later."
    return f"The server could not keep it ({error.strerror or error})."


_STALE_SECONDS = 600


def drop_leftovers(error: BaseException) -> None:
    """Delete the files of the upload that failed with this error. Its parser, in the traceback, has them."""
    for reader in _readers(error):
        for file in reader._files_to_close_on_error:
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                Path(file.name).unlink(missing_ok=True)


def _readers(error: BaseException) -> Iterator[Any]:
    step = error.__traceback__
    while step is not None:
        owner = step.tb_frame.f_locals.get("self")
        if isinstance(owner, GradioMultiPartParser):
            yield owner
        step = step.tb_next


def drop_stale() -> None:
    """Delete old partial uploads, which lie next to the folders of complete files."""
    old = time.time() - _STALE_SECONDS
    with suppress(OSError):
        for path in Path(get_upload_folder()).iterdir():
            with suppress(OSError):
                if path.is_file() and path.stat().st_mtime < old:
                    path.unlink()
