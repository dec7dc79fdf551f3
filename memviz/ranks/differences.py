"""What one rank's peak has more or less than another's, site by site or kind by kind, to the byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from memviz.ranks.row import RankRow

REST = "(all others)"


@dataclass(frozen=True)
class NamedDelta:
    name: str
    delta_bytes: int
    is_probable: bool = False
    """Of a kind: most of what both have of it is no more than probably of that kind."""

    @property
    def words(self) -> str:
        return f"probably {self.name}" if self.is_probable else self.name


def by_site(row: RankRow, other: RankRow, top: int | None = None) -> tuple[NamedDelta, ...]:
    """The largest first, what is left as `REST`; together they are the difference of the peaks."""
    mine = {site.key: site for site in row.sites}
    theirs = {site.key: site for site in other.sites}
    # Two machines may have the same program in different folders.
    alone = {site.label: site.key for site in row.sites if site.key not in theirs}
    same = {site.key: alone.get(site.label, site.key) for site in other.sites if site.key not in mine}
    deltas = {key: site.bytes for key, site in mine.items()}
    labels = {key: site.label for key, site in mine.items()}
    for key, site in theirs.items():
        name = same.get(key, key)
        deltas[name] = deltas.get(name, 0) - site.bytes
        labels.setdefault(name, site.label)
    changed = [NamedDelta(labels[key], delta) for key, delta in deltas.items() if delta]
    return _ranked(changed, row.other_sites_bytes - other.other_sites_bytes, top)


def by_category(row: RankRow, other: RankRow) -> tuple[NamedDelta, ...]:
    deltas: Counter[str] = Counter()
    doubt: Counter[str] = Counter()
    for parts, sign in ((row.categories, 1), (other.categories, -1)):
        for part in parts:
            deltas[part.kind] += sign * part.bytes
            doubt[part.kind] += 2 * part.probable_bytes - part.bytes
    return _ranked([NamedDelta(kind, delta, doubt[kind] > 0) for kind, delta in deltas.items() if delta], 0, None)


def _ranked(changed: list[NamedDelta], rest: int, top: int | None) -> tuple[NamedDelta, ...]:
    in_order = sorted(changed, key=lambda one: (-abs(one.delta_bytes), one.name))
    rest += sum(one.delta_bytes for one in in_order[len(in_order) if top is None else top :])
    return (*in_order[:top], *([NamedDelta(REST, rest)] if rest else []))


def bytes_apart(row: RankRow, other: RankRow) -> int:
    """How much of the two peaks is not the same, whichever has it."""
    return sum(abs(one.delta_bytes) for one in by_site(row, other))
