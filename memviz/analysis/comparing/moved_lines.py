"""Whether a function has the same lines in several traces, or an edit above it has moved them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

Home = TypeVar("Home", bound=Hashable)
Lines = dict[str, list[set[int]]]
"""Per function the lines that each trace has seen of it."""


def moved(lines: Mapping[Home, Sequence[set[int]]]) -> set[Home]:
    """Functions of which two traces share no more than half of the lines that the one with fewer has seen.

    Another branch taken adds or leaves out a line or two; an edit above moves all of them.
    """
    return {home for home, places in lines.items() if not _alike(places)}


def _alike(places: Sequence[set[int]]) -> bool:
    by_size = sorted((lines for lines in places if lines), key=len)
    pairs = zip(by_size, by_size[1:], strict=False)
    return all(2 * len(small & large) > len(small) for small, large in pairs)


def lines_text(lines: Collection[int]) -> str:
    ordered = sorted(lines)
    return ", ".join(map(str, ordered)) if len(ordered) <= 3 else f"{ordered[0]}-{ordered[-1]}"
