"""Tries the combinations of a space: all of a small one, and of a large one those that promise most.

Memory and cost are two aims, so what is sought is a front and not one best. A large space is begun with the way that
was asked for, each change alone, and one of everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any

from memviz.runner.fit.card_speeds import CardSpeed, speed_of
from memviz.runner.fit.cost import Cost, Work, cost_of
from memviz.runner.fit.front import TriedWay
from memviz.runner.fit.guesses import Guesses
from memviz.runner.fit.largest import Stopped
from memviz.runner.fit.predictions import KeptPredictions, Prediction, Predictor, may_be_kept
from memviz.runner.fit.space import Candidate, Space
from memviz.runner.plan import Plan, plan_of
from memviz.runner.predict.cards import KnownCard, is_native
from memviz.runner.predict.group.ranks import CARDS_OF_A_MACHINE
from memviz.runner.request import Request

MOST_ALL = 300
"""Combinations up to which all of them are tried."""
_SHARE_TRIED = 4
"""Of a larger space, one in so many."""
_LEAST_SAMPLED, _MOST_SAMPLED = 125, 300
_INTERRUPTED = 130
"""Exit status after Ctrl-C."""

Place = tuple[int, ...]
Told = Callable[[TriedWay | None, int, int], None]
"""After each: the way, or None where it was refused; how many are done, and of how many."""


def trials_of(size: int) -> int:
    if size <= MOST_ALL:
        return size
    return min(max(size // _SHARE_TRIED, _LEAST_SAMPLED), _MOST_SAMPLED)


@dataclass(frozen=True)
class Searched:
    ways: tuple[TriedWay, ...]
    """All that could run."""
    tried: int
    of: int
    """Combinations that go together, on this model."""
    refused: tuple[str, ...] = ()
    """Why the others of those that were tried could not run: the one with the fewest changes first."""
    planned: int = 0
    """Predictions of the whole search."""
    is_stopped: bool = False
    """Whether it ended before these were made."""


class Stop:
    """Ends a search early and keeps what it found: at a time limit, or where the program is told to end."""

    def __init__(self, seconds: float | None = None) -> None:
        self.until = None if seconds is None else time.monotonic() + seconds
        """On the monotonic clock."""
        self.status = 0
        """The program's exit status then."""
        self._by = ""

    @property
    def by(self) -> str:
        """ "time limit", "interrupted", "terminated", or empty while nothing ended it."""
        is_late = self.until is not None and time.monotonic() >= self.until
        return self._by or ("time limit" if is_late else "")

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Stopped in the place of what ends a program, and where the time is over."""
        if self.by:
            raise Stopped
        try:
            yield
        except KeyboardInterrupt:
            self._by, self.status = "interrupted", _INTERRUPTED
        except SystemExit as fault:
            self._by, self.status = "terminated", fault.code if isinstance(fault.code, int) else 1
        if self.by:
            raise Stopped


def search(
    space: Space,
    predictor: Predictor,
    tell: Told = lambda way, done, of: None,
    *,
    tries: int | None = None,
    stop: Stop | None = None,
) -> Searched:
    """`tries` are predictions at most; without it `trials_of` the size of the space."""
    candidates = space.candidates
    plan, tried, refused = plan_of(space.request), dict[Place, TriedWay | None](), dict[Place, str]()
    speed, count = speed_of(plan.card.model), min(tries or trials_of(len(candidates)), len(candidates))
    pending: dict[str, Place] = {}
    order = _Order(space, predictor.kept)
    places = _Places(space, count, order.before)

    def ask() -> Request | None:
        place = places.next()
        if place is None:
            return None
        request = candidates[place].request
        pending[_name(request)] = place
        return request

    def hear(request: Request, prediction: Prediction) -> None:
        place = pending.pop(_name(request))
        way = _tried(candidates[place], prediction, speed)
        tried[place] = way
        if way is None:
            refused[place] = prediction.refused
        order.add(place)
        places.learn(place, None if way is None else (way.cost.rank, float(way.peak_reserved_bytes)))
        tell(way, len(tried), min(count, possible()))

    def possible() -> int:
        return sum(place in tried or not places.is_refused(place) for place in candidates)

    def others(request: Request) -> list[Request]:
        if plan.parallel.gpus > 1:
            # There each is a prediction of its own.
            return []
        alike = [place for place in space.with_other_settings(pending[_name(request)]) if place not in tried]
        return [candidates[place].request for place in alike if not places.is_refused(place)]

    stop, is_stopped = stop or Stop(), True
    with suppress(Stopped), stop.ends():
        predictor.all(ask, hear, others, until=stop.until)
        is_stopped = bool(stop.by)
    ways = tuple(way for way in tried.values() if way is not None)
    # Whichever process answered first: what was asked for is refused before what was changed.
    in_order = sorted(refused, key=lambda place: (len(_changes(place)), place))
    reasons = tuple(refused[place] for place in in_order)
    return Searched(ways, len(tried), possible(), reasons, min(count, possible()), is_stopped)


class _Order:
    """In which a large space is tried, kept so that the same search asked again goes the same way."""

    def __init__(self, space: Space, kept: KeptPredictions) -> None:
        is_kept = len(space.candidates) > MOST_ALL and may_be_kept(space.request)
        self._kept = kept if is_kept else None
        self._search = blake2b(repr(space).encode(), digest_size=16).hexdigest()
        self.before = [place for place in kept.order_of(self._search) if place in space.candidates] if is_kept else []
        self._written = set(self.before)

    def add(self, place: Place) -> None:
        if self._kept is not None and place not in self._written:
            self._kept.add_to_order(self._search, place)


def _name(request: Request) -> str:
    return repr(request)


def _tried(candidate: Candidate, prediction: Prediction, speed: Any) -> TriedWay | None:
    if prediction.refused:
        return None
    return TriedWay(candidate, prediction, cost_of_slowest(plan_of(candidate.request), prediction, speed))


def cost_of_slowest(plan: Plan, prediction: Prediction, speed: CardSpeed | None) -> Cost:
    """Ranks wait for the one whose step is longest, which need not be the one that takes most memory."""
    waits, gpus = (plan.passes + plan.parallel.pipeline - 1) / plan.passes, plan.parallel.gpus
    dtype = _computed_in(getattr(plan.workload, "dtype", ""), plan.card)
    own = prediction.flops, prediction.bytes_moved, prediction.host_bytes, prediction.link_bytes
    costs = (
        cost_of(Work(*work, leaves_machine=gpus > CARDS_OF_A_MACHINE, stretch=waits), speed, dtype)
        for work in prediction.of_classes or (own,)
    )
    return max(costs, key=lambda cost: cost.rank)


def _computed_in(dtype: str, card: KnownCard) -> str:
    """A dtype that the card only emulates takes no tensor cores."""
    return dtype if is_native(dtype, card) else "fp32"


class _Places:
    """Which combination is tried next. What a model refuses alone is not tried together with anything."""

    def __init__(self, space: Space, count: int, before: Sequence[Place] = ()) -> None:
        self._left = count
        self._refused: set[tuple[int, int]] = set()
        first = list(dict.fromkeys([*space.first(), *before]))
        sizes = [len(options) for options in space.options]
        self._guesses = None if count >= len(space.candidates) else Guesses(sizes, list(space.candidates), first)
        self._plain = chain(first, (place for place in space.candidates if place not in first))

    def next(self) -> Place | None:
        while self._left > 0:
            place = next(self._plain, None) if self._guesses is None else self._guesses.next()
            if place is None or not self.is_refused(place):
                self._left -= 1
                return place
        return None

    def is_refused(self, place: Place) -> bool:
        return not self._refused.isdisjoint(_changes(place))

    def learn(self, place: Place, value: tuple[float, float] | None) -> None:
        changes = _changes(place)
        if value is None and len(changes) == 1:
            self._refused |= changes
        if self._guesses is not None:
            self._guesses.learn(place, value)


def _changes(place: Place) -> set[tuple[int, int]]:
    return {(dimension, number) for dimension, number in enumerate(place) if number}
