"""A program recorded by torch's own means: history on, run, snapshot; its peaks as torch counts them beside it."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.programs import Program

_MOST_EVENTS = 500_000


def record(program: Program, path: Path, api: Any, device: Any, *, total: int, limit: int | None) -> dict[str, Any]:
    """`api` is torch.cuda, or what has its names; `limit` in bytes of a card of `total`."""
    at_the_end: list[dict[str, Any]] = []
    api.init()
    if limit is not None:
        api.set_per_process_memory_fraction(limit / total)
    run = program.begin(device)
    api.empty_cache()
    before = _counts(api)
    with _recording(api):
        api.reset_peak_memory_stats(0)
        ran_out, held = "", None
        try:
            held = run()
        except RuntimeError as error:
            if "OutOfMemory" not in type(error).__name__:
                raise
            ran_out = str(error)
            # What the error lets go of is still there while it is handled.
            at_the_end.append(api.memory._snapshot())
        api.synchronize()
        figures = {**_figures(api), "counted": _grown(before, _counts(api))}
        snapshot = at_the_end[0] if at_the_end else api.memory._snapshot()
        del held
    with gzip.open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    return {**figures, "ran_out": ran_out, "file": path.name, "fraction": None if limit is None else limit / total}


@contextmanager
def _recording(api: Any) -> Iterator[None]:
    api.memory._record_memory_history("all", context="all", stacks="python", max_entries=_MOST_EVENTS)
    try:
        yield
    finally:
        api.memory._record_memory_history(None)


def _figures(api: Any) -> dict[str, int]:
    figures = api.memory.memory_stats_as_nested_dict(0)
    return {f"peak_{name}_bytes": int(figures[f"{name}_bytes"]["all"]["peak"]) for name in _COUNTED}


_COUNTED = ("allocated", "reserved", "requested")


def _counts(api: Any) -> tuple[int, int]:
    every = api.memory.memory_stats_as_nested_dict(0).get("allocation", {}).get("all", {})
    return int(every.get("allocated", 0)), int(every.get("freed", 0))


def _grown(before: tuple[int, int], after: tuple[int, int]) -> dict[str, int]:
    """By torch's own figures; the history must hold as many events."""
    return {"allocs": after[0] - before[0], "frees": after[1] - before[1]}
