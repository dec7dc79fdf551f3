"""Coordinates of a rank on a mesh of given sizes, outermost axis first as in `init_device_mesh`.

`pp=2,dp=4` are 8 ranks of which 0 to 3 are the first stage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from memviz.errors import UsageError

_AXIS = re.compile(r"\s*([A-Za-z][A-Za-z_]{0,15})\s*=\s*([1-9]\d{0,6})\s*")


def sizes_of(mesh: str) -> dict[str, int]:
    axes = [_AXIS.fullmatch(part) for part in mesh.split(",")]
    sizes = {axis[1].lower(): int(axis[2]) for axis in axes if axis is not None}
    if len(sizes) != len(axes):
        raise UsageError(f"--mesh takes axes with their sizes, the outermost first, as in pp=2,dp=4; not {mesh}.")
    return sizes


def coordinates(rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the rank's position on every axis, in the same order."""
    left, places = rank, {}
    for axis in reversed(list(sizes)):
        left, places[axis] = divmod(left, sizes[axis])
    return {axis: places[axis] for axis in sizes}


def place_text(rank: int, sizes: Mapping[str, int]) -> str:
    """'pp=1,dp=2'; empty for a rank that such a mesh does not have."""
    if rank >= prod(sizes.values()):
        return ""
    return ",".join(f"{axis}={place}" for axis, place in coordinates(rank, sizes).items())
