"""The cheapest way to make a workload fit on a card, and how large a batch or sequence may get that way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memviz.allocator.context import overhead_on
from memviz.allocator.what_if import CardMemory
from memviz.errors import UsageError
from memviz.runner.fit.front import TriedWay, cheapest_that_fits, front_of
from memviz.runner.fit.grid import Grid, Predicted, grid_json, grid_of
from memviz.runner.fit.largest import Largest, largest_that_fits
from memviz.runner.fit.predictions import Predictor
from memviz.runner.fit.search import Searched, Told, search
from memviz.runner.fit.space import KEEPS, Keep, space_of
from memviz.runner.knobs import described, nearest
from memviz.runner.parallel.parallel import parallel_of
from memviz.runner.plan import label_of, plan_of, title_of
from memviz.runner.request import Request
from optimizations import Optimization

LARGEST = ("batch", "sequence")
_MOST_REASONS = 3


@dataclass(frozen=True)
class FitAnswer:
    request: Request
    keep: Keep
    usable_bytes: int
    searched: Searched
    largest: tuple[str, Largest] | None
    """The knob, and its largest value; None where nobody asked, or nothing fits."""
    grid: Grid | None = None

    @property
    def chosen(self) -> TriedWay | None:
        """Of the strongest class in which anything fits."""
        for keep in KEEPS:
            way = cheapest_that_fits(way for way in self.searched.ways if way.candidate.keeps == keep)
            if way is not None:
                return way
        return None

    @property
    def as_it_is(self) -> TriedWay | None:
        """With nothing changed of what was asked, where that could be predicted."""
        asked = (self.request.optimizations, self.request.optimizer)
        for way in self.searched.ways:
            request = way.candidate.request
            if not way.candidate.layout and (request.optimizations, request.optimizer) == asked:
                return way
        return None

    def front(self, keep: Keep) -> tuple[TriedWay, ...]:
        return front_of(way for way in self.searched.ways if way.candidate.keeps == keep)

    @property
    def shown(self) -> Keep:
        """The class whose front leads on: that of what was chosen, else the weakest that was allowed."""
        return self.keep if self.chosen is None else self.chosen.candidate.keeps


def find_fit(
    request: Request,
    predictor: Predictor,
    *,
    keep: Keep = "outputs",
    largest: str = "",
    grid: bool = False,
    tell: Told = lambda way, done, of: None,
    tell_largest: Callable[[int], None] = lambda value: None,
) -> FitAnswer:
    plan = plan_of(request)
    for knob in [*filter(None, [largest]), *(LARGEST if grid else ())]:
        _check_knob(request, knob)
    space = space_of(request, keep)
    searched = search(space, predictor, tell)
    card = CardMemory(plan.card.memory_bytes, overhead_on(plan.card.name))
    answer = FitAnswer(request, keep, card.usable_bytes, searched, None)
    if largest and answer.chosen is not None:
        largest_found = _largest(answer.chosen.candidate.request, largest, card.usable_bytes, predictor, tell_largest)
        answer = replace(answer, largest=None if largest_found is None else (largest, largest_found))
    if grid and answer.chosen is not None:
        asks = asking(answer.chosen.candidate.request, predictor)
        answer = replace(
            answer,
            grid=grid_of(
                asks, knob_value(answer.chosen.candidate.request, "sequence"), card.usable_bytes, tell_largest
            ),
        )
    return answer


def _check_knob(request: Request, name: str) -> None:
    knobs = {knob.name: knob for knob in described(plan_of(request).workload)}
    if name not in knobs or knobs[name].type != "int":
        there = [knob for knob in LARGEST if knob in knobs]
        raise UsageError(f"{request.workload} has no knob {name} to make larger.{nearest(name, there)}")


def _largest(
    request: Request, knob: str, usable: int, predictor: Predictor, tell: Callable[[int], None]
) -> Largest | None:
    predicted = asking(request, predictor)

    def fits(value: int) -> tuple[bool, int] | str:
        tell(value)
        return predicted({knob: value})

    return largest_that_fits(fits, usable, knob_value(request, knob))


def asking(request: Request, predictor: Predictor) -> Predicted:
    """Whether the way fits with knobs of these values, and its peak without a limit; or why they are refused."""

    def predicted(values: Mapping[str, int]) -> tuple[bool, int] | str:
        turned = replace(request, settings={**request.settings, **{knob: str(n) for knob, n in values.items()}})
        try:
            plan_of(turned)
        except UsageError as error:
            return str(error)
        prediction = predictor.one(turned)
        return prediction.refused or (prediction.fits is True, prediction.peak_reserved_bytes)

    return predicted


def knob_value(request: Request, name: str) -> int:
    return int({knob.name: knob.default for knob in described(plan_of(request).workload)}[name])


# -- for programs


def fit_json(answer: FitAnswer) -> dict[str, Any]:
    chosen = answer.chosen
    return {
        "workload": answer.request.workload,
        "settings": dict(answer.request.settings),
        "card": plan_of(answer.request).card.name,
        "usable_bytes": answer.usable_bytes,
        "keep": answer.keep,
        "chosen": None if chosen is None else way_json(chosen),
        "front": [way_json(way) for way in answer.front(answer.shown)],
        "fronts": {keep: [way_json(way) for way in answer.front(keep)] for keep in allowed(answer.keep)},
        "tried": answer.searched.tried,
        "of": answer.searched.of,
        "refused": {
            "count": len(answer.searched.refused),
            "reasons": list(dict.fromkeys(answer.searched.refused))[:_MOST_REASONS],
        },
        "largest": largest_json(answer),
        "grid": None if answer.grid is None else grid_json(answer.grid),
    }


def allowed(keep: Keep) -> tuple[Keep, ...]:
    return KEEPS[: KEEPS.index(keep) + 1]


def way_json(way: TriedWay) -> dict[str, Any]:
    request, cost = way.candidate.request, way.cost
    return {
        "optimizations": [{"name": name, **knobs} for name, knobs in request.optimizations],
        "optimizer": request.optimizer,
        "settings": dict(request.settings),
        "parallel": parallel_of(request.parallel).used,
        "label": way_label(way),
        "title": way_label(way, title_of),
        "keeps": way.candidate.keeps,
        "fits": way.fits,
        "fit": way.prediction.fit,
        "expected_error": way.prediction.expected_error,
        "peak_allocated_bytes": way.prediction.peak_allocated_bytes,
        "peak_reserved_bytes": way.peak_reserved_bytes,
        "peak_reserved_without_limit_bytes": way.prediction.peak_reserved_bytes,
        "pinned_host_bytes": way.prediction.pinned_host_bytes,
        "cost": {
            "flops": cost.flops,
            "bytes_moved": cost.bytes_moved,
            "host_bytes": cost.host_bytes,
            "link_bytes": cost.link_bytes,
            "seconds_low": cost.seconds_low,
            "seconds_high": cost.seconds_high,
            "per": plan_of(request).unit,
        },
        "command": way.prediction.command,
        "code": way.prediction.code,
    }


def way_label(way: TriedWay, named: Callable[[tuple[Optimization, ...]], str] = label_of) -> str:
    """`checkpointing every=2 + adamw-fused`, or `baseline`; in the words of the page by `title_of`."""
    request = way.candidate.request
    plan = plan_of(request)
    # Among ways to part them, the one that was asked for has its name too.
    layout = way.candidate.layout or (plan.parallel.parts if plan.parallel.gpus > 1 else "")
    more = [layout] if layout else []
    more += [] if request.optimizer == "none" else [request.optimizer]
    return " + ".join([*more, *([named(plan.optimizations)] if plan.optimizations or not more else [])])


def largest_json(answer: FitAnswer) -> dict[str, Any] | None:
    if answer.largest is None:
        return None
    knob, largest_value = answer.largest
    return {
        "knob": knob,
        "value": largest_value.value,
        "next_fails": largest_value.next_fails,
        "next_refused": largest_value.refused.removeprefix(f"{answer.request.workload}: ") or None,
        "predictions": largest_value.predictions,
    }
