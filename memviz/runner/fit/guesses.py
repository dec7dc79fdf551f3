"""Which combination of a large space to try next, from those that were tried.

What changes do to cost and peak is nearly a product: each has its share, and some pairs help or hinder each other. So
the logarithms are fitted by a sum of a term for each option and each pair of options, kept small where little is known
of them. Whatever would add most to the area under the front, if it came out as well as it may, is tried next: so what
is little known is tried too. The space is small enough to look at all of it each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

Place = tuple[int, ...]
Floats = npt.NDArray[np.float64]

_SMALL_SINGLE, _SMALL_PAIR = 1e-3, 3e-2
"""How strongly terms are held to nothing, those of pairs more than those of single options."""
_NOISE = 1e-3
"""Of the logarithms' own scale. With a thousandth of it machines disagree in their last digits on what is next."""
_HOPES = (4.0, 2.0, 0.0)
"""Standard deviations, in turn: looking far afield, near by, and where most is expected. Any one alone missed more than
a hundredth of the front in 2 to 6 of 60 made-up spaces with a quarter tried; in turn they did in none of 200."""
_MARGIN = 1.02
"""Of the worst that was seen: the front's own ends count."""


class Guesses:
    def __init__(self, sizes: Sequence[int], candidates: Sequence[Place], first: Sequence[Place] = ()) -> None:
        self._candidates = list(candidates)
        self._number = {place: number for number, place in enumerate(self._candidates)}
        self._features, self._small = _features(sizes, np.array(self._candidates, dtype=np.intp))
        self._first = [self._number[place] for place in reversed(first)]
        self._free = np.ones(len(self._candidates), dtype=bool)
        self._known: dict[int, tuple[float, float]] = {}
        self._learned = _Learned(self._features, self._small)

    def next(self) -> Place | None:
        """None once all were given."""
        number = self._first.pop() if self._first else self._most_promising()
        if number is None:
            return None
        self._free[number] = False
        return self._candidates[number]

    def learn(self, place: Place, value: tuple[float, float] | None) -> None:
        """Cost and peak, both above 0; None for what cannot run, which teaches nothing."""
        number = self._number[place]
        if value is not None and number not in self._known:
            self._known[number] = value
            self._learned.add(number)

    def _most_promising(self) -> int | None:
        free = np.flatnonzero(self._free)
        if not len(free):
            return None
        if len(self._known) < 2:
            return int(free[0])
        values = np.log(np.maximum(np.array(list(self._known.values())), 1e-300))
        return int(free[np.argmax(_added(values, self._hoped(free, values)))])

    def _hoped(self, free: npt.NDArray[np.intp], values: Floats) -> Floats:
        """What is expected of each that is free, less some of how far that may be off."""
        mean = values.mean(axis=0)
        expected, unknown, unit = self._learned.of(free, values - mean)
        hope = _HOPES[len(self._known) % len(_HOPES)]
        hoped: Floats = mean + expected - hope * np.sqrt(unknown)[:, None] * unit
        return hoped


class _Learned:
    """The fit to what is known, one more value at a time: a row more of two triangles instead of everything anew.

    In the space of what was tried, which has fewer dimensions than there are terms.
    """

    def __init__(self, features: Floats, small: Floats) -> None:
        self._features, self._weighted = features, features / small
        self._unknown: Floats = (features * self._weighted).sum(axis=1)
        """Of each place, how much of what it may be is open."""
        self._shares: Floats = np.empty((0, len(features)))
        """What each known value has to say of each place, beyond those before it."""
        self._inverse: Floats = np.empty((0, 0))

    def add(self, number: int) -> None:
        before = self._shares[:, number]
        own = np.sqrt(max(self._unknown[number], 0.0) + _NOISE)
        share = (self._weighted @ self._features[number] - before @ self._shares) / own
        self._unknown = self._unknown - share**2
        row = np.append(-(before @ self._inverse), 1.0) / own
        self._shares = np.vstack([self._shares, share])
        self._inverse = np.vstack([np.pad(self._inverse, ((0, 0), (0, 1))), row])

    def of(self, places: npt.NDArray[np.intp], values: Floats) -> tuple[Floats, Floats, Floats]:
        """What is expected of each, how much of it is unknown, and the unit of that for each aim."""
        solved = self._inverse @ values
        # In units of how far each known value is from what the others say of it.
        precision = (self._inverse**2).sum(axis=0)[:, None]
        unit = np.sqrt((((self._inverse.T @ solved) ** 2) / precision).mean(axis=0))
        return self._shares[:, places].T @ solved, np.maximum(self._unknown[places], 0.0), unit


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


def _added(known: Floats, expected: Floats) -> Floats:
    """How much area each expected point would add to what is known to be dominated; where none adds any, how near it
    comes to the front."""
    worst = known.max(axis=0) + np.log(_MARGIN)
    front = _front(known)
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


def _front(values: Floats) -> Floats:
    ordered = values[np.lexsort((values[:, 1], values[:, 0]))]
    lowest = np.minimum.accumulate(ordered[:, 1])
    is_better = np.concatenate([[True], ordered[1:, 1] < lowest[:-1]])
    front: Floats = ordered[is_better]
    return front
