"""What the recorder and the predictor take for granted, asked of this GPU first: each answer beside what we expect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu.case import Case
from tests.gpu.checks import card, first, operators, recorder
from tests.gpu.checks.asked import Answers
from tests.gpu.results import Results

QUESTIONS: dict[str, Callable[[Path], Answers]] = {
    "start": first.start,
    "expandable": first.expandable,
    "counts": recorder.counts,
    "first-allocation": recorder.first_allocation,
    "command": recorder.command,
    "out-of-memory": recorder.out_of_memory,
    "drawn": first.drawn,
    "barely-fits": first.barely_fits,
    "dump-time": first.dump_time,
    "noise": first.noise,
    "card": card.card,
    "workspaces": card.workspaces,
    "attention": card.attention,
    "operators": operators.operators,
}

CASES = tuple(Case("check", name, {}, 8, 2) for name in QUESTIONS)


def run(case: Case, out: Path) -> dict[str, Any]:
    return {"answers": list(QUESTIONS[case.name](Results(out).folder_of("check")))}
