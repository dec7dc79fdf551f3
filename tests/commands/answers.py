"""Answers of commands in a second process, and the small recording that most tests use."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from tests.second_process import memviz
from tests.traces import alloc, frame, free, snapshot

EVENTS = [
    alloc(0, 1000, time_us=10, frames=[frame("build", "/home/ada/model.py", 3)]),
    alloc(4096, 3000, time_us=20, frames=[frame("forward", "/home/ada/model.py", 9)]),
    *free(4096, 3000, time_us=30),
    alloc(8192, 500, time_us=40, frames=[frame("forward", "/home/ada/model.py", 9)]),
]


def answer(*arguments: object) -> Any:
    done = memviz(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def written(tmp_path: Path, name: str, events: list[Any], **more: Any) -> Path:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(snapshot(events, **more)))
    return path
