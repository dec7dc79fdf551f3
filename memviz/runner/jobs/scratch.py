"""Folders for the files of runs under way: gone with the page, and of a page that was killed, with the next one.

A page holds a lock on its folder for as long as it lives, and the system lets go of it however the page ends.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO

from memviz.errors import MemvizError

_PREFIX = "memviz-runs-"
_LOCK = "lock"


class NoRoom(MemvizError):
    """The disk for temporary files is full, or nothing can be written to it."""


class Scratch:
    """Makes folders inside one of its own, which is made with the first of them."""

    def __init__(self, place: Path | None = None) -> None:
        self._place = place
        self._making = threading.Lock()
        self._root: Path | None = None
        self._held: BinaryIO | None = None

    def new(self) -> Path:
        try:
            with self._making:
                root = self._root or self._begin()
            return Path(tempfile.mkdtemp(dir=root))
        except OSError as error:
            words = f"Files of a run cannot be written to {self._where()} ({error.strerror or error})."
            raise NoRoom(f"{words} Make room there, or name another folder in TMPDIR.") from None

    def close(self) -> None:
        with self._making:
            if self._held is not None:
                self._held.close()
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
            self._root = self._held = None

    def _where(self) -> Path:
        return self._place or Path(tempfile.gettempdir())

    def _begin(self) -> Path:
        _sweep(self._where())
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._where()))
        # What is in the way of the lock is in the way of sweeping only.
        with contextlib.suppress(OSError):
            self._held = (root / _LOCK).open("wb")
            _lock(self._held)
        self._root = root
        return root


def _sweep(place: Path) -> None:
    """Takes away what belongs to nobody any more."""
    for lock in place.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            _lock(file)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _lock(file: BinaryIO) -> None:
    """OSError where another process has it, or where the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        raise OSError("This system has no such locks.") from None
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
