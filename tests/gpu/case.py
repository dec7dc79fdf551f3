"""One thing to be found out, and the process that finds it out: `python -m tests.gpu.case`, started by `started`.

It imports everything first and waits for the word `go`, so that the next case's imports, which take longer than many
a case, happen while the one before it still has the GPU.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.machine import facts
from tests.gpu.results import Results

_LAST_FRAMES = 6


@dataclass(frozen=True)
class Case:
    part: str
    name: str
    """Also the name of its files."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Plain values only: they travel to the process as JSON and stand in the result."""
    seconds: float = 15.0
    """About how long it takes, to see whether there is time for it."""
    gib: float = 0.0
    """About how much of the card it needs, to see whether it fits; the result has the real figure."""
    environment: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    """Beside torch and numpy."""

    @property
    def id(self) -> str:
        return f"{self.part}/{self.name}"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Case:
        return cls(**{**value, "libraries": tuple(value["libraries"])})


def order_of(case: Case, out: Path, known: Mapping[str, str]) -> str:
    return json.dumps({"case": asdict(case), "out": str(out), "known": dict(known)})


def answer(case: Case, out: Path, known: Mapping[str, str]) -> dict[str, Any]:
    """Its result, or why there is none, with everything that is needed to get the same again."""
    module = importlib.import_module(f"tests.gpu.{case.part.replace('-', '_')}")
    began = time.perf_counter()
    found: dict[str, Any] = {"part": case.part, "name": case.name, "arguments": dict(case.arguments)}
    try:
        found["result"] = module.run(case, out)
    except Exception as error:
        frames = traceback.format_tb(error.__traceback__)[-_LAST_FRAMES:]
        found["failed"] = f"{type(error).__name__}: {error}"
        found["where"] = "".join(frames)
    return {
        **found,
        "took_seconds": round(time.perf_counter() - began, 3),
        "command": f"python -m tests.gpu -o OUT --only {case.part} --case {case.name}",
        "environment": dict(case.environment),
        "machine": {**facts(), **known},
    }


def main() -> None:
    order = json.loads(sys.argv[1])
    case = Case.from_json(order["case"])
    importlib.import_module(f"tests.gpu.{case.part.replace('-', '_')}").prepare()
    if sys.stdin.readline().strip() != "go":
        return
    threading.Thread(target=_end_with_whoever_started, daemon=True).start()
    Results(Path(order["out"])).write(answer(case, Path(order["out"]), order["known"]))


def _end_with_whoever_started() -> None:
    """Past `sys.stdin`, whose lock a thread that waits would still hold when the process wants to end."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
