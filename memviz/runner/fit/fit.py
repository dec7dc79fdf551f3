"""The cheapest configuration with which a workload fits on a card, and its largest batch or sequence.

`python -m memviz.runner.fit.fit` is a search as a process of its own, for `jobs/service.py`. One line of JSON comes in:
what is searched for. Lines of JSON go out, one for each thing that happens; before each prediction one that asks for a
turn, and it is made when a line comes back.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from memviz.allocator.context import overhead_on
from memviz.allocator.replayer import CardMemory
from memviz.errors import MemvizError, UsageError
from memviz.runner.fit.cost import KEEPS, Keep, Rating, cheapest_that_fits, class_shown, pareto_front
from memviz.runner.fit.largest import Grid, Largest, grid_json, grid_of, largest_that_fits
from memviz.runner.fit.predictions import Predictor
from memviz.runner.fit.search import OnTrial, Searched, Stop, Trial, search
from memviz.runner.fit.space import space_of
from memviz.runner.plan import label_of, plan_of, title_of
from memviz.runner.request import MOST_NAMED, Request, command_of, knobs_of, parallel_of
from memviz.text import nearest
from optimizations import Optimization

LARGEST = ("batch", "sequence")
_MOST_REASONS = 3
_NAMED_LAST = ("allocator_settings", "attention_backend")
_COSTS = ("flops", "bytes_moved", "host_bytes", "link_bytes", "seconds_low", "seconds_high")

Named = Callable[[tuple[Optimization, ...]], str]


@dataclass(frozen=True)
class LargestValue:
    knob: str
    found: Largest
    request: Request
    """With that value."""
    fit: str = ""
    """Fit of that value: "yes" or "close"."""


@dataclass(frozen=True)
class FitAnswer:
    request: Request
    keep: Keep
    usable_bytes: int
    searched: Searched
    largest: LargestValue | None
    """None if not requested, or if no value fits."""
    grid: Grid | None = None
    stopped: str = ""
    """`Stop.by`: what ended the search before it was through."""

    @property
    def chosen(self) -> Trial | None:
        """Cheapest configuration of the strictest class in which any fits."""
        number = cheapest_that_fits(self._ratings)
        return None if number is None else self.searched.ways[number]

    @property
    def as_it_is(self) -> Trial | None:
        """Trial of the unchanged request; None if it could not be predicted."""
        unchanged = (self.request.optimizations, self.request.optimizer)
        for trial in self.searched.ways:
            request = trial.candidate.request
            if not trial.candidate.layout and (request.optimizations, request.optimizer) == unchanged:
                return trial
        return None

    @property
    def grown(self) -> Trial | None:
        """The configuration whose largest batch is sought: what was chosen, or where nothing fits what takes least."""
        return self.chosen or min(self.searched.ways, key=lambda trial: trial.peak_reserved_bytes, default=None)

    @property
    def listed(self) -> tuple[Trial, ...]:
        """The front, and what was chosen where another of the same cost takes less."""
        front, chosen = self.front(self.shown), self.chosen
        if chosen is None or chosen in front:
            return front
        return by_cost((*front, chosen))

    def front(self, keep: Keep) -> tuple[Trial, ...]:
        return tuple(self.searched.ways[number] for number in pareto_front(self._ratings, KEEPS.index(keep)))

    @property
    def shown(self) -> Keep:
        return KEEPS[class_shown(self._ratings)] if self.searched.ways else self.keep

    @property
    def _ratings(self) -> list[Rating]:
        return [trial.rating for trial in self.searched.ways]


def by_cost(ways: Iterable[Trial]) -> tuple[Trial, ...]:
    return tuple(sorted(ways, key=lambda trial: (trial.cost.rank, -trial.peak_reserved_bytes)))


def find_fit(
    request: Request,
    predictor: Predictor,
    *,
    keep: Keep = "outputs",
    largest: str = "",
    grid: bool = False,
    tries: int | None = None,
    stop: Stop | None = None,
    tell: OnTrial = lambda trial, done, of: None,
    tell_largest: Callable[[int], None] = lambda value: None,
) -> FitAnswer:
    """Search for the cheapest configuration that fits; `stop` ends it early with the results so far."""
    plan, stop = plan_of(request), stop or Stop()
    types = {knob.name: knob.type for knob in knobs_of(plan.workload)}
    for name in [*filter(None, [largest]), *(LARGEST if grid else ())]:
        if types.get(name) != "int":
            there = [knob for knob in LARGEST if knob in types]
            raise UsageError(f"{request.workload} has no knob {name} to enlarge.{nearest(name, there)}")
    space = space_of(request, keep)
    searched = search(space, predictor, tell, tries=tries, stop=stop)
    card = CardMemory(plan.card.memory_bytes, overhead_on(plan.card.name))
    usable = card.usable_bytes
    answer = FitAnswer(request, keep, usable, searched, None)
    if answer.grown is not None and not stop.by:
        asks = Asking(answer.grown.candidate.request, predictor, stop)
        if largest:
            answer = replace(answer, largest=asks.largest(largest, usable, tell_largest))
        if grid:
            filled = grid_of(asks, knob_value(asks.request, "sequence"), usable, tell_largest)
            answer = replace(answer, grid=filled)
    return replace(answer, stopped=stop.by if searched.is_stopped or largest or grid else "")


class Asking:
    """One configuration with knobs of other values."""

    def __init__(self, request: Request, predictor: Predictor, stop: Stop | None = None) -> None:
        self.request = request
        self._predictor = predictor
        self._stop = stop or Stop()
        self._fit = ""
        """Fit of the newest prediction."""

    def __call__(self, values: Mapping[str, int]) -> tuple[bool, int] | str:
        """Return (fits, peak without a limit), or why these values are refused."""
        turned = self._with(values)
        try:
            plan_of(turned)
        except UsageError as error:
            return str(error)
        with self._stop.ends():
            prediction = self._predictor.one(turned, self._stop.until)
        self._fit = prediction.fit
        fits = prediction.fits is True and turned.fits_host(prediction.host_peak_bytes) is not False
        return prediction.refused or (fits, prediction.peak_reserved_bytes)

    def largest(self, knob: str, usable: int, tell: Callable[[int], None]) -> LargestValue | None:
        reasons: dict[int, str] = {}

        def fits(value: int) -> tuple[bool, int] | str:
            tell(value)
            answer = self({knob: value})
            reasons[value] = self._fit
            return answer

        result = largest_that_fits(fits, usable, knob_value(self.request, knob))
        if result is None:
            return None
        return LargestValue(
            knob, result, replace(self._with({knob: result.value}), numerics=False), reasons[result.value]
        )

    def _with(self, values: Mapping[str, int]) -> Request:
        texts = {knob: str(value) for knob, value in values.items()}
        return replace(self.request, settings={**self.request.settings, **texts})


def knob_value(request: Request, name: str) -> int:
    return int({knob.name: knob.default for knob in knobs_of(plan_of(request).workload)}[name])


# -- for programs


def fit_json(answer: FitAnswer) -> dict[str, Any]:
    chosen, card, allowed = answer.chosen, plan_of(answer.request).card, KEEPS[: KEEPS.index(answer.keep) + 1]
    return {
        "workload": answer.request.workload,
        "settings": dict(answer.request.settings),
        "card": card.name,
        "card_bytes": card.memory_bytes,
        "usable_bytes": answer.usable_bytes,
        "keep": answer.keep,
        "chosen": None if chosen is None else trial_json(chosen),
        "front": [trial_json(trial) for trial in answer.front(answer.shown)],
        "fronts": {keep: [trial_json(trial) for trial in answer.front(keep)] for keep in allowed},
        "tried": answer.searched.tried,
        "of": answer.searched.of,
        "planned": answer.searched.planned,
        "settled": answer.searched.is_settled,
        "stopped": answer.stopped or None,
        "refused": {
            "count": len(answer.searched.refused),
            "reasons": list(dict.fromkeys(answer.searched.refused))[:_MOST_REASONS],
        },
        "largest": largest_json(answer),
        "grid": None if answer.grid is None else grid_json(answer.grid),
    }


def trial_json(trial: Trial) -> dict[str, Any]:
    request, cost = trial.candidate.request, trial.cost
    return {
        "optimizations": [{"name": name, **knobs} for name, knobs in request.optimizations],
        "optimizer": request.optimizer,
        "settings": dict(request.settings),
        "parallel": parallel_of(request.parallel).as_json,
        "label": trial_label(trial),
        "title": trial_label(trial, title_of),
        "short_title": short_label(trial, title_of),
        "keeps": trial.candidate.keeps,
        "fits": trial.fits,
        "fit": trial.prediction.fit,
        "expected_error": trial.prediction.expected_error,
        "changes": list(changes_of(trial)),
        "warnings": list(trial.prediction.warnings),
        "peak_allocated_bytes": trial.prediction.peak_allocated_bytes,
        "peak_reserved_bytes": trial.peak_reserved_bytes,
        "peak_reserved_without_limit_bytes": trial.prediction.peak_reserved_bytes,
        "pinned_host_bytes": trial.prediction.pinned_host_bytes,
        "host_peak_bytes": trial.prediction.host_peak_bytes,
        "fits_host": trial.fits_host,
        "cost": {**{name: getattr(cost, name) for name in _COSTS}, "per": plan_of(request).unit},
        "command": trial.prediction.command,
        "code": trial.prediction.code,
    }


def changes_of(trial: Trial) -> Iterator[str]:
    """Yield differences from the request other than optimizations: optimizer, dtype or layout."""
    original, request = trial.candidate.asked, trial.candidate.request
    if original is None:
        return
    if request.optimizer != original.optimizer:
        yield f"optimizer {request.optimizer} instead of {original.optimizer}"
    if trial.candidate.layout:
        yield f"{trial.candidate.layout} instead of {plan_of(original).parallel.parts}"
    before = {knob.name: str(knob.default) for knob in knobs_of(plan_of(original).workload)}
    yield from (f"{name} {text} instead of {before[name]}" for name, text in _other_settings(trial).items())


def _other_settings(trial: Trial) -> dict[str, str]:
    original = trial.candidate.asked
    original_settings = {} if original is None else original.settings
    settings = {} if original is None else trial.candidate.request.settings
    return {name: text for name, text in settings.items() if text != original_settings.get(name)}


def trial_label(trial: Trial, label: Named = label_of) -> str:
    """`checkpointing every=2 + adamw-fused`, or `baseline`; in the words of the page by `title_of`."""
    request = trial.candidate.request
    plan = plan_of(request)
    # The requested layout is named too, since other trials name theirs.
    layout = trial.candidate.layout or (plan.parallel.parts if plan.parallel.gpus > 1 else "")
    more = [layout] if layout else []
    more += [] if request.optimizer == "none" else [request.optimizer]
    more += [text for name, text in _other_settings(trial).items() if name == "dtype"]
    return " + ".join([*more, *([label(plan.optimizations)] if plan.optimizations or not more else [])])


def short_label(trial: Trial, label: Named = label_of) -> str:
    """Return a headline: two changes of the request and its new optimizer, if any, and the number of other changes."""
    request, original = trial.candidate.request, trial.candidate.asked or trial.candidate.request
    original_names = {name for name, _ in original.optimizations}
    added = [change for change in plan_of(request).optimizations if change.name not in original_names]
    parts = [label((change,)) for change in sorted(added, key=lambda change: change.name in _NAMED_LAST)]
    parts += [trial.candidate.layout] if trial.candidate.layout else []
    parts += [text for name, text in _other_settings(trial).items() if name == "dtype"]
    more = len(parts) - MOST_NAMED
    # Another optimizer is always named, since a search changes it unasked.
    optimizer = [request.optimizer] if request.optimizer != original.optimizer else []
    together = " + ".join([*parts[:MOST_NAMED], *optimizer]) or trial_label(trial, label)
    return f"{together} and {more} more" if more > 0 else together


def largest_json(answer: FitAnswer) -> dict[str, Any] | None:
    if answer.largest is None:
        return None
    largest, result = answer.largest, answer.largest.found
    grown = answer.grown
    assert grown is not None
    return {
        "knob": largest.knob,
        "value": result.value,
        "next_fails": result.next_fails,
        "next_refused": result.refused.removeprefix(f"{answer.request.workload}: ") or None,
        "predictions": result.predictions,
        "fit": largest.fit,
        "stopped": result.is_stopped,
        "label": trial_label(grown),
        "title": trial_label(grown, title_of),
        "command": command_of(largest.request),
    }


# -- as a process of its own


class _Driver:
    def __init__(self, out: Any) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(0)

    def send(self, kind: str, **rest: Any) -> None:
        with self._lock:
            self._out.write(json.dumps({"kind": kind, **rest}) + "\n")
            self._out.flush()

    def listen(self) -> None:
        """Release one turn per line of stdin; exit the process when the client closes it."""
        for _ in sys.stdin:
            self._turn.release()
        os._exit(0)

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.send("turn")
        self._turn.acquire()
        try:
            yield
        finally:
            self.send("over")

    def search(self, order: Mapping[str, Any]) -> None:
        def tell(trial: Trial | None, done: int, of: int) -> None:
            self.send("way", way=None if trial is None else trial_json(trial), done=done, of=of)

        with Predictor(processes=1, timeout=order["seconds"], turn=self.turn) as predictor:
            answer = find_fit(
                Request.from_json(order["request"]),
                predictor,
                keep=order["keep"],
                largest=order["largest"],
                grid=order["grid"],
                stop=Stop(order["time_limit"]),
                tell=tell,
                tell_largest=lambda value: self.send("value", value=value),
            )
        self.send("answer", answer=fit_json(answer))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    driver = _Driver(out)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=driver.listen, daemon=True).start()
    try:
        driver.search(order)
    except MemvizError as error:
        driver.send("failed", text=str(error))
    except Exception as error:
        driver.send("failed", text=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
