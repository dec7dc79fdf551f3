"""How much would be made of a snapshot, counted before any of it is: a few bytes can name one thing a million times."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from memviz.errors import TraceError
from memviz.trace.budget import Budget
from memviz.trace.model import Columns

_EVENT, _ROW = 100, 300
"""Bytes that an event takes while it becomes columns, and a segment, block or annotation."""
_MOST_REPEATS = 100_000


def charge_events(traces: list[list[Any]], budget: Budget) -> None:
    """`traces`: the lists of all devices."""
    most = budget.limits.events
    counts: dict[int, int] = {}
    named = 0
    for trace in traces:
        if id(trace) not in counts:
            counts[id(trace)] = row_count(trace)
        named += counts[id(trace)]
        if named > most:
            raise budget.too_large("events")
    budget.charge(_EVENT * named)
    _refuse_repeats(traces, named, sum(counts.values()), "event")


def charge_rows(lists: Iterable[list[Any]], what: str, budget: Budget) -> None:
    """`what`: one of the dicts in these lists."""
    lists = list(lists)
    count = sum(map(row_count, lists))
    if count > budget.limits.items:
        raise budget.too_large("items")
    budget.charge(_ROW * count)
    _refuse_repeats(lists, count, sum(map(row_count, {id(items): items for items in lists}.values())), what)


def _refuse_repeats(lists: list[list[Any]], named: int, in_lists: int, what: str) -> None:
    """`named` in all these lists, and in each of them once."""
    if named <= _MOST_REPEATS:
        return
    own = {id(items): items for items in lists}
    distinct = len(set(map(id, chain.from_iterable(own.values()))))
    repeats = named - in_lists + sum(map(len, own.values())) - distinct
    if repeats > _MOST_REPEATS:
        reason = f"It names the same {what} again and again, {repeats:,} times in all, and torch writes each once."
        raise TraceError(reason, remedy="It is no recording; dump it again.")


def row_count(items: list[Any]) -> int:
    """Some may be decoded already, many in one."""
    return sum(len(item) if isinstance(item, Columns) else 1 for item in items)
