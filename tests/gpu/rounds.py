"""Carries out the cases of a part within what is left of the time: on the GPU one by one, elsewhere several."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.gpu.case import Case
from tests.gpu.started import Started

_PATIENCE = 4
"""So many times as long as expected a case may take, and no less than `_LEAST_SECONDS`."""
_LEAST_SECONDS = 90.0

Begin = Callable[[Case], Started]


@dataclass(frozen=True)
class Outcome:
    case: Case
    state: Literal["done", "failed", "skipped"]
    words: str = ""
    seconds: float = 0.0


class Clock:
    """How much time is left of so many minutes."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end = now() + 60 * minutes

    @property
    def left(self) -> float:
        return self._end - self._now()


def begin_in(out: Path, known: Mapping[str, str]) -> Begin:
    return lambda case: Started(case, out, known)


def why_not(case: Case, card_gib: float | None) -> str:
    """Why it cannot be done here, or ''."""
    missing = [name for name in case.libraries if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} cannot be imported here"
    if card_gib is not None and case.gib > card_gib:
        return f"needs about {case.gib:g} GiB of the card, which has {card_gib:.1f}"
    return ""


def one_by_one(cases: Sequence[Case], clock: Clock, begin: Begin) -> Iterator[Outcome]:
    """While one has the GPU the next already imports."""
    waiting = list(cases)
    ahead: list[Started] = []
    try:
        while waiting:
            case = waiting.pop(0)
            if clock.left < case.seconds:
                yield _no_time(case)
                continue
            started = ahead.pop() if ahead else begin(case)
            # Which comes next depends on the time that is then left, so it is only begun where that is certain enough.
            if waiting and clock.left > case.seconds + waiting[0].seconds:
                ahead.append(begin(waiting[0]))
            yield _finished(started, clock)
            if ahead and clock.left < waiting[0].seconds:
                ahead.pop().end()
    finally:
        for each in ahead:
            each.end()


def several(cases: Sequence[Case], clock: Clock, begin: Begin, at_once: int) -> Iterator[Outcome]:
    def carry_out(case: Case) -> Outcome:
        return _finished(begin(case), clock) if clock.left >= case.seconds else _no_time(case)

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(carry_out, cases)


def _finished(started: Started, clock: Clock) -> Outcome:
    began = time.monotonic()
    timeout = min(max(_LEAST_SECONDS, _PATIENCE * started.case.seconds), max(1.0, clock.left))
    words = started.finish(timeout)
    return Outcome(started.case, "failed" if words else "done", words, time.monotonic() - began)


def _no_time(case: Case) -> Outcome:
    return Outcome(case, "skipped", f"about {case.seconds:.0f} s would be needed, and less is left")
