"""Comparisons with recordings that the predictor ships: `python -m tests.truth.held_against` writes them.

Each has the recorded and predicted peaks of a recording, and its families of operators.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from memviz.predictor.accuracy import DATA, MeasuredPeak, measured_peaks
from memviz.predictor.rules import NOT_COUNTED, all_families, families_of
from tests.truth.comparison import compare
from tests.truth.programs import CUT_SHORT
from tests.truth.recordings import recordings

RECORDINGS = "recordings"
README = Path(__file__).parent.parent.parent / "README.md"
BEGIN, END = "<!-- held: begin -->\n", "<!-- held: end -->"
_MEASURES: dict[str, Callable[[MeasuredPeak], tuple[int, int] | None]] = {
    "live": lambda one: one.live,
    "allocated": lambda one: one.allocated,
    "reserved": lambda one: one.reserved,
}


def row(name: str) -> dict[str, Any]:
    result = compare(name)
    recorded, truth, told = result.recording, result.recording.peaks, result.predicted
    return {
        "name": name,
        "source": recorded.source.split()[0].removeprefix("github.com/"),
        "whole": name not in CUT_SHORT,
        "card": recorded.card,
        "torch": ".".join(map(str, recorded.release)),
        "class": "training" if result.trains else "inference",
        "families": sorted(families_of(result.operators)),
        "live": [truth.live, told.live],
        "allocated": [truth.allocated, told.allocated],
        "reserved": [truth.reserved, told.reserved],
    }


def write(part: str, rows: list[dict[str, Any]]) -> None:
    """The other part stays."""
    known = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    known[part] = rows
    lines = ["{"]
    for number, (name, items) in enumerate(sorted(known.items())):
        lines.append(f"  {json.dumps(name)}: [")
        lines += [f"    {json.dumps(item)}{',' if at + 1 < len(items) else ''}" for at, item in enumerate(items)]
        lines.append("  ]," if number + 1 < len(known) else "  ]")
    DATA.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")


def readme_table() -> str:
    """Return the README's table of the shipped comparisons."""
    recorded = [one for one in measured_peaks() if not one.is_published]
    published = [one for one in measured_peaks() if one.is_published]
    lines = ["| compared with | peaks | live | allocated | reserved | command |", "|---|---|---|---|---|---|"]
    for kind, words in (("inference", "recorded forward passes"), ("training", "recorded training steps")):
        rows = [one for one in recorded if one.kind == kind]
        lines.append(f"| {words} | {len(rows)} | {' | '.join(_cells(rows))} | `python -m tests.truth` |")
    if published:
        words = "published peaks of language models, training"
        lines.append(
            f"| {words} | {len(published)} | {' | '.join(_cells(published))} | `python -m tests.benchmarks.published` |"
        )
    covered = frozenset().union(*(one.families for one in recorded))
    in_tables = frozenset().union(*(one.families for one in published)) - covered
    nowhere = all_families() - covered - in_tables - NOT_COUNTED.keys()
    lines += ["", f"In public tables, not in recordings: {_listed(in_tables)}. In neither: {_listed(nowhere)}."]
    lines += [f"Not counted: {_listed(NOT_COUNTED.values())}.", ""]
    return "\n".join(lines)


def _cells(rows: Sequence[MeasuredPeak]) -> list[str]:
    return [_cell([pair for one in rows if (pair := measure(one)) is not None]) for measure in _MEASURES.values()]


def _cell(pairs: Sequence[tuple[int, int]]) -> str:
    if not pairs:
        return "–"
    errors = sorted(100 * abs(predicted - measured) / measured for measured, predicted in pairs)
    exact = sum(error == 0 for error in errors)
    if exact == len(errors):
        return "all exact"
    worst = f"worst {errors[-1]:.2f} %"
    return f"{exact} exact, {worst}" if exact else f"median {errors[len(errors) // 2]:.2f} %, {worst}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def write_readme() -> None:
    text = README.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    measured_peaks.cache_clear()
    README.write_text(f"{before}{readme_table()}{after}", encoding="utf-8")


if __name__ == "__main__":
    write(RECORDINGS, [row(name) for name in recordings()])
    write_readme()
