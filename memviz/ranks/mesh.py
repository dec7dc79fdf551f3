"""Where a rank stands among the others: its pipeline stage, its data-parallel copy, as its file or its name says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memviz.ranks.numbers import Rank

_TOKEN = re.compile(r"(?<![A-Za-z])(pp|dp|tp|cp|ep|sp|mp|fsdp|hsdp)[-_=]?(\d{1,6})(?!\d)", re.IGNORECASE)
_SAID = re.compile(r"\s*([A-Za-z][A-Za-z_]{0,15})\s*=\s*(\d{1,6})\s*")
Mesh = tuple[tuple[str, int], ...]
"""Axes, the outermost first, each with the rank's place on it."""


def mesh_of(rank: Rank) -> Mesh:
    """Empty where nobody says it."""
    said = [_SAID.fullmatch(part) for part in rank.row.said_mesh.split(",")]
    if said and all(said):
        return tuple((match[1].lower(), int(match[2])) for match in said if match is not None)
    name = rank.row.place.replace("\\", "/").rpartition("/")[2]
    return tuple((axis.lower(), int(place)) for axis, place in _TOKEN.findall(name))


def mesh_text(mesh: Mesh) -> str:
    return " ".join(f"{axis}{place}" for axis, place in mesh)


def by_mesh(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Neighbours on the mesh beside each other; by number where not all say the same axes."""
    places = {rank.number: mesh_of(rank) for rank in ranks}
    axes = {tuple(axis for axis, _ in mesh) for mesh in places.values()}
    if len(axes) != 1 or axes == {()}:
        return tuple(sorted(ranks, key=lambda rank: rank.number))
    return tuple(sorted(ranks, key=lambda rank: (*(place for _, place in places[rank.number]), rank.number)))
