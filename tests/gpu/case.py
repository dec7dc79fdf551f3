"""One thing to be found out, and the process that finds it out: `python -m tests.gpu.case`, begun by `process`."""

from __future__ import annotations

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
    """Disturbances torch and numpy."""
    small: bool = True
    """Whether it belongs to the short round."""
    needs_gpu: bool = True
    of: tuple[str, str] | None = None
    """Part and name of the case whose result it looks at."""

    @property
    def id(self) -> str:
        return f"{self.part}/{self.name}"

    def result_in(self, results: Results) -> dict[str, Any]:
        """All that stands in OUT about the case that this one looks at."""
        assert self.of is not None
        found = results.read(*self.of)
        assert found is not None, f"{'/'.join(self.of)} is not in OUT"
        return found


def order_of(case: Case, out: Path, known: Mapping[str, str]) -> str:
    return json.dumps({"case": asdict(case), "out": str(out), "known": dict(known)})


def answer(case: Case, out: Path, known: Mapping[str, str]) -> dict[str, Any]:
    """Its result, or why there is none, with everything that is needed to get the same again."""
    from tests.gpu.parts import PARTS

    began = time.perf_counter()
    found: dict[str, Any] = {"part": case.part, "name": case.name, "arguments": dict(case.arguments)}
    try:
        found["result"] = PARTS[case.part].run(case, out)
    except Exception as error:
        frames = traceback.format_tb(error.__traceback__)[-_LAST_FRAMES:]
        found["failed"] = f"{type(error).__name__}: {error}"
        found["where"] = "".join(frames)
    return {
        **found,
        "took_seconds": round(time.perf_counter() - began, 3),
        "command": f"python -m tests.gpu --out OUT -k {case.id}",
        "environment": dict(case.environment),
        "machine": {**facts(), **known},
    }


def main() -> None:
    """Imports first and waits for its order, while the case before it still has the GPU."""
    from memviz.runner.jobs.worker import warm_up

    warm_up()
    line = sys.stdin.readline()
    if not line:
        return
    order = json.loads(line)
    case = Case(**{**order["case"], "of": order["case"]["of"] and tuple(order["case"]["of"])})
    results = Results(Path(order["out"]))
    with results.log_of(case.part, case.name).open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    threading.Thread(target=_end_with_whoever_began_it, daemon=True).start()
    results.write(answer(case, results.folder, order["known"]))


def _end_with_whoever_began_it() -> None:
    """Past `sys.stdin`, whose lock a thread that waits would still hold when the process wants to end."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
