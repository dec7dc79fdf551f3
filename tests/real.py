"""Real snapshots next to the checkout: other people's programs on real GPUs. They are never copied here."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memviz.trace.load import load_trace
from memviz.trace.model import Trace

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "snapshots"

_ABSENT = "the folder of real snapshots is not beside this checkout"
requires_real = pytest.mark.skipif(not FOLDER.is_dir(), reason=_ABSENT)


def real_files() -> list[Path]:
    return sorted(FOLDER.glob("*.pickle"))


def slow_if_large(paths: Iterable[Path], name: str = "stem") -> list[Any]:
    """Make each file a parameter, slow where reading and replaying it takes long."""
    return [
        pytest.param(path, id=getattr(path, name), marks=[pytest.mark.slow] * (path.stat().st_size > 1 << 20))
        for path in paths
    ]


each_real_file = pytest.mark.parametrize("path", slow_if_large(real_files()))


@cache
def read_once(path: Path) -> Trace:
    """The trace of a file that stays, for all tests of a process: reading it takes longer than most of them."""
    return load_trace(path)


def expected() -> dict[str, Any]:
    """Independently counted figures, by file name."""
    path = FOLDER / "expected.json"
    return json.loads(path.read_text()) if path.exists() else {}
