"""A file of any age -> Trace."""

from __future__ import annotations

import pickle
from pathlib import Path

from memviz.trace.formats.torch_snapshot import read_snapshot
from memviz.trace.intern import Interner
from memviz.trace.model import About, Trace


def load_trace(path: str | Path) -> Trace:
    path = Path(path)
    return read_snapshot(pickle.loads(path.read_bytes()), About("measured", source=path.name), Interner())
