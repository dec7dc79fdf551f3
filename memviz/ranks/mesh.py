"""Where a rank stands among the others: its pipeline stage, its data-parallel copy, as its file or its name says.

Where neither does, the sizes of the mesh say it: given with the question, or in a `mesh.json` beside the files, such as
`{"pp": 8, "dp": 128}`, the outermost axis first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from memviz.errors import UsageError
from memviz.mesh import place_text, sizes_of
from memviz.ranks.numbers import Rank, numbers_in

_TOKEN = re.compile(r"(?<![A-Za-z])(pp|dp|tp|cp|ep|sp|mp|fsdp|hsdp)[-_=]?(\d{1,6})(?!\d)", re.IGNORECASE)
_SAID = re.compile(r"\s*([A-Za-z][A-Za-z_]{0,15})\s*=\s*(\d{1,6})\s*")
FILE = "mesh.json"
_LONGEST = 1 << 16
Mesh = tuple[tuple[str, int], ...]
"""Axes, the outermost first, each with the rank's place on it."""


def mesh_of(rank: Rank) -> Mesh:
    """Empty where nobody says it."""
    said = [_SAID.fullmatch(part) for part in rank.row.said_mesh.split(",")]
    if said and all(said):
        return tuple((match[1].lower(), int(match[2])) for match in said if match is not None)
    return _named(rank.row.place)


def _named(place: str) -> Mesh:
    name = place.replace("\\", "/").rpartition("/")[2]
    return tuple((axis.lower(), int(number)) for axis, number in _TOKEN.findall(name))


def told_apart(ranks: Sequence[Rank], sizes: Mapping[str, int]) -> tuple[Rank, ...]:
    """With their places on a mesh of these sizes, where they say none themselves."""
    return tuple(
        rank if mesh_of(rank) else replace(rank, row=replace(rank.row, said_mesh=place_text(rank.number, sizes)))
        for rank in ranks
    )


def check_room(places: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Before anything is read: a mesh that is too small says nothing of some ranks."""
    numbers = (number for place, number in numbers_in(places).items() if number is not None and not _named(place))
    highest, room = max(numbers, default=0), prod(sizes.values())
    if sizes and highest >= room:
        mesh = ",".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UsageError(f"A mesh of {mesh} has {room:,} places, and there is a rank {highest}. Name all its axes.")


def sizes_beside(places: Sequence[str]) -> dict[str, int]:
    """Of the `mesh.json` in a folder that is asked about; empty where there is none."""
    files = (Path(place) / FILE for place in places if "://" not in place)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return {}
    try:
        axes = json.loads(file.read_bytes()[:_LONGEST])
        return sizes_of(",".join(f"{axis}={size}" for axis, size in axes.items()))
    except (OSError, ValueError, AttributeError, RecursionError, UsageError):
        raise UsageError(f'{file} is no mesh: axes with their sizes, such as {{"pp": 8, "dp": 128}}.') from None


def mesh_text(mesh: Mesh) -> str:
    return " ".join(f"{axis}{place}" for axis, place in mesh)


def by_mesh(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Neighbours on the mesh beside each other; by number where not all say the same axes."""
    places = {rank.number: mesh_of(rank) for rank in ranks}
    axes = {tuple(axis for axis, _ in mesh) for mesh in places.values()}
    if len(axes) != 1 or axes == {()}:
        return tuple(sorted(ranks, key=lambda rank: rank.number))
    return tuple(sorted(ranks, key=lambda rank: (*(place for _, place in places[rank.number]), rank.number)))
