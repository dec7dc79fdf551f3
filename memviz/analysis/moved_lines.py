"""Whether a function has the same lines in several traces, or an edit above it has moved them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

Home = TypeVar("Home", bound=Hashable)
Lines = dict[str, list[set[int]]]
"""Per function the lines that each trace has seen of it."""


def moved(lines: Mapping[Home, Sequence[set[int]]]) -> set[Home]:
    """Functions of which some trace has lines that are not among those of the trace with more of them."""
    return {home for home, found in lines.items() if not _nested(found)}


def _nested(found: Sequence[set[int]]) -> bool:
    by_size = sorted((each for each in found if each), key=len)
    return all(small <= large for small, large in zip(by_size, by_size[1:], strict=False))


def lines_text(lines: Collection[int]) -> str:
    ordered = sorted(lines)
    return ", ".join(map(str, ordered)) if len(ordered) <= 3 else f"{ordered[0]}-{ordered[-1]}"
