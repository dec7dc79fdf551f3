"""The configurations of a workload that a search tries: optimizations, their settings and layouts over GPUs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice

from memviz.errors import UsageError
from memviz.predictor.group.ranks import CARDS_OF_A_MACHINE
from memviz.runner.fit.cost import KEEPS, Keep
from memviz.runner.plan import Plan, plan_of
from memviz.runner.request import (
    ALLOCATOR_SETTINGS,
    GPUS,
    LAYOUT_SETTINGS,
    Optimizer,
    Parallel,
    Request,
    knobs_of,
    parallel_of,
)
from optimizations import OPTIMIZATIONS

LAYOUT = "parallel"
_MOST_STAGES = 16


def layouts_of(plan: Plan) -> tuple[Mapping[str, str], ...]:
    """Return the other layouts; empty if the request names axes, or the workload has no batch to split."""
    count, request = plan.parallel.gpus, plan.request
    if count == 1 or set(request.parallel) != {GPUS} or _batch_of(plan) is None:
        return ()
    options = []
    for parallel in (parallel for parallel in _layouts_of_gpus(count) if parallel != plan.parallel):
        option = _layout_settings(plan, parallel)
        with suppress(UsageError):
            plan_of(with_layout(request, option))
            options.append(option)
    return tuple(options)


def with_layout(request: Request, option: Mapping[str, str]) -> Request:
    axes = {name: text for name, text in option.items() if name in LAYOUT_SETTINGS}
    settings = {name: text for name, text in option.items() if name not in LAYOUT_SETTINGS}
    return replace(request, parallel=axes, settings={**request.settings, **settings})


def _layout_settings(plan: Plan, parallel: Parallel) -> dict[str, str]:
    """Its axes, and the knobs of the workload that change with them: parts of a matrix share a batch, and stages take
    as many one after the other as there are of them."""
    option, workload = dict(parallel.as_texts), plan.workload
    if parallel.tensor > 1:
        option["batch"] = str((_batch_of(plan) or 1) * parallel.tensor)
    if parallel.pipeline > 1:
        option["micro_batches"] = str(workload.micro_batches * parallel.pipeline)
    return option


def _layouts_of_gpus(count: int) -> Iterator[Parallel]:
    for tensor in _divisors(count):
        for pipeline in _divisors(count // tensor):
            for data in _divisors(count // tensor // pipeline):
                parallel = Parallel(pipeline, data, count // tensor // pipeline // data, tensor)
                if tensor <= CARDS_OF_A_MACHINE and pipeline <= _MOST_STAGES and _is_usual(parallel):
                    yield parallel
                    if parallel.shard > 1 and tensor == pipeline == 1:
                        yield replace(parallel, offload=True)


def _is_usual(parallel: Parallel) -> bool:
    """On several machines, allow replicated shards only where each machine holds a whole copy."""
    is_both = parallel.data > 1 and parallel.shard > 1
    return not is_both or parallel.gpus <= CARDS_OF_A_MACHINE or parallel.shard * parallel.tensor == CARDS_OF_A_MACHINE


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def _batch_of(plan: Plan) -> int | None:
    knobs = {knob.name: knob.default for knob in knobs_of(plan.workload)}
    return int(knobs["batch"]) if {"batch", "micro_batches"} <= set(knobs) else None


Settings = Mapping[str, str]
Point = tuple[int, ...]
"""The number of the option in each dimension."""
_Change = tuple[int, int]
"""The dimension, and the number of the option there; 0 is none."""
Option = Settings | None
"""An optimization's knobs; None leaves it out."""

_OPTIONS: dict[str, tuple[Settings, ...]] = {
    "allocator_settings": ({"conf": "expandable_segments:True"},),
    "attention_backend": ({"backend": "flash"}, {"backend": "efficient"}),
    "split_feed_forward": ({"splits": "2"}, {"splits": "4"}, {"splits": "8"}),
    "chunked_cross_entropy": ({"tokens": "1024"},),
    "chunked_feed_forward": ({"tokens": "1024"},),
    "layerwise_casting": ({"storage": "float8_e4m3fn"}, {"storage": "float8_e4m3fn", "granularity": "block"}),
    "weight_quantization": ({"bits": "8"}, {"bits": "8", "codes": "float8"}, {"bits": "4"}),
    "weight_offload": (
        {"granularity": "block"},
        {"granularity": "leaf"},
        {"granularity": "part"},
        {"granularity": "model"},
    ),
    "checkpointing": (
        {"every": "1"},
        {"every": "2"},
        {"every": "4"},
        {"every": "1", "keep": "attention"},
        {"every": "1", "offload": "true"},
    ),
    "gradient_accumulation": ({"pieces": "2"}, {"pieces": "4"}, {"pieces": "8"}),
    "flat_gradients": ({"how": "flat"},),
}
"""Settings of each that differ in what they save and cost. An optimization that is not named is tried as it is."""
MOST_CANDIDATES = 6000
"""Larger spaces are sampled down to this many, since each guess looks at all of them."""
_SAME_OPTIMIZER: dict[Optimizer, tuple[Optimizer, ...]] = {
    "adamw": ("adamw", "adamw-fused", "adamw-for-loop"),
    "adamw-fused": ("adamw-fused", "adamw", "adamw-for-loop"),
    "adamw-for-loop": ("adamw-for-loop", "adamw", "adamw-fused"),
}
"""The same arithmetic, in other kernels."""
_LEAST_OPTIMIZER: Optimizer = "sgd"
_USUAL = ({"checkpointing"}, {"checkpointing", "chunked_cross_entropy"}, {"weight_offload"})
"""Common combinations, each with its first option: tried early, so that a good answer comes soon."""


@dataclass(frozen=True)
class Candidate:
    request: Request
    keeps: Keep
    layout: str = ""
    """Layout across GPUs, if not the requested one; else empty."""
    asked: Request | None = None
    """The request that it is a change of."""


@dataclass(frozen=True)
class Space:
    """All combinations of options. Those that cannot be run together are left out."""

    request: Request
    """The original request; its own optimizations are always on."""
    keep: Keep
    names: tuple[str, ...]
    """Dimensions: optimizations, and `optimizer`, `dtype` and `parallel` where these may change."""
    options: tuple[tuple[Option, ...], ...]

    @cached_property
    def candidates(self) -> dict[Point, Candidate]:
        alone, as_it_is = self._allowed_changes, self._keeps(()) or "outputs"
        candidates = {}
        for place in self._points():
            changes = changes_at(place)
            keeps = max((alone[change] for change in changes), key=KEEPS.index, default=as_it_is)
            request = self._request_of(dict(changes))
            is_other = request.parallel != self.request.parallel
            layout = parallel_of(request.parallel).parts if is_other else ""
            candidates[place] = Candidate(request, keeps, layout, self.request)
        return candidates

    def _points(self) -> list[Point]:
        places = list(islice(self._compatible_points(()), MOST_CANDIDATES + 1))
        if len(places) <= MOST_CANDIDATES:
            return places
        luck = random.Random(0)
        distinct = dict.fromkeys(
            place
            for place in self._tried_first()
            if all(number in self._compatible_options(place[:at]) for at, number in enumerate(place))
        )
        while len(distinct) < MOST_CANDIDATES:
            place: Point = ()
            while len(place) < len(self.options):
                place = (*place, luck.choice(self._compatible_options(place)))
            distinct[place] = None
        return list(distinct)

    def _compatible_points(self, begun: Point) -> Iterator[Point]:
        """All that go together and begin so."""
        if len(begun) == len(self.options):
            yield begun
            return
        for number in self._compatible_options(begun):
            yield from self._compatible_points((*begun, number))

    def _compatible_options(self, begun: Point) -> list[int]:
        """Return the options of the next dimension that go with `begun`; 0 is no change."""
        alone, excluded, changes = self._allowed_changes, self._exclusive_pairs, changes_at(begun)
        new = [(len(begun), number) for number in range(1, len(self.options[len(begun)]))]
        fitting = (
            added for added in new if added in alone and not any((change, added) in excluded for change in changes)
        )
        return [0, *(number for _, number in fitting)]

    @cached_property
    def _allowed_changes(self) -> dict[_Change, Keep]:
        """Map each allowed single change to what it keeps."""
        changes = [(place, number) for place, settings in enumerate(self.options) for number in range(1, len(settings))]
        allowed = KEEPS[: KEEPS.index(self.keep) + 1]
        by_change = {change: self._keeps((change,)) for change in changes}
        return {change: keeps for change, keeps in by_change.items() if keeps is not None and keeps in allowed}

    @cached_property
    def _exclusive_pairs(self) -> set[tuple[_Change, _Change]]:
        """Pairs of changes that exclude each other. Optimizations declare conflicts pairwise, so pairs are enough."""
        pairs = combinations(sorted(self._allowed_changes), 2)
        return {pair for pair in pairs if pair[0][0] != pair[1][0] and self._keeps(pair) is None}

    def _keeps(self, changes: Sequence[_Change]) -> Keep | None:
        """None where it cannot be run."""
        request = self._request_of(dict(changes))
        try:
            plan = plan_of(request)
        except UsageError:
            return None
        changed = request.optimizer != self.request.optimizer
        same = request.optimizer in _SAME_OPTIMIZER.get(self.request.optimizer, ())
        is_other = (changed and not same) or "dtype" in {self.names[place] for place, _ in changes}
        # The request itself is fixed: only additional changes can break what must not change.
        requested = {name for name, _ in self.request.optimizations}
        claims = {optimization.claim for optimization in plan.optimizations if optimization.name not in requested}
        if "lossy" in claims:
            return "nothing"
        is_other = is_other or "training" in claims
        return "outputs" if not is_other else "training" if plan.workload.training else "nothing"

    def _request_of(self, numbers: Mapping[int, int]) -> Request:
        request, on = self.request, []
        for place, number in numbers.items():
            name, option = self.names[place], self.options[place][number]
            if option is None:
                continue
            if name == "optimizer":
                request = replace(request, optimizer=option["optimizer"])  # type: ignore[arg-type]
            elif name == "dtype":
                request = replace(request, settings={**request.settings, **option})
            elif name == LAYOUT:
                request = with_layout(request, option)
            else:
                on.append((name, option))
        return replace(request, optimizations=(*request.optimizations, *on))

    def with_other_settings(self, place: Point) -> list[Point]:
        """Return those that differ in allocator settings alone; none on many GPUs, where each is run anew."""
        if ALLOCATOR_SETTINGS not in self.names or parallel_of(self.request.parallel).gpus > 1:
            return []
        at = self.names.index(ALLOCATOR_SETTINGS)
        variants = ((*place[:at], number, *place[at + 1 :]) for number in range(len(self.options[at])))
        return [other for other in variants if other != place and other in self.candidates]

    def first(self) -> Iterator[Point]:
        """Tried first: unchanged, all compatible options at once, common combinations, and each option alone.

        Everything at once comes second, so that a model that fits at all is soon known to fit.
        """
        yield from (place for place in self._tried_first() if place in self.candidates)

    def _tried_first(self) -> Iterator[Point]:
        nothing = (0,) * len(self.names)
        alone = (
            (*nothing[:place], number, *nothing[place + 1 :])
            for place, options in enumerate(self.options)
            for number in range(1, len(options))
        )
        everything: Point = ()
        while len(everything) < len(self.options):
            everything = (*everything, max(self._compatible_options(everything)[:2]))
        usual = (tuple(int(name in together) for name in self.names) for together in _USUAL)
        yield from dict.fromkeys((nothing, everything, *usual, *alone))


def changes_at(place: Point) -> list[_Change]:
    return [change for change in enumerate(place) if change[1]]


def space_of(request: Request, keep: Keep) -> Space:
    plan = plan_of(request)
    training = plan.workload.training
    requested = {name for name, _ in request.optimizations}
    mode = "training" if training else "inference"
    names, options = [], []
    for kind in OPTIMIZATIONS:
        claim = kind().claim
        too_much = (claim == "lossy" and keep != "nothing") or (claim == "training" and keep == "outputs")
        if kind.name in requested or kind.needs not in ("any", mode) or too_much:
            continue
        names.append(kind.name)
        options.append((None, *_OPTIONS.get(kind.name, ({},))))
    if training and request.optimizer != "none":
        same = _SAME_OPTIMIZER.get(request.optimizer, (request.optimizer,))
        other = () if keep == "outputs" or request.optimizer == _LEAST_OPTIMIZER else (_LEAST_OPTIMIZER,)
        names.append("optimizer")
        options.append((None, *({"optimizer": optimizer} for optimizer in (*same[1:], *other))))
    if keep != "outputs" and getattr(plan.workload, "dtype", "") == "fp32":
        names.append("dtype")
        options.append((None, {"dtype": "bf16"}))
    if layouts := layouts_of(plan):
        names.append(LAYOUT)
        options.append((None, *layouts))
    return Space(request, keep, tuple(names), tuple(options))
