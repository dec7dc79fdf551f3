"""Runs that outlive the page: one folder, two plain files a run, bounded in number and bytes.

    <folder>/<visitor>/<id>.pickle     the trace with the run in it, a snapshot like any other
    <folder>/<visitor>/<id>.json       its name and the run, so that a list need not open the traces

A visitor's folder is named by a hash of a secret that only their browser knows, so no visitor opens another's runs by
listing or by guessing. Both files are written whole or not at all, the trace first: a list never names a run that
is not there. Several pages may use one folder; what one deletes is gone for the others.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from memviz.errors import MemvizError, UsageError
from memviz.runner.request import Run
from memviz.trace.write import replacing

_ID = re.compile(r"[0-9]{14}-[0-9a-f]{8}")
_LONGEST_NAME = 120
_LARGEST_SUMMARY = 4 << 20
_DAY = 86_400.0
_FIGURES = 2
"""Raise it when figures of a `Run` change their meaning: those of earlier records are not shown then.

1, or none: peaks without loading. 2: one peak, which counts it.
"""


@dataclass(frozen=True)
class Bounds:
    runs: int = 200
    """Limit for one visitor."""
    total_bytes: int = 4 << 30
    """Limit for all visitors together."""
    days: float = 30.0
    """Time after which a run that is not opened is deleted."""


@dataclass(frozen=True)
class KeptRun:
    id: str
    name: str
    run: Run
    path: Path
    """Path of the trace."""
    is_current: bool = True
    """False if an earlier version made it, whose figures have another meaning."""


def default_folder() -> Path:
    """Return the folder in the user's cache for saved runs; MEMVIZ_RUNS overrides it."""
    configured = os.environ.get("MEMVIZ_RUNS")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(configured) if configured else Path(cache) / "memviz" / "runs"


class KeptRuns:
    """The runs of one visitor. Every call reads the folder anew, so several pages agree."""

    def __init__(self, folder: Path, visitor: str, bounds: Bounds | None = None) -> None:
        self._root = folder
        self._bounds = bounds or Bounds()
        self._folder = folder / hashlib.sha256(visitor.encode()).hexdigest()[:32]

    def keep(self, trace_file: Path, run: Run, name: str = "") -> KeptRun:
        """Copy the trace in `trace_file`. Raises if it cannot be written; `trace_file` is untouched then."""
        self._make_room(trace_file.stat().st_size)
        # Ids sort by time, within a second too.
        now = time.time()
        fraction = int(now % 1 * 0x10000)
        id = f"{time.strftime('%Y%m%d%H%M%S', time.gmtime(now))}-{fraction:04x}{secrets.token_hex(2)}"
        path = self._folder / f"{id}.pickle"
        saved = KeptRun(id, _named(name or run.label), run, path)
        self._folder.mkdir(parents=True, exist_ok=True)
        with trace_file.open("rb") as source, replacing(path) as target:
            shutil.copyfileobj(source, target)
        try:
            self._write_summary(saved)
        except MemvizError:
            path.unlink(missing_ok=True)
            raise
        return saved

    def all(self) -> tuple[KeptRun, ...]:
        """Return the runs, newest first."""
        summaries = sorted(self._folder.glob("*.json"), reverse=True)
        return tuple(saved for saved in map(self._read, summaries) if saved is not None)

    def get(self, id: str) -> KeptRun:
        if not _ID.fullmatch(id):
            raise UsageError("There is no such run.")
        saved = self._read(self._folder / f"{id}.json")
        if saved is None:
            raise UsageError("This run no longer exists: it was deleted, or replaced by newer runs.")
        with suppress(OSError):
            os.utime(saved.path)
        return saved

    def rename(self, id: str, name: str) -> KeptRun:
        old = self.get(id)
        if not name.strip():
            raise UsageError("A run needs a name.")
        new = replace(old, name=_named(name))
        self._write_summary(new)
        return new

    def delete(self, id: str) -> None:
        saved = self.get(id)
        # The summary first: a trace without one is in no list.
        saved.path.with_suffix(".json").unlink(missing_ok=True)
        saved.path.unlink(missing_ok=True)

    def _write_summary(self, saved: KeptRun) -> None:
        figures = _FIGURES if saved.is_current else 1
        text = json.dumps({"name": saved.name, "figures": figures, "run": saved.run.as_json()})
        with replacing(saved.path.with_suffix(".json")) as file:
            file.write(text.encode())

    def _read(self, summary: Path) -> KeptRun | None:
        path = summary.with_suffix(".pickle")
        try:
            if not path.exists() or summary.stat().st_size > _LARGEST_SUMMARY:
                return None
            value = json.loads(summary.read_text())
            is_current = value.get("figures") == _FIGURES
            return KeptRun(summary.stem, _named(value["name"]), Run.from_json(value["run"]), path, is_current)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _make_room(self, wanted: int) -> None:
        """Delete the oldest runs: this visitor's beyond their number, and anyone's beyond the bytes."""
        now = time.time()
        everyone = []
        for path in self._root.glob("*/*.pickle"):
            with suppress(OSError):
                about = path.stat()
                everyone.append((about.st_mtime, about.st_size, path))
        everyone.sort()
        own_files = [path for _, _, path in everyone if path.parent == self._folder]
        gone = {path for used, _, path in everyone if now - used > self._bounds.days * _DAY}
        gone.update(own_files[: max(0, len(own_files) + 1 - self._bounds.runs)])
        total = wanted + sum(size for _, size, path in everyone if path not in gone)
        for _, size, path in everyone:
            if total <= self._bounds.total_bytes:
                break
            if path not in gone:
                gone.add(path)
                total -= size
        for path in gone:
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _named(text: object) -> str:
    one_line = " ".join(str(text).split())
    return "".join(character for character in one_line if character.isprintable())[:_LONGEST_NAME] or "run"
