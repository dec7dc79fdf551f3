"""Which rank a file is of: as the file says, else by its name, else by a folder's name above it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memviz.ranks.places import natural
from memviz.ranks.row import FailedFile, RankRow, Reduced

_RANK = re.compile(r"(?<![a-z])(?<!local[-_])(?:global[_-]?)?rank[-_. =]?(\d{1,9})(?!\d)", re.IGNORECASE)
_OTHER = re.compile(r"(?<![a-z])(?:gpu|device|worker|proc|local[_-]?rank|r)[-_. =]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NODE = re.compile(r"(?<![a-z])(?:node|host)[-_. =]?(\d{1,9})(?!\d)", re.IGNORECASE)
_PARTS = re.compile(r"\d+")
_TYPES = re.compile(r"(?<![a-z])(?:bf|fp|tf|int|uint|float|bfloat)(?:4|8|16|32|64)(?![0-9])", re.IGNORECASE)
"""Runs are named by the type that they compute in: `bf16` is no rank."""
_LEVELS = 3
"""The file's own name and the folders above it that are looked at."""
_NOT_SAID = "Neither its name nor the file itself says which rank it is of. Name the files by rank, as in rank0.pickle."
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


def rank_in_name(name: str) -> int | None:
    """Only where a word says so: `rank3`, `gpu3`. Of a single file, any other number may be anything."""
    return _after_a_word(name)


def once_more(number: int, taken: str) -> str:
    return f"It is rank {number} once more; {_name(taken)} is taken."


def _left_out(row: RankRow, reason: str) -> FailedFile:
    return FailedFile(row.place, reason, row.etag, row.file_bytes)


def numbers_in(places: Sequence[str]) -> dict[str, int | None]:
    """`rank12` wherever it stands, else `gpu12` and the like, else the one number in which the names differ.

    Of several machines that each count their own GPUs from 0, `gpu12` is no rank.
    """
    told = {place: _after_a_word(place) for place in places}
    local = _counted_by_machine(places)
    rest = [place for place in places if told[place] is None]
    differing = _differing([_stem(place) for place in rest])
    for place in rest:
        told[place] = _plain(_stem(place), differing)
    return {**told, **dict.fromkeys(local)}


def _counted_by_machine(places: Sequence[str]) -> list[str]:
    """Those with a machine's number and a GPU's, where two machines have the same GPU."""
    machines: dict[int, set[int]] = {}
    found = []
    for place in places:
        machine, number = _hit(_NODE, _parts(place)), _hit(_OTHER, _parts(place)[:1])
        if machine is not None and number is not None and _hit(_RANK, _parts(place)) is None:
            found.append(place)
            machines.setdefault(number, set()).add(machine)
    return found if any(len(several) > 1 for several in machines.values()) else []


def _after_a_word(place: str) -> int | None:
    parts = _parts(place)
    number = _hit(_RANK, parts)
    return number if number is not None else _hit(_OTHER, parts[:1])


def _parts(place: str) -> list[str]:
    """The file's own name goes first, then its folders, the nearest first."""
    return place.replace("\\", "/").split("/")[: -_LEVELS - 1 : -1]


def _hit(pattern: re.Pattern[str], parts: Sequence[str]) -> int | None:
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
    """Of a name without its endings: `.7z` and `.mp3` are no ranks."""
    stem = re.sub(r"(\.(pickle|pkl|json|gz|bin|pt|snapshot))+$", "", _name(place), flags=re.IGNORECASE)
    return _TYPES.sub("", stem)


def _name(place: str) -> str:
    return place.replace("\\", "/").rpartition("/")[2]
