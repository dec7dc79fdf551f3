"""Which rank a file is of: as the file says, else by its name, else by a folder's name above it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memviz.ranks.places import natural
from memviz.ranks.row import FailedFile, RankRow, Reduced

_RANK = re.compile(r"(?<![a-z])(?:global[_-]?)?rank[-_. =]?(\d{1,9})(?!\d)", re.IGNORECASE)
_OTHER = re.compile(r"(?<![a-z])(?:gpu|device|worker|proc|r)[-_. =]?(\d{1,9})(?!\d)", re.IGNORECASE)
_PARTS = re.compile(r"\d+")
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
            failed.append(_left_out(row, "Its name has no rank's number, and the file itself does not say it."))
        elif number in ranks:
            failed.append(_left_out(row, f"It is rank {number} once more; {_name(ranks[number].place)} is taken."))
        else:
            ranks[number] = row
    in_order = tuple(Rank(number, ranks[number]) for number in sorted(ranks))
    return in_order, tuple(sorted(failed, key=lambda one: natural(one.place)))


def rank_in_name(name: str) -> int | None:
    """Only where a word says so: `rank3`, `gpu3`. Of a single file, any other number may be anything."""
    return _after_a_word(name)


def _left_out(row: RankRow, reason: str) -> FailedFile:
    return FailedFile(row.place, reason, row.etag, row.file_bytes)


def numbers_in(places: Sequence[str]) -> dict[str, int | None]:
    """`rank12` wherever it stands, else `gpu12` and the like, else the one number in which the names differ."""
    told = {place: _after_a_word(place) for place in places}
    rest = [place for place in places if told[place] is None]
    differing = _differing([_stem(place) for place in rest])
    for place in rest:
        told[place] = _plain(_stem(place), differing)
    return told


def _after_a_word(place: str) -> int | None:
    """The file's own name goes first, then its folders, the nearest first."""
    parts = list(reversed(place.replace("\\", "/").split("/")))
    for pattern, among in ((_RANK, parts[:3]), (_OTHER, parts[:1])):
        for part in among:
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
    return re.sub(r"(\.(pickle|pkl|json|gz|bin|pt|snapshot))+$", "", _name(place), flags=re.IGNORECASE)


def _name(place: str) -> str:
    return place.replace("\\", "/").rpartition("/")[2]
