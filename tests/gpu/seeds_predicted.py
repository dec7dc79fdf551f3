"""The published tables predicted twice: for the card and release they were measured on, and for this one. Needs no
GPU, but results of `seeds`, which say which card that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gpu.case import Case
from tests.gpu.machine import card_of, release_of
from tests.gpu.results import Results

NEEDS_GPU = False
AT_ONCE = 4


def cases(results: Results, *, small: bool) -> list[Case]:
    done = [each for each in results.of("seeds") if "rows" in each.get("result", {})]
    return [
        Case("seeds-predicted", each["arguments"]["seed"], {"of": each["name"]}, 150 if _is_long(each) else 40)
        for each in done
    ]


def _is_long(found: dict[str, Any]) -> bool:
    return bool(found["arguments"]["seed"] == "checkpointing")


def prepare() -> None:
    import memviz.runner.published  # noqa: F401


def run(case: Case, out: Path) -> dict[str, Any]:
    from tests.gpu.seeds import rows_of

    measured = Results(out).read("seeds", case.arguments["of"])
    assert measured is not None
    machine = measured["machine"]
    major, minor = release_of(machine).split(".")
    here = {"card": lambda: card_of(machine), "RELEASE": (int(major), int(minor))}
    return {
        "device": machine["device"],
        "as_published": rows_of(case.name),
        "here": rows_of(case.name, **here),
        "measured": measured["result"]["rows"],
    }
