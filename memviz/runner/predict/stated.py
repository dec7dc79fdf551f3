"""What was taken for granted where a program asked and nobody computes: each line's notes once, however often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from memviz.units import count_text

_NUMBER = "{number}"
_MOST_PLACES = 3
"""That one sentence names."""


@dataclass(frozen=True)
class Stated:
    """Something that a program asked and nobody computes, with the answer that it got."""

    where: str
    """The program's line, as 'train.py:12'; empty for torch's own code."""
    kind: str
    """What is taken for granted, with `{number}` where it says which number."""
    least: float | None = None
    most: float | None = None
    """The numbers that were said, from the least to the most."""
    times: int = 1

    @property
    def what(self) -> str:
        number = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return self.kind.replace(_NUMBER, number)

    def and_again(self, other: Stated) -> Stated:
        """Of the same kind."""
        numbers = [number for number in (self.least, self.most, other.least, other.most) if number is not None]
        least, most = min(numbers, default=None), max(numbers, default=None)
        return Stated(self.where, self.kind, least, most, self.times + other.times)

    def as_json(self) -> dict[str, Any]:
        return {"where": self.where, "what": self.what, "times": self.times}


def sentences_of(stated: Iterable[Stated]) -> list[str]:
    """One for all that are alike, with the lines and how often."""
    alike: dict[str, list[Stated]] = {}
    for one in stated:
        alike.setdefault(one.kind, []).append(one)
    return list(map(_sentence, alike.values()))


def _sentence(alike: list[Stated]) -> str:
    whole = alike[0]
    for other in alike[1:]:
        whole = whole.and_again(other)
    places = [one.where for one in alike if one.where]
    often = f" ({count_text(whole.times)} times)" if whole.times > len(alike) else ""
    return f"{_named(places)}{often}: {whole.what}." if places else f"{whole.what}."


def _named(places: list[str]) -> str:
    if len(places) <= _MOST_PLACES + 1:
        return " and ".join(filter(None, (", ".join(places[:-1]), places[-1])))
    return f"{', '.join(places[:_MOST_PLACES])} and {count_text(len(places) - _MOST_PLACES)} more lines"
