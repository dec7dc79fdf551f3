"""What the map of ranks is given: a byte a cell, however many ranks there are."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from memviz.ranks.aligned import NOTHING, aligned
from memviz.ranks.mesh import by_mesh, mesh_of, mesh_text
from memviz.ranks.together import Ranks

_SHADES = 254
"""0 is a cell of which nothing is known."""
_MOST_CELLS = 700_000
_LONGEST = 40


def rank_map_value(job: Ranks, chosen: int | None = None) -> dict[str, Any]:
    """Rows in the order of the mesh, where all ranks say one, else by number."""
    ranks = by_mesh(job.ranks)
    table, highest = aligned(ranks), max(job.highest.row.peak_bytes, 1)
    known = table.live != NOTHING
    # Rounded to the nearest; whatever is live at all is told apart from nothing recorded.
    shades = np.where(known, 1 + (np.maximum(table.live, 0) * _SHADES + highest // 2) // highest, 0).astype(np.uint8)
    columns = table.columns
    while shades.size > _MOST_CELLS and columns % 2 == 0:
        columns //= 2
        shades = np.maximum(shades[:, ::2], shades[:, 1::2])
    group_of = {number: i for i, group in enumerate(job.groups) for number in group.ranks}
    return {
        "ranks": [rank.number for rank in ranks],
        "names": [f"{rank.number} {mesh_text(mesh_of(rank))}".strip()[:_LONGEST] for rank in ranks],
        "peaks": [rank.row.peak_bytes for rank in ranks],
        "groups": [group_of[rank.number] for rank in ranks],
        "outliers": [one.rank for one in job.outliers],
        "steps": [_step_name(number, name, place) for place, (number, name) in enumerate(table.steps)],
        "columns": columns,
        "highest": job.highest.row.peak_bytes,
        "chosen": chosen,
        "shades": base64.b64encode(shades.tobytes()).decode("ascii"),
        "label": f"Live bytes of {len(ranks)} ranks over their steps. Arrow keys walk the ranks, Enter chooses one.",
    }


def _step_name(number: int, name: str, place: int) -> str:
    if name:
        return name.replace("ProfilerStep#", "step ")[:_LONGEST]
    return "before" if not place else f"step {number}"
