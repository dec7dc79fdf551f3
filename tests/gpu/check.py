"""What the recorder and the predictor take for granted, asked of this GPU first: each answer beside what we expect."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.gpu.case import Case
from tests.gpu.results import Results

NEEDS_GPU = True
AT_ONCE = 1
ABOUT = {
    "start": "tests.gpu.checks.first",
    "expandable": "tests.gpu.checks.first",
    "counts": "tests.gpu.checks.recorder",
    "first-allocation": "tests.gpu.checks.recorder",
    "command": "tests.gpu.checks.recorder",
    "out-of-memory": "tests.gpu.checks.recorder",
    "drawn": "tests.gpu.checks.first",
    "barely-fits": "tests.gpu.checks.first",
    "dump-time": "tests.gpu.checks.first",
    "noise": "tests.gpu.checks.first",
    "card": "tests.gpu.checks.card",
    "workspaces": "tests.gpu.checks.card",
    "attention": "tests.gpu.checks.card",
    "operators": "tests.gpu.checks.operators",
}
"""Where each is answered, in a function of its name."""

Answers = Iterator[dict[str, Any]]


def cases(_results: Results, *, small: bool) -> list[Case]:
    return [Case("check", name, {}, 8, 2) for name in ABOUT]


def prepare() -> None:
    """Nothing that could start CUDA, or import what would hide that something else does."""
    import torch  # noqa: F401


def run(case: Case, out: Path) -> dict[str, Any]:
    ask: Callable[[Path], Answers] = getattr(importlib.import_module(ABOUT[case.name]), case.name.replace("-", "_"))
    answers = list(ask(Results(out).folder_of("check")))
    return {"answers": answers, "as_expected": all(each["ok"] for each in answers)}


def asked(what: str, expected: Any, got: Any, *, ok: bool | None = None) -> dict[str, Any]:
    return {"what": what, "expected": expected, "got": got, "ok": expected == got if ok is None else ok}
