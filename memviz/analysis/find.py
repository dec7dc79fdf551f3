"""Search allocations by terms and limits, as typed: `linear.py >10MiB <1s`.

Every term must occur in the function or file of some frame of the stack, in the module's path or in the category;
case does not matter. `>` and `<` limit the size (`>10MiB`) or the lifetime, in time (`<1s`) or in events
(`>1000ev`). An allocation without a recorded start or end has only a minimal lifetime: it never matches a `<` lifetime.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.callstacks.sites import is_in_stack, path_of, sites
from memviz.analysis.lifetimes import check_event, clock, has_times, lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.phases import label_of_rows
from memviz.analysis.sums import sum_by
from memviz.errors import UsageError
from memviz.trace.model import Bools, Category, DeviceTrace, Ints8, Trace
from memviz.units import parse_bytes

_LIMIT = re.compile(r"([<>])(=?)(.+)")
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)(us|µs|μs|ms|s|min|h|ev|events?)", re.IGNORECASE)
_MICROSECONDS = {"us": 1, "µs": 1, "μs": 1, "ms": 1e3, "s": 1e6, "min": 60e6, "h": 3600e6}
_COMPARE: dict[str, Callable[[Ints8, float], Bools]] = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
}


@dataclass(frozen=True)
class Limit:
    of: str
    """`bytes`, `time` or `events`."""
    sign: str
    value: float
    """Bytes, µs or events."""


@dataclass(frozen=True)
class FoundSite:
    key: str
    label: str
    live_bytes: int
    """At the requested event."""
    live_count: int
    bytes: int
    """Over the whole trace: all that ever passed here, never live together."""
    count: int


@dataclass(frozen=True)
class FindResult:
    event: int
    sites: tuple[FoundSite, ...]
    """Sites by live bytes, then by all bytes, largest first."""

    @property
    def live_bytes(self) -> int:
        return sum(site.live_bytes for site in self.sites)

    @property
    def live_count(self) -> int:
        return sum(site.live_count for site in self.sites)

    @property
    def count(self) -> int:
        return sum(site.count for site in self.sites)


def parse_query(text: str) -> tuple[list[str], list[Limit]]:
    """Return the terms, in lower case, and the limits."""
    terms: list[str] = []
    limits: list[Limit] = []
    for part in text.split():
        match = _LIMIT.fullmatch(part)
        if match:
            limits.append(_limit(match[1] + match[2], match[3], part))
        else:
            terms.append(part.lower())
    return terms, limits


def _limit(sign: str, amount: str, part: str) -> Limit:
    duration = _DURATION.fullmatch(amount)
    if duration:
        number, unit = float(duration[1]), duration[2].lower()
        if unit.startswith("ev"):
            return Limit("events", sign, number)
        return Limit("time", sign, number * _MICROSECONDS[unit])
    try:
        return Limit("bytes", sign, parse_bytes(amount))
    except ValueError:
        message = f"{part[:40]!r} is not a size or a lifetime. Write for example >10MiB, <1s or >1000ev."
        raise UsageError(message) from None


def find_rows(trace: Trace, device: DeviceTrace, text: str) -> Ints8:
    """Rows of `lifetimes`. An empty query finds nothing."""
    terms, limits = parse_query(text)
    if not terms and not limits:
        return np.zeros(0, dtype=np.int64)
    hit = np.ones(len(lifetimes(device)), dtype=np.bool_)
    for limit in limits:
        hit &= _matches_limit(device, limit)
    for term in terms:
        hit &= _matches_term(trace, device, term)
    return np.flatnonzero(hit)


def find_sites(trace: Trace, device: DeviceTrace, text: str, event: int) -> FindResult:
    check_event(device, event)
    all_rows, table = lifetimes(device), sites(trace)
    rows = find_rows(trace, device, text)
    live = rows[all_rows.live_after(event)[rows]]
    columns = []
    for chosen in (rows, live):
        codes = table.of_stack[all_rows.stack[chosen]]
        columns.append(sum_by(codes, all_rows.size[chosen], len(table.sites)))
        columns.append(np.bincount(codes, minlength=len(table.sites)))
    total, count, live_bytes, live_count = columns
    matching = [
        FoundSite(
            table.sites[code].key,
            table.sites[code].label,
            live_bytes=int(live_bytes[code]),
            live_count=int(live_count[code]),
            bytes=int(total[code]),
            count=int(count[code]),
        )
        for code in np.flatnonzero(count).tolist()
    ]
    return FindResult(
        event, tuple(sorted(matching, key=lambda match: (-match.live_bytes, -match.bytes, match.label, match.key)))
    )


def _matches_term(trace: Trace, device: DeviceTrace, term: str) -> Bools:
    frames = np.array([term in frame_text for frame_text in _frame_texts(trace)], dtype=np.bool_)
    hit = is_in_stack(trace.stacks, frames)[lifetimes(device).stack]
    matching = [category for category in Category if term in category.label]
    hit = hit | np.isin(categories(trace, device).category, matching)
    modules = label_of_rows(device, "module")
    if modules is not None:
        codes = [code for code in np.unique(modules).tolist() if term in trace.strings[code].lower()]
        hit = hit | np.isin(modules, codes)
    return np.asarray(hit, dtype=np.bool_)


@cached
def _frame_texts(trace: Trace) -> list[str]:
    """Each frame as people read it, `model.py:36 forward`, in lower case."""
    frames, strings = trace.stacks.frames, trace.strings
    columns = zip(frames.filename.tolist(), frames.line.tolist(), frames.name.tolist(), strict=True)
    return [f"{path_of(strings[file])}:{line} {strings[name]}".lower() for file, line, name in columns]


def _matches_limit(device: DeviceTrace, limit: Limit) -> Bools:
    rows = lifetimes(device)
    if limit.of == "bytes":
        return _COMPARE[limit.sign](rows.size, limit.value)
    ended = np.minimum(rows.end, len(device.events) - 1)
    begun = np.maximum(rows.start, 0)
    if limit.of == "time":
        if not has_times(device):
            raise UsageError("The events of this file have no times. Limit the lifetime by events: >1000ev.")
        times = clock(device)
        lived = times[ended] - times[begun]
    else:
        lived = ended - begun
    complete = (rows.start >= 0) & (rows.end < len(device.events))
    hit = _COMPARE[limit.sign](lived, limit.value)
    return np.asarray(hit & complete if limit.sign.startswith("<") else hit, dtype=np.bool_)
