"""The published tables predicted twice: for the card and release they were measured on, and for the one of `seeds`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gpu.case import Case
from tests.gpu.machine import card_of, release_of
from tests.gpu.results import Results
from tests.gpu.seeds import TABLES, rows_of

CASES = tuple(
    Case("seeds-predicted", table.seed, seconds=table.seconds_predicted, needs_gpu=False, of=("seeds", of))
    for table, of in ((table, f"{table.seed}-peaks") for table in TABLES)
)


def run(case: Case, out: Path) -> dict[str, Any]:
    measured = case.result_in(Results(out))
    machine = measured["machine"]
    major, minor = release_of(machine).split(".")
    here = {"card": lambda: card_of(machine), "RELEASE": (int(major), int(minor))}
    return {
        "device": machine["device"],
        "as_published": rows_of(case.name),
        "here": rows_of(case.name, **here),
        "measured": measured["result"]["rows"],
    }
