"""Search for configurations on the Pareto front of memory and cost: all of a small space, samples of a large one.

What changes do to cost and peak is nearly a product of each one's share, so shares learned from tries order the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from memviz.predictor.cards import is_native
from memviz.predictor.group.ranks import CARDS_OF_A_MACHINE
from memviz.runner.fit.cost import KEEPS, CardSpeed, Cost, Rating, Work, cost_of, speed_of
from memviz.runner.fit.largest import SearchStopped
from memviz.runner.fit.predictions import KeptPredictions, Prediction, Predictor, is_cacheable
from memviz.runner.fit.space import Candidate, Point, Space, changes_at
from memviz.runner.plan import Plan, code_of_plan, plan_of
from memviz.runner.request import Request, command_of

Floats = npt.NDArray[np.float64]

_SMALL_SINGLE, _SMALL_PAIR = 1e-3, 3e-2
"""How strongly terms are held to nothing, those of pairs more than those of single options."""
_NOISE = 1e-3
"""Noise on the scale of logarithms. With a thousandth of it, machines differ in their last digits on what is next."""
_HOPES = (4.0, 2.0, 0.0)
"""Standard deviations, in turn: looking far afield, near by, and where most is expected. Any one alone missed more than
a hundredth of the front in 2 to 6 of 60 made-up spaces with a quarter tried; in turn they did in none of 200."""
_MARGIN = 1.02
"""Factor on the worst known values, so that the ends of the front add area too."""


class Guesses:
    def __init__(self, sizes: Sequence[int], candidates: Sequence[Point], first: Sequence[Point] = ()) -> None:
        self._candidates = list(candidates)
        self._number = {place: number for number, place in enumerate(self._candidates)}
        self._features, self._small = _features(sizes, np.array(self._candidates, dtype=np.intp))
        self._first = [self._number[place] for place in reversed(first)]
        self._free = np.ones(len(self._candidates), dtype=bool)
        self._known: dict[int, tuple[float, float]] = {}
        self._learned = _Learned(self._features, self._small)

    def next(self) -> Point | None:
        """None once all were given."""
        if self._first:
            number = self._first.pop()
        elif not self._free.any():
            return None
        else:
            number = self._most_promising()
        self._free[number] = False
        return self._candidates[number]

    def learn(self, place: Point, value: tuple[float, float] | None) -> None:
        """Cost and peak, both above 0; None for what cannot run, which teaches nothing."""
        number = self._number[place]
        if value is not None and number not in self._known:
            self._known[number] = value
            self._learned.add(number)

    def _most_promising(self) -> int:
        free = np.flatnonzero(self._free)
        if len(self._known) < 2:
            return int(free[0])
        values = np.log(np.maximum(np.array(list(self._known.values())), 1e-300))
        mean = values.mean(axis=0)
        expected, unknown, unit = self._learned.of(free, values - mean)
        # An optimistic estimate of each free candidate: its mean less some standard deviations.
        hope = _HOPES[len(self._known) % len(_HOPES)]
        return int(free[np.argmax(_added_area(values, mean + expected - hope * np.sqrt(unknown)[:, None] * unit))])


class _Learned:
    """The fit to what is known, one more value at a time: a row more of two triangles instead of everything anew.

    In the space of what was tried, which has fewer dimensions than there are terms.
    """

    def __init__(self, features: Floats, small: Floats) -> None:
        self._features = features
        weighted = features / small
        # By term: a candidate has few of them, and only their columns are read.
        self._weighted = np.ascontiguousarray(weighted.T)
        self._unknown: Floats = (features * weighted).sum(axis=1)
        """Variance that is left at each candidate."""
        self._rows: Floats = np.empty((16, len(features)))
        """Contribution of each known value to each candidate, beyond those before it; room for more of them."""
        self._inverse: Floats = np.empty((0, 0))

    @property
    def _shares(self) -> Floats:
        return self._rows[: len(self._inverse)]

    def add(self, number: int) -> None:
        known = len(self._inverse)
        if known == len(self._rows):
            self._rows = np.vstack([self._rows, np.empty_like(self._rows)])
        before = self._shares[:, number]
        own = np.sqrt(max(self._unknown[number], 0.0) + _NOISE)
        alike = self._weighted[self._features[number] > 0].sum(axis=0)
        share = (alike - before @ self._shares) / own
        self._unknown = self._unknown - share**2
        row = np.append(-(before @ self._inverse), 1.0) / own
        self._rows[known] = share
        self._inverse = np.vstack([np.pad(self._inverse, ((0, 0), (0, 1))), row])

    def of(self, places: npt.NDArray[np.intp], values: Floats) -> tuple[Floats, Floats, Floats]:
        """Return expected values, remaining variance, and the unit of its square root for each objective."""
        solved = self._inverse @ values
        # Unit: distance of each observed value from its prediction by the others.
        precision = (self._inverse**2).sum(axis=0)[:, None]
        unit = np.sqrt((((self._inverse.T @ solved) ** 2) / precision).mean(axis=0))
        return (self._shares.T @ solved)[places], np.maximum(self._unknown[places], 0.0), unit


def _features(sizes: Sequence[int], places: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
    """A column for each term, and how strongly it is held to nothing."""
    single = [places[:, [dimension]] == np.arange(1, size) for dimension, size in enumerate(sizes)]
    pairs = [one[:, :, None] & other[:, None, :] for one, other in combinations(single, 2)]
    columns = [np.ones((len(places), 1), dtype=bool), *single, *(pair.reshape(len(places), -1) for pair in pairs)]
    count = 1 + sum(tensor.shape[1] for tensor in single)
    features = np.concatenate(columns, axis=1).astype(np.float64)
    small = np.full(features.shape[1], _SMALL_PAIR)
    small[:count] = _SMALL_SINGLE
    return features, small


def _added_area(observed: Floats, expected: Floats) -> Floats:
    """How much area each expected point would add to what is known to be dominated; where none adds any, how near it
    comes to the front."""
    worst = observed.max(axis=0) + np.log(_MARGIN)
    front = _learned_front(observed)
    # The free area is cut into columns: from one point's cost to the next, as high as the last point's peak.
    edges = np.concatenate([[-np.inf], front[:, 0], [worst[0]]])
    heights = np.concatenate([[worst[1]], front[:, 1]])
    left = np.maximum(edges[:-1][None, :], expected[:, [0]])
    width = np.maximum(edges[1:][None, :] - left, 0.0)
    area: Floats = (width * np.maximum(heights[None, :] - expected[:, [1]], 0.0)).sum(axis=1)
    if area.max(initial=0.0) > 0:
        return area
    behind = np.maximum(expected[:, None, :] - front[None, :, :], 0.0).sum(axis=2)
    nearest: Floats = -behind.min(axis=1)
    return nearest


def _learned_front(values: Floats) -> Floats:
    ordered = values[np.lexsort((values[:, 1], values[:, 0]))]
    lowest = np.minimum.accumulate(ordered[:, 1])
    is_better = np.concatenate([[True], ordered[1:, 1] < lowest[:-1]])
    front: Floats = ordered[is_better]
    return front


class _Gains:
    """Area that each try adds to what is known to be dominated, as a share of all of it, in logarithms."""

    def __init__(self) -> None:
        self._values: list[Floats] = []
        self._shares: list[float] = []

    def add(self, value: tuple[float, float]) -> None:
        new = np.log(np.maximum(np.array([value]), 1e-300))
        added = max(float(_added_area(np.array(self._values), new)[0]), 0.0) if self._values else 0.0
        self._values.append(new[0])
        observed = np.array(self._values)
        front, worst = _learned_front(observed), observed.max(axis=0) + np.log(_MARGIN)
        widths = np.append(front[1:, 0], worst[0]) - front[:, 0]
        self._shares.append(added / float((widths * (worst[1] - front[:, 1])).sum()))

    @property
    def have_ended(self) -> bool:
        last = self._shares[-WITHOUT_GAIN:]
        return len(last) == WITHOUT_GAIN and sum(last) < _LEAST_GAIN


@dataclass(frozen=True)
class Trial:
    candidate: Candidate
    prediction: Prediction
    cost: Cost

    @property
    def peak_reserved_bytes(self) -> int:
        """On the card, where it fits there; else what it would reserve if nothing limited it."""
        return self.prediction.reserved_on_card_bytes if self.prediction.fits else self.prediction.peak_reserved_bytes

    @property
    def fits(self) -> bool:
        """On the card, and on the host where its memory was given."""
        return self.prediction.fits is True and self.fits_host is not False

    @property
    def fits_host(self) -> bool | None:
        return self.candidate.request.fits_host(self.prediction.host_peak_bytes)

    @property
    def rating(self) -> Rating:
        return Rating(
            keeps=KEEPS.index(self.candidate.keeps),
            rank=self.cost.rank,
            is_close=self.prediction.fit == "close",
            changes=sum(1 + len(knobs) for _, knobs in self.candidate.request.optimizations),
            peak_reserved_bytes=self.peak_reserved_bytes,
            fits=self.fits,
        )


MOST_ALL = 300
"""Combinations up to which all of them are tried."""
_SHARE_TRIED = 4
"""Divisor of a larger space: one combination in four is tried."""
_LEAST_SAMPLED, _MOST_SAMPLED = 125, 300
WITHOUT_GAIN = 40
"""A search of samples ends once so many in turn added less than `_LEAST_GAIN` of the area that the front dominates. On
60 made-up spaces it kept 98.8 % of that area or more, 99.9 % on average, with 91 tries on average instead of 130."""
_LEAST_GAIN = 0.002
_INTERRUPTED = 130
"""Exit status after Ctrl-C."""

OnTrial = Callable[[Trial | None, int, int], None]
"""Called after each trial with the trial, or None if refused, the number done and the total."""


def trials_of(size: int) -> int:
    if size <= MOST_ALL:
        return size
    return min(max(size // _SHARE_TRIED, _LEAST_SAMPLED), _MOST_SAMPLED)


@dataclass(frozen=True)
class Searched:
    ways: tuple[Trial, ...]
    """All that could run."""
    tried: int
    of: int
    """Combinations that go together, on this model."""
    refused: tuple[str, ...] = ()
    """Why the others of those that were tried could not run: the one with the fewest changes first."""
    planned: int = 0
    """Predictions of the whole search."""
    is_stopped: bool = False
    """True if the search ended before these were made."""
    is_settled: bool = False
    """True if it ended since its last tries, `WITHOUT_GAIN` of them, were no better than others."""


class Stop:
    """Ends a search early and keeps its results: at a time limit, or on a signal to the program."""

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
            raise SearchStopped
        try:
            yield
        except KeyboardInterrupt:
            self._by, self.status = "interrupted", _INTERRUPTED
        except SystemExit as fault:
            self._by, self.status = "terminated", fault.code if isinstance(fault.code, int) else 1
        if self.by:
            raise SearchStopped


def search(
    space: Space,
    predictor: Predictor,
    tell: OnTrial = lambda trial, done, of: None,
    *,
    tries: int | None = None,
    stop: Stop | None = None,
) -> Searched:
    """`tries` are predictions at most, without those that are refused; by default `trials_of` the size of the space."""
    candidates = space.candidates
    plan, tried, refused = plan_of(space.request), dict[Point, Trial | None](), dict[Point, str]()
    speed, count = speed_of(plan.card.model), min(tries or trials_of(len(candidates)), len(candidates))
    pending: dict[str, Point] = {}
    order = _KeptOrder(space, predictor.kept)
    points = _NextPoints(space, count, order, may_settle=tries is None)
    twins = _Twins(space, predictor.kept)

    def ask() -> Request | None:
        while (place := points.next()) is not None:
            request, twin = candidates[place].request, twins.of(place)
            if twin is None:
                pending[repr(request)] = place
                return request
            predictor.kept.add(request, twin)
            add(place, twin, is_twin=True)
        return None

    def hear(request: Request, prediction: Prediction) -> None:
        place = pending.pop(repr(request))
        add(place, prediction)
        # Those were replayed with it: none of them needs a try of its own.
        same_peak = [] if prediction.refused else space.with_other_settings(place)
        for other, known in points.take_known(same_peak, predictor.kept):
            add(other, known)

    def add(place: Point, prediction: Prediction, *, is_twin: bool = False) -> None:
        candidate, trial = candidates[place], None
        twins.learn(place, prediction)
        if prediction.refused:
            refused[place] = prediction.refused
        else:
            trial = Trial(candidate, prediction, cost_of_slowest(plan_of(candidate.request), prediction, speed))
        tried[place] = trial
        order.add(place)
        value = None if trial is None else (trial.cost.rank, float(trial.peak_reserved_bytes))
        points.learn(place, value, is_twin=is_twin)
        tell(trial, len(tried), planned())

    def possible() -> int:
        return points.count_allowed() + sum(map(points.is_refused, tried))

    def planned() -> int:
        return min(points.most, possible())

    def others(request: Request) -> list[Request]:
        return [candidates[other].request for other in points.new(space.with_other_settings(pending[repr(request)]))]

    stop, is_stopped = stop or Stop(), True
    with suppress(SearchStopped), stop.ends():
        predictor.all(ask, hear, others, until=stop.until)
        is_stopped = bool(stop.by)
    if points.is_settled:
        order.settle()
    ways = tuple(trial for trial in tried.values() if trial is not None)
    # Fewest changes first, whichever process answered first.
    in_order = sorted(refused, key=lambda place: (len(changes_at(place)), place))
    reasons = tuple(refused[place] for place in in_order)
    return Searched(ways, len(tried), possible(), reasons, planned(), is_stopped, points.is_settled)


class _Twins:
    """Predictions of configurations that run the same program as one that was predicted.

    An option is idle if it alone leaves every memory request and all work of the request as they are, such as the
    attention kernel that PyTorch chooses anyway. With other options it is idle too, on one GPU.
    """

    def __init__(self, space: Space, kept: KeptPredictions) -> None:
        self._space = space
        self._kept = kept
        self._predictions: dict[Point, Prediction] = {}
        self._idle: set[tuple[int, int]] = set()
        self._by_program: dict[Point, Prediction] = {}
        """Keep configurations by their place without idle options."""

    def learn(self, place: Point, prediction: Prediction) -> None:
        if prediction.refused:
            return
        self._predictions[place] = prediction
        self._by_program.setdefault(self._without_idle(place), prediction)
        if len(changes_at(place)) <= 1:
            self._find_idle()

    def _find_idle(self) -> None:
        plain = self._predictions.get((0,) * len(self._space.names))
        if plain is None:
            return
        alone = {place: changes_at(place) for place in self._predictions}
        idle = {
            changes[0]
            for place, changes in alone.items()
            if len(changes) == 1 and self._predictions[place].is_twin(plain)
        }
        if idle != self._idle:
            self._idle = idle
            self._by_program = {}
            for place, prediction in self._predictions.items():
                self._by_program.setdefault(self._without_idle(place), prediction)

    def _without_idle(self, place: Point) -> Point:
        return tuple(0 if change in self._idle else change[1] for change in enumerate(place))

    def of(self, place: Point) -> Prediction | None:
        """Return the prediction of a twin, in the words of this place; None where there is none."""
        if not self._idle:
            return None
        program = self._without_idle(place)
        twin = self._by_program.get(program)
        if twin is None and program != place and program in self._space.candidates:
            twin = self._kept.get(self._space.candidates[program].request)
        if twin is None or twin.refused:
            return None
        plan = plan_of(replace(self._space.candidates[place].request, on="predict", numerics=False))
        return replace(twin, command=command_of(plan.request), code=code_of_plan(plan))


_SETTLED: Point = ()
"""Ends a cached order that needs no more tries."""


class _KeptOrder:
    """Order in which a large space is tried, cached so that a repeated search uses the same order."""

    def __init__(self, space: Space, predictions: KeptPredictions) -> None:
        is_cached = len(space.candidates) > MOST_ALL and is_cacheable(space.request)
        self._kept = predictions if is_cached else None
        self._search = blake2b(repr(space).encode(), digest_size=16).hexdigest()
        self.before = (
            [place for place in predictions.order_of(self._search) if place in space.candidates] if is_cached else []
        )
        self._written = set(self.before)
        self.is_settled = is_cached and _SETTLED in predictions.order_of(self._search)
        """True if the earlier search ended by itself after these."""

    def settle(self) -> None:
        if self._kept is not None and not self.is_settled:
            self._kept.add_to_order(self._search, _SETTLED)

    def add(self, place: Point) -> None:
        if self._kept is not None and place not in self._written:
            self._kept.add_to_order(self._search, place)


def cost_of_slowest(plan: Plan, prediction: Prediction, speed: CardSpeed | None) -> Cost:
    """Ranks wait for the one whose step is longest, which need not be the one that takes most memory."""
    waits, gpus = (plan.passes + plan.parallel.pipeline - 1) / plan.passes, plan.parallel.gpus
    dtype = getattr(plan.workload, "dtype", "")
    if not is_native(dtype, plan.card):
        # A dtype that the card only emulates uses no tensor cores.
        dtype = "fp32"
    own = prediction.flops, prediction.bytes_moved, prediction.host_bytes, prediction.link_bytes
    costs = (
        cost_of(Work(*work, leaves_machine=gpus > CARDS_OF_A_MACHINE, stretch=waits), speed, dtype)
        for work in prediction.of_classes or (own,)
    )
    return max(costs, key=lambda cost: cost.rank)


class _NextPoints:
    """Chooses the combination to try next. What a model refuses alone is not tried together with anything."""

    def __init__(self, space: Space, count: int, order: _KeptOrder, *, may_settle: bool) -> None:
        first = list(dict.fromkeys([*space.first(), *order.before]))
        self._repeats = may_settle and order.is_settled
        if self._repeats:
            count = len(order.before)
        self._left, self._space, self._most_refused = count, space, 0 if self._repeats else count
        self._may_settle = may_settle and count < len(space.candidates)
        self._taken: set[Point] = set()
        self._gains = _Gains()
        self._refused_again = 0
        """Refused combinations in whose place another is tried; no more than are tried at all."""
        self._refused: set[tuple[int, int]] = set()
        self._allowed: tuple[int, int] = (0, len(space.candidates))
        sizes = [len(options) for options in space.options]
        self._guesses = None if count >= len(space.candidates) else Guesses(sizes, list(space.candidates), first)
        self._plain = chain(first, (place for place in space.candidates if place not in first))

    @property
    def is_settled(self) -> bool:
        return self._may_settle and (self._repeats or self._gains.have_ended)

    @property
    def most(self) -> int:
        """Combinations that are tried in all, if nothing ends it early."""
        return len(self._taken) + (0 if self.is_settled and not self._repeats else self._left)

    def next(self) -> Point | None:
        while self._left > 0 and (self._repeats or not self.is_settled):
            place = next(self._plain, None) if self._guesses is None else self._guesses.next()
            if place is None:
                return None
            if not self.is_refused(place) and self.take(place):
                return place
        return None

    def new(self, places: Iterable[Point]) -> list[Point]:
        return [place for place in places if place not in self._taken and not self.is_refused(place)]

    def take_known(self, places: Iterable[Point], kept: KeptPredictions) -> Iterator[tuple[Point, Prediction]]:
        for place in places:
            prediction = kept.get(self._space.candidates[place].request)
            if prediction is not None and self.take(place):
                yield place, prediction

    def take(self, place: Point) -> bool:
        """Count a combination among those that are tried; False if it is one of them, or there are enough."""
        if place in self._taken or self._left <= 0:
            return False
        self._taken.add(place)
        self._left -= 1
        return True

    def is_refused(self, place: Point) -> bool:
        return not self._refused.isdisjoint(changes_at(place))

    def count_allowed(self) -> int:
        """Return how many combinations are not refused; counted anew only once more changes are."""
        refused = len(self._refused)
        if self._allowed[0] != refused:
            self._allowed = refused, sum(not self.is_refused(place) for place in self._space.candidates)
        return self._allowed[1]

    def learn(self, place: Point, value: tuple[float, float] | None, *, is_twin: bool) -> None:
        changes = changes_at(place)
        if value is None and self._refused_again < self._most_refused:
            self._refused_again += 1
            self._left += 1
        if value is None and len(changes) == 1:
            self._refused |= set(changes)
        if self._guesses is not None:
            self._guesses.learn(place, value)
        if value is not None and not is_twin:
            self._gains.add(value)
