"""Rank numbers: which rank a file is of, its position on the mesh, and which ranks have no file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from memviz.errors import UsageError
from memviz.mesh import place_text, sizes_of
from memviz.ranks.places import natural
from memviz.ranks.row import FailedFile, RankRow, Reduced

_RANK = re.compile(r"(?<![a-z])(?<!local[-_])(?:global[_-]?)?rank[-_. =]?(\d{1,9})(?!\d)", re.IGNORECASE)
_OTHER = re.compile(r"(?<![a-z])(?:gpu|device|worker|proc|local[_-]?rank|r)[-_. =]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NODE = re.compile(r"(?<![a-z])(?:node|host)[-_. =]?(\d{1,9})(?!\d)", re.IGNORECASE)
_PARTS = re.compile(r"\d+")
_TYPES = re.compile(r"(?<![a-z])(?:bf|fp|tf|int|uint|float|bfloat)(?:4|8|16|32|64)(?![0-9])", re.IGNORECASE)
"""Runs are named by the type that they compute in: `bf16` is no rank."""
_TIMES = re.compile(r"(?<!\d)(?:\d{4}-\d\d-\d\d(?:[-_T]\d\d[-:.]\d\d(?:[-:.]\d\d)?)?|\d{8}[-_T]\d{4,6})(?!\d)")
"""Ranks of one job may be written in different minutes."""
_LEVELS = 3
"""The file's own name and the folders above it that are looked at."""
_NOT_SAID = "Its rank is unknown. Name the files by rank, as in rank0.pickle."
_LONGEST = 9
"""Digits of a rank; longer ones are times and process ids."""


@dataclass(frozen=True)
class Rank:
    number: int
    row: RankRow


def numbered(reduced: Iterable[Reduced]) -> tuple[tuple[Rank, ...], tuple[FailedFile, ...]]:
    """Ranks by number, one file of each; and every file that is none of them, with the reason."""
    rows = sorted(reduced, key=lambda one: natural(one.place))
    failed = [one for one in rows if isinstance(one, FailedFile)]
    by_name = numbers_in([one.place for one in rows])
    ranks: dict[int, RankRow] = {}
    # A moment beside the end has a word more in its name (`run.rank0.oom.pickle`), so the shortest goes first.
    for row in sorted((one for one in rows if isinstance(one, RankRow)), key=lambda one: len(one.place)):
        number = row.said_rank if row.said_rank is not None else by_name[row.place]
        if number is None:
            failed.append(_left_out(row, _NOT_SAID))
        elif number in ranks:
            failed.append(_left_out(row, once_more(number, ranks[number].place)))
        else:
            ranks[number] = row
    in_order = tuple(Rank(number, ranks[number]) for number in sorted(ranks))
    return in_order, tuple(sorted(failed, key=lambda one: natural(one.place)))


def once_more(number: int, taken: str) -> str:
    return f"A second file of rank {number}; {_name(taken)} is used."


def _left_out(row: RankRow, reason: str) -> FailedFile:
    return FailedFile(row.place, reason, row.etag, row.file_bytes)


def numbers_in(places: Sequence[str]) -> dict[str, int | None]:
    """`rank12` wherever it stands, else `gpu12` and the like, else the one number in which the names differ.

    Of several machines that each count their own GPUs from 0, `gpu12` is no rank.
    """
    numbers = {place: rank_in_name(place) for place in places}
    local = _places_numbered_per_machine(places)
    rest = [place for place in places if numbers[place] is None]
    differing = _differing([_stem(place) for place in rest])
    for place in rest:
        numbers[place] = _plain(_stem(place), differing)
    return {**numbers, **dict.fromkeys(local)}


def _places_numbered_per_machine(places: Sequence[str]) -> list[str]:
    """Those with a machine's number and a GPU's, where two machines have the same GPU."""
    machines: dict[int, set[int]] = {}
    found = []
    for place in places:
        machine, number = _nearest_number(_NODE, _parts(place)), _nearest_number(_OTHER, _parts(place)[:1])
        if machine is not None and number is not None and _nearest_number(_RANK, _parts(place)) is None:
            found.append(place)
            machines.setdefault(number, set()).add(machine)
    return found if any(len(several) > 1 for several in machines.values()) else []


def rank_in_name(place: str) -> int | None:
    """Only where a word says so: `rank3`, `gpu3`. Of a single file, any other number may be anything."""
    parts = _parts(place)
    number = _nearest_number(_RANK, parts)
    return number if number is not None else _nearest_number(_OTHER, parts[:1])


def _parts(place: str) -> list[str]:
    """The file's own name goes first, then its folders, the nearest first."""
    return place.replace("\\", "/").split("/")[: -_LEVELS - 1 : -1]


def _nearest_number(pattern: re.Pattern[str], parts: Sequence[str]) -> int | None:
    for part in parts:
        hits = pattern.findall(part)
        if hits:
            return int(hits[-1])
    return None


def _differing(stems: Sequence[str]) -> int | None:
    """Which of the numbers in them, where they are alike but for one."""
    if len({_PARTS.sub("#", stem) for stem in stems}) != 1:
        return None
    columns = list(zip(*(_PARTS.findall(stem) for stem in stems), strict=True))
    varying = [place for place, values in enumerate(columns) if len(set(values)) > 1]
    return varying[0] if len(varying) == 1 else None


def _plain(stem: str, differing: int | None) -> int | None:
    numbers = _PARTS.findall(stem)
    if differing is not None:
        number = numbers[differing]
    elif len(numbers) == 1:
        number = numbers[0]
    else:
        return None
    return int(number) if len(number) <= _LONGEST else None


def _stem(place: str) -> str:
    """Return the file name without its endings, so that `.7z` and `.mp3` are not taken for ranks."""
    stem = re.sub(r"(\.(pickle|pkl|json|gz|bin|pt|snapshot))+$", "", _name(place), flags=re.IGNORECASE)
    return _TYPES.sub("", _TIMES.sub("", stem))


def _name(place: str) -> str:
    return place.replace("\\", "/").rpartition("/")[2]


Span = tuple[int, int]
"""First and last."""


def missing(ranks: Sequence[Rank], failed: Sequence[FailedFile]) -> tuple[Span, ...]:
    """A file that cannot be read is there all the same. Numbers that nobody calls ranks may begin anywhere, and be
    those of processes: more gaps than files are no gaps."""
    by_name = numbers_in([*(rank.row.place for rank in ranks), *(one.place for one in failed)])
    told = (by_name[one.place] for one in failed)
    there = sorted({rank.number for rank in ranks} | {number for number in told if number is not None})
    if all(rank.row.said_rank is not None or rank_in_name(rank.row.place) is not None for rank in ranks):
        return tuple(_gaps(there))
    inner = tuple(_gaps(there, there[0]))
    return inner if sum(last - first + 1 for first, last in inner) <= len(there) else ()


def _gaps(numbers: Iterable[int], first: int = 0) -> Iterable[Span]:
    expected = first
    for number in numbers:
        if number > expected:
            yield expected, number - 1
        expected = number + 1


_TOKEN = re.compile(r"(?<![A-Za-z])(pp|dp|tp|cp|ep|sp|mp|fsdp|hsdp)[-_=]?(\d{1,6})(?!\d)", re.IGNORECASE)
_SAID = re.compile(r"\s*([A-Za-z][A-Za-z_]{0,15})\s*=\s*(\d{1,6})\s*")
FILE = "mesh.json"
_LONGEST_MESH = 1 << 16
Mesh = tuple[tuple[str, int], ...]
"""Axes, the outermost first, each with the rank's place on it."""


def mesh_of(rank: Rank) -> Mesh:
    """Empty where nobody says it."""
    said = [_SAID.fullmatch(part) for part in rank.row.said_mesh.split(",")]
    if said and all(said):
        return tuple((match[1].lower(), int(match[2])) for match in said if match is not None)
    return _mesh_in_name(rank.row.place)


def _mesh_in_name(place: str) -> Mesh:
    return tuple((axis.lower(), int(number)) for axis, number in _TOKEN.findall(_name(place)))


def with_mesh_labels(ranks: Sequence[Rank], sizes: Mapping[str, int]) -> tuple[Rank, ...]:
    """With their places on a mesh of these sizes, where they say none themselves."""
    return tuple(
        rank if mesh_of(rank) else replace(rank, row=replace(rank.row, said_mesh=place_text(rank.number, sizes)))
        for rank in ranks
    )


def check_room(places: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Before anything is read: a mesh that is too small says nothing of some ranks."""
    numbers = (
        number for place, number in numbers_in(places).items() if number is not None and not _mesh_in_name(place)
    )
    highest, room = max(numbers, default=0), prod(sizes.values())
    if sizes and highest >= room:
        raise UsageError(
            f"A mesh of {sizes_text(sizes)} has {room:,} places, but there is a rank {highest}. Name all axes."
        )


def sizes_text(sizes: Mapping[str, Any]) -> str:
    """'pp=8,dp=128', as `sizes_of` reads it."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def mesh_sizes_in_folders(places: Sequence[str]) -> dict[str, int]:
    """Read the axis sizes of a `mesh.json` in one of the folders; empty if there is none."""
    files = (Path(place) / FILE for place in places if "://" not in place)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return {}
    try:
        axes = json.loads(file.read_bytes()[:_LONGEST_MESH])
        return sizes_of(sizes_text(axes))
    except (OSError, ValueError, AttributeError, RecursionError, UsageError):
        raise UsageError(
            f'{file} is not a mesh. Write axes with their sizes, such as {{"pp": 8, "dp": 128}}.'
        ) from None


def rank_label(rank: Rank, given: str | None = None) -> str:
    """Return the rank's coordinates on the mesh, and the name that a visitor gave it."""
    return " ".join(filter(None, (" ".join(f"{axis}{place}" for axis, place in mesh_of(rank)), given)))


def by_mesh(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Neighbours on the mesh beside each other; by number where not all say the same axes."""
    places = {rank.number: mesh_of(rank) for rank in ranks}
    axes = {tuple(axis for axis, _ in mesh) for mesh in places.values()}
    if len(axes) != 1 or axes == {()}:
        return tuple(sorted(ranks, key=lambda rank: rank.number))
    return tuple(sorted(ranks, key=lambda rank: (*(place for _, place in places[rank.number]), rank.number)))
