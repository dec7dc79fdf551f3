"""Which rank of how many this process is, as torchrun says it in the environment, and whether it
is one of those that are to write their recording.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from memviz.errors import UsageError
from memviz.mesh import coordinates, sizes_of
from memviz.trace.formats.own_labels import MESH_FACT, RANK_FACT, WORLD_FACT

_RANKS = ("RANK", "LOCAL_RANK")
_WORLDS = ("WORLD_SIZE",)
_STAGES = ("pp", "pipeline", "stage")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True)
class RankPosition:
    rank: int
    world: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Its coordinate on every axis, the outermost first."""

    @property
    def words(self) -> tuple[str, ...]:
        """As they stand in its file's name: 'rank5', 'pp1', 'dp1'."""
        return f"rank{self.rank}", *(f"{axis}{place}" for axis, place in self.mesh.items())

    @property
    def name(self) -> str:
        of = "" if self.world is None else f" of {self.world}"
        where = ", ".join(self.words[1:])
        return f"Rank {self.rank}{of}{f' ({where})' if where else ''}"

    @property
    def facts(self) -> dict[str, str]:
        """For the file itself: its name may be changed."""
        mesh = ",".join(f"{axis}={place}" for axis, place in self.mesh.items())
        world = {} if self.world is None else {WORLD_FACT: str(self.world)}
        return {RANK_FACT: str(self.rank), **world, **({MESH_FACT: mesh} if mesh else {})}

    @property
    def begins_a_stage(self) -> bool:
        """The first of its pipeline's stage."""
        return all(place == 0 for axis, place in self.mesh.items() if axis not in _STAGES)


def rank_position(mesh: str = "", environment: Mapping[str, str] = os.environ) -> RankPosition | None:
    """None where this process is one by itself."""
    rank, world = _number(environment, _RANKS), _number(environment, _WORLDS)
    if rank is None:
        return None
    sizes = sizes_of(mesh) if mesh else {}
    if sizes and world is not None and prod(sizes.values()) != world:
        raise UsageError(f"--mesh {mesh} has {prod(sizes.values())} ranks, and there are {world}.")
    return RankPosition(rank, world, coordinates(rank, sizes))


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    texts = (environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), None)


def is_chosen(position: RankPosition | None, ranks: str) -> bool:
    """By `--ranks`: numbers, spans (0-3), first, last, stage (the first of every stage) or all."""
    words = [word.strip().lower() for word in ranks.split(",")]
    if position is None:
        return True
    return any([_names(word, position, ranks) for word in words])


def _names(word: str, position: RankPosition, ranks: str) -> bool:
    if word in ("all", "first"):
        return word == "all" or position.rank == 0
    if word == "last":
        if position.world is None:
            raise UsageError("Which rank is the last is not said: WORLD_SIZE is not set.")
        return position.rank == position.world - 1
    if word == "stage":
        if not set(_STAGES) & set(position.mesh):
            raise UsageError("Which ranks begin a stage is told by --mesh with an axis pp, as in --mesh pp=2,dp=4.")
        return position.begins_a_stage
    span = _SPAN.fullmatch(word)
    if span is None:
        raise UsageError(f"--ranks takes numbers, spans (0-3), first, last, stage or all; not {ranks}.")
    return int(span[1]) <= position.rank <= int(span[2] or span[1])
