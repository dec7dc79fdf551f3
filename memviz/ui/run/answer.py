"""Orders, prices and kept runs of the Run tab, between its form and its view, and how much one visitor may order."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memviz.allocator.context import overhead_on
from memviz.allocator.replayer import CardMemory
from memviz.errors import MemvizError, TraceError, UsageError
from memviz.predictor.cards import card_named, short_name
from memviz.results.fit import cheapest_fitting
from memviz.results.run import base_of, variants_headline
from memviz.runner.jobs.kept_runs import KeptRuns, default_folder
from memviz.runner.jobs.limits import TIMEOUT_SECONDS, most_bytes, most_seconds
from memviz.runner.jobs.service import OrderStatus, Scheduler, Searches, SearchOrder, SearchStatus, Variant
from memviz.runner.jobs.worker_process import listing, stored_listing
from memviz.runner.jobs.zero_gpu import LENT_DEVICE, is_zero_gpu
from memviz.runner.request import Request, Run, file_of_rank, load_run, with_run
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.ui.payloads.timelines import LinkedTrace, linked_values
from memviz.ui.run.form import (
    BASELINE,
    FormFields,
    RunLink,
    RunRequests,
    field_of_refusal,
    form_fields_of,
    requests_of,
    search_order,
)
from memviz.ui.run.form_html import PriceList
from memviz.ui.run.predictions import Predictions, changes, remember, request_key
from memviz.ui.run.published_examples import PublishedTables
from memviz.ui.shell.session import MOST_COMPARED, Refused, Session, open_once
from memviz.ui.shell.store import TraceStore


@dataclass(frozen=True)
class RunLimits:
    variants: int = 32
    """In one order."""
    seconds: float = TIMEOUT_SECONDS
    """For each variant."""
    memory_bytes: int | None = None
    """Limit of this machine's memory for each variant; without it a default that suits the machine."""
    patience_seconds: float = 120.0
    """How long an order that no page follows continues: a reloaded page resumes it."""
    price_seconds: float = 120.0
    """Time limit of a prediction that is made for a price, and of an output check."""
    waiting: int = 32
    """Visitors at once."""
    searches: int = 8
    """For ways that fit, at once: each is a process of its own."""


AT_HOME = RunLimits()
ON_A_SPACE = RunLimits(variants=12, seconds=240.0, price_seconds=30.0, waiting=24, patience_seconds=30.0, searches=2)


def run_limits(environment: Mapping[str, str] = os.environ) -> RunLimits:
    """MEMVIZ_MAX_RUN_SECONDS and MEMVIZ_MAX_RUN_BYTES set two of them."""
    usual = ON_A_SPACE if environment.get("SPACE_ID") else AT_HOME
    return replace(usual, seconds=most_seconds(usual.seconds, environment), memory_bytes=most_bytes(environment))


_MOST_CHOSEN = 512
"""Orders of which a choice is remembered."""
_BETWEEN_PICTURES = 0.7
_LOOKS_AHEAD_SECONDS = 4.0
"""Delay, so that loading the page and a dropped file come first."""
_LOOK_SECONDS = 0.5
_CARD_IN_SIGHT, _ABOVE_CARD = 2.5, 1.04


def _with_lent_gpu(listed: dict[str, Any]) -> dict[str, Any]:
    return {**listed, "device": LENT_DEVICE} if is_zero_gpu() else listed


def refused(requests: RunRequests, variant: Variant | None) -> RunRequests:
    """Add the reason for which a run was refused as a fault of its field."""
    if variant is None or variant.what != "refused":
        return requests
    return replace(requests, faults={field_of_refusal(variant.phase, requests): variant.phase, **requests.faults})


@dataclass(frozen=True)
class RunState:
    """State of one visitor's Run tab."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the form, as sent by the browser."""
    order: str = ""
    is_answered: bool = False
    """The page shows figures, of this order or of an earlier one."""
    search: str = ""
    """Search for a configuration that fits, if displayed."""
    way: int | None = None
    """The chosen point of the search."""
    opening: str = ""
    """The order whose trace is to be opened as soon as it is done."""
    story: str = ""
    pinned: tuple[tuple[Request, str], ...] = ()
    """Variants that stay in the table while the form changes, with their labels."""
    by_saving: bool = False
    """Sort optimizations by what they save."""
    drawn: int = 0
    """Version of the form."""
    finding: str = ""
    """The kind of a finding that led here, until the form says what helps against it."""
    link: RunLink | None = None
    """Link that filled the form; its answer starts by itself."""
    stands_in: bool = False
    """The model of the form stands in for that of a recording, until the form is changed."""


def with_measured(requests: RunRequests) -> RunRequests:
    """Put a measured run after each predicted one."""
    pairs = list(zip(requests.requests, requests.labels, strict=True))
    wanted = [
        pair
        for request, label in pairs
        for pair in ((replace(request, numerics=False), label), (replace(request, on="cuda"), f"{label}, measured"))
    ]
    return RunRequests(tuple(request for request, _ in wanted), tuple(label for _, label in wanted))


def timeline_values(traces: Sequence[LinkedTrace], status: OrderStatus) -> list[dict[str, Any]]:
    """Return the values of both timelines, on one scale with the line of the card."""
    if not traces:
        return [{}, {}]
    values = linked_values(traces)
    run = next((variant.run for variant in status.variants if variant.run is not None), None)
    top = values[0]["top"]
    if run is not None and run.fit is not None and 0 < run.fit.usable_bytes <= _CARD_IN_SIGHT * top:
        usable = run.fit.usable_bytes
        line = {"bytes": usable, "text": short_name(card_named(run.request.card).name), "is_limit": True}
        top = max(top, usable * _ABOVE_CARD)
        values = [{**value, "ruler": line, "top": top} for value in values]
    return [*values, *[{}] * (2 - len(values))]


class RunAnswers:
    """One for a page. It keeps visitors' orders under secret keys, and their runs in separate folders."""

    def __init__(
        self,
        store: TraceStore,
        folder: Path | None = None,
        limits: RunLimits | None = None,
        programs: Sequence[str] = (),
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`programs` are Python files given at startup. While the page `is_busy`, nothing is worked out ahead."""
        self.store = store
        self._is_busy = is_busy
        self.programs = tuple(programs)
        self.source_folders = (*{str(Path(program).parent) for program in programs}, str(Path(__file__).parents[2]))
        """Folders of what runs here: the given programs, and our workloads."""
        self.limits = limits = limits or run_limits()
        self.scheduler = Scheduler(
            timeout=limits.seconds,
            memory=limits.memory_bytes,
            most_waiting=limits.waiting,
            patience=limits.patience_seconds,
        )
        self.searches = Searches(
            self.scheduler.line,
            seconds=limits.seconds,
            patience=limits.patience_seconds,
            memory=limits.memory_bytes,
            most=limits.searches,
        )
        self.predictions = Predictions(store, limits.price_seconds, limits.memory_bytes)
        self.tables = PublishedTables()
        self._folder = folder or default_folder()
        self._listing: dict[str, Any] | None = None if self.programs else _with_lent_gpu(stored_listing())
        self._is_complete = False
        """PyTorch was asked which GPU it finds."""
        self._looks_ahead: threading.Timer | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._lists = threading.Lock()
        """Held for seconds while PyTorch starts; only callers of `complete_listing` wait for it."""
        self._chosen: OrderedDict[str, int] = OrderedDict()
        self._turns: OrderedDict[str, int] = OrderedDict()
        """The latest event of each visitor that asked for an answer: answers to earlier ones are not shown."""
        self._best: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """For each search, the title of its best configuration so far, and the order that runs it."""

    def look_ahead(self) -> None:
        """Complete the listing, and warm up a process, before a visitor comes to the tab: each takes seconds."""
        with self._lock:
            if self._looks_ahead is None:
                self._looks_ahead = threading.Timer(_LOOKS_AHEAD_SECONDS, self._look)
                self._looks_ahead.daemon = True
                self._looks_ahead.start()

    def _look(self) -> None:
        while self._is_busy():
            if self._closed.wait(_LOOK_SECONDS):
                return
        # The tab's first visit tries again, and shows the error.
        with suppress(MemvizError, OSError):
            self.complete_listing()
            self.scheduler.warm_up()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._looks_ahead is not None:
                self._looks_ahead.cancel()
        self.searches.close()
        self.scheduler.close()
        self.predictions.close()

    def listing(self) -> dict[str, Any]:
        """The available workloads and optimizations, the same for every visitor; without its GPU until complete."""
        if self._listing is None:
            self.complete_listing()
        assert self._listing is not None
        return self._listing

    @property
    def is_listed(self) -> bool:
        return self._listing is not None

    def complete_listing(self) -> bool:
        """Ask PyTorch for what it can run here, once; return whether the listing has changed."""
        with self._lists:
            if self._is_complete:
                return False
            before, self._listing = self._listing, _with_lent_gpu(listing(self.programs))
            self._is_complete = True
            return before != self._listing

    def parse(self, fields: Mapping[str, Any]) -> tuple[FormFields, RunRequests]:
        """Return the form and its requests, with the fault for which a run of the same was refused."""
        form = form_fields_of(fields, self.listing())
        if not form.card:
            names: list[str] = [card["name"] for card in self.listing()["cards"]]
            form = replace(form, card=next((name for name in names if "4090" in name), names[0]))
        requests = requests_of(form, self.listing(), self.limits.variants)
        known = self.predictions.refusal(requests.requests[-1]) if requests.count else None
        return form, refused(requests, known)

    def kept(self, visitor: str) -> KeptRuns:
        return KeptRuns(self._folder, visitor)

    def begin(self, requests: RunRequests, visitor: str, *, keeps: bool = True) -> OrderStatus:
        """Start the runs that are not known yet, instead of what this visitor has under way.

        With `keeps` their results are stored at once, even if the visitor has left.
        """
        self._make_way(visitor)
        known = [self.predictions.known(request) for request in requests.requests]
        kept = self.kept(visitor) if keeps else None

        def finished(variant: Variant) -> str:
            self.predictions.keep(variant)
            return "" if kept is None else _store_run(kept, variant)

        if kept is not None:
            for variant, label in zip(known, requests.labels, strict=True):
                if variant is not None and variant.is_over:
                    _store_run(kept, replace(variant, label=label))
        return self.scheduler.submit(requests.requests, requests.labels, finished, visitor, known=known)

    def resumed(self, state: RunState, visitor: str) -> RunState:
        """Return the state with what this visitor's browser had on the page; of a link only what answers it."""
        order, search = self.scheduler.newest_of(visitor), self.searches.newest_of(visitor)
        if link := state.link:
            pins = []
            for label, fields in link.pins:
                form, requests = self.parse(fields)
                # Those that this page cannot run are left out.
                if requests.count and not requests.faults and form.workload == fields.get("workload"):
                    pins.append((replace(requests.requests[-1], label=""), label))
            state = replace(state, pinned=tuple(pins))
            _, requests = self.parse(state.fields)
            wanted = self.with_pinned(requests, state.pinned).requests
            has = [] if order is None or link.is_search else [variant.request for variant in order.variants]
            order = order if has and set(map(request_key, has)) == set(map(request_key, wanted)) else None
            linked = None
            with suppress(UsageError):
                linked = search_order(state.fields, requests) if link.is_search else None
            search = search if search and search.order == linked else None
        return replace(state, drawn=1, order=order.id if order else "", search=search.id if search else "")

    def begin_turn(self, visitor: str, turn: int = 0) -> Callable[[], bool]:
        """Leave what this visitor has under way; return a function that is true until a later turn begins.

        `turn` orders events that overtake each other; without one it is the latest.
        """
        with self._lock:
            latest = self._turns.get(visitor, 0)
            turn = turn or latest + 1
            if turn < latest:
                return lambda: False
            remember(self._turns, visitor, turn, _MOST_CHOSEN)
        self._make_way(visitor)
        return lambda: self._turns.get(visitor) == turn

    def cancel(self, visitor: str) -> None:
        """Cancel a search, whose best is still run, or else what runs."""
        search, order = self.searches.newest_of(visitor), self.scheduler.newest_of(visitor)
        if search is not None and not search.is_over:
            self.searches.cancel(search.id)
        elif order is not None:
            self.scheduler.cancel(order.id)

    def _make_way(self, visitor: str) -> None:
        self.predictions.leave(visitor)
        newest = self.scheduler.newest_of(visitor)
        if newest is not None:
            self.scheduler.leave(newest.id, stops=any(variant.request.on == "cuda" for variant in newest.variants))

    def keep_variant(self, status: OrderStatus, number: int, visitor: str) -> str:
        """Copy a prediction among the kept runs; return what went wrong."""
        (variant,) = self.predictions.with_checks([status.variants[number]])
        return _store_run(self.kept(visitor), variant) if visitor else ""

    def search(self, order: SearchOrder, visitor: str) -> SearchStatus:
        self._make_way(visitor)
        return self.searches.submit(order, visitor)

    def follow_search(self, id: str, is_there: Callable[[], bool] = lambda: True) -> Iterator[SearchStatus]:
        """Its changes, no more often than they can be looked at."""
        status, seen = self.searches.status(id), -1
        try:
            while status is not None and is_there():
                if status.version != seen:
                    yield status
                if status.is_over:
                    return
                time.sleep(_BETWEEN_PICTURES)
                seen = status.version
                status = self.searches.status(id, newer_than=seen, wait=1.0)
        finally:
            self.searches.release(id)

    def best_of(self, search: SearchStatus, visitor: str) -> OrderStatus | None:
        """Return the runs of the request and of the best configuration so far; begin them where that changed."""
        number = cheapest_fitting(search.ways)
        title, order = self._best.get(search.id, ("", ""))
        status = self.status(order)
        newest = self.scheduler.newest_of(visitor)
        # The search goes on meanwhile, so runs of an earlier best end before those of a better one begin.
        is_busy = newest is not None and not newest.is_over and not newest.is_left
        if number is None or title == search.ways[number]["title"] or is_busy:
            return status
        point, base = search.ways[number], replace(search.order.request, numerics=False)
        best = _request_of(search, point)
        is_base = request_key(best) == request_key(base)
        requests = RunRequests((base, best)[: 2 - is_base], (BASELINE, str(point["title"]))[: 2 - is_base])
        try:
            status = self.begin(requests, visitor, keeps=False)
        except MemvizError:
            # Too many wait: the figures of the search are there without it.
            return status
        with self._lock:
            remember(self._best, search.id, (str(point["title"]), status.id), _MOST_CHOSEN)
        return status

    def shown_order(self, state: RunState) -> str:
        """Return the order whose runs are displayed: that of the form, or the best of a search."""
        return state.order or self._best.get(state.search, ("", ""))[1]

    def timeline_of(self, id: str, number: int, visitor: str) -> OrderStatus:
        """Run one point of a search to get its trace; UsageError if the search is gone."""
        status = self.searches.status(id)
        if status is None or not 0 <= number < len(status.ways):
            raise UsageError("This search is no longer available. Search again.")
        point = status.ways[number]
        return self.begin(RunRequests((_request_of(status, point),), (str(point["title"]),)), visitor)

    def usable_bytes(self, card: str) -> int:
        """Return a card's memory less the largest overhead of its CUDA context."""
        known = card_named(card)
        return CardMemory(known.memory_bytes, overhead_on(known.name)).usable_bytes

    def follow(self, order: str, is_there: Callable[[], bool] = lambda: True) -> Iterator[OrderStatus]:
        """Yield each change of an order, until it ends, its owner starts another, or its visitor leaves."""
        try:
            for status in changes(self.scheduler, order, is_there):
                for variant in status.variants:
                    self.predictions.keep_failure(variant)
                yield status
        finally:
            self.scheduler.release(order)

    def status(self, order: str) -> OrderStatus | None:
        return self.scheduler.status(order) if order else None

    def choose(self, order: str, number: int) -> None:
        """Show this variant beside the baseline, instead of the last one."""
        with self._lock:
            remember(self._chosen, order, number, _MOST_CHOSEN)

    def with_pinned(self, requests: RunRequests, pinned: Sequence[tuple[Request, str]]) -> RunRequests:
        """Put pinned variants after the baseline. Outputs are checked in the background."""
        own = {request_key(request) for request in requests.requests}
        pairs = list(zip(requests.requests, requests.labels, strict=True))
        pairs[1:1] = [pin for pin in pinned if request_key(pin[0]) not in own]
        wanted = tuple(replace(request, numerics=False) for request, _ in pairs)
        return RunRequests(wanted, tuple(label for _, label in pairs))

    def price_list(self, requests: RunRequests, *, by_saving: bool) -> PriceList:
        if requests.faults or not requests.count:
            return PriceList(by_saving=by_saving)
        prices, flops = self.predictions.prices(requests.requests[-1], self.listing())
        return PriceList(prices, by_saving, flops)

    def checked(self, status: OrderStatus, pinned: Sequence[tuple[Request, str]] = ()) -> OrderStatus:
        """Return the status with the output checks that were made since, and with what is pinned."""
        keys = {request_key(request) for request, _ in pinned}
        variants = self.predictions.with_checks(status.variants)
        marked = (replace(variant, is_pinned=request_key(variant.request) in keys) for variant in variants)
        return replace(status, variants=tuple(marked))

    def in_background(
        self, status: OrderStatus, requests: RunRequests, visitor: str, is_there: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        if requests.faults or not requests.count:
            return iter(())
        base = requests.requests[-1]
        return self.predictions.in_background(
            status.variants, base, self.listing(), visitor, checks=base.numerics, is_there=is_there
        )

    def shown_pair(self, status: OrderStatus) -> list[LinkedTrace]:
        """Return the traces of the baseline and of the chosen variant, as far as both have run."""
        number = self.shown(status)
        numbers = dict.fromkeys((base_of(status.variants, number), number))
        return self.predictions.traces([status.variants[number] for number in numbers])

    def shown(self, status: OrderStatus) -> int:
        """Return the number of the variant beside the baseline: the chosen one, else the headline's or the last run.

        A headline about a pinned variant does not hide what the form has now.
        """
        chosen = self._chosen.get(status.id)
        last = len(status.variants) - 1
        if not status.is_over:
            last = max((number for number, one in enumerate(status.variants) if one.run is not None), default=last)
        elif (best := variants_headline(status.variants).number) and not status.variants[best].is_pinned:
            last = best
        return last if chosen is None or chosen >= len(status.variants) else chosen

    def opened(self, session: Session, order: str, numbers: list[int] | None = None) -> Session:
        """The traces of these variants, or of all, as open traces; the first few are compared, baseline first."""
        status = self.status(order)
        if status is None:
            return session
        variants = self.predictions.with_checks(status.variants)
        chosen = [one for at, one in enumerate(variants) if (one.run if numbers is None else at in numbers)]
        files = [(variant.file, variant) for variant in chosen if variant.file is not None]
        session, keys = session.without_refused(), []
        for file, variant in files[:MOST_COMPARED]:
            session, is_open = self._read(session, file, variant.label, variant.run)
            keys += [session.chosen] if is_open else []
        return replace(session, compared=tuple(keys)) if numbers is None and len(keys) > 1 else session

    def opened_rank(self, session: Session, order: str, number: int, rank: int) -> Session:
        """The trace of one rank of a variant on many GPUs."""
        status = self.status(order)
        variant = status.variants[number] if status is not None and number < len(status.variants) else None
        if variant is None or variant.run is None or variant.file is None:
            return session
        if rank not in [one.predicted_rank for one in variant.run.classes]:
            return session
        path = file_of_rank(variant.file, rank, variant.run.rank)
        return self._read(session.without_refused(), path, f"{variant.label}, rank {rank}")[0]

    def _read(self, session: Session, path: Path, name: str, run: Run | None = None) -> tuple[Session, bool]:
        """`run` has the output check that was made since. Files of runs go after some hours; what was kept stays."""
        try:
            trace = load_trace(path)
            named = _with_name(with_run(trace, run) if run else trace, name)
            return open_once(self.store, session, named, source_folders=self.source_folders), True
        except (OSError, TraceError):
            return session.with_refused(Refused(name, "The file of this run was deleted. Run it again.")), False

    def reopened(self, session: Session, visitor: str, id: str) -> Session:
        """UsageError where it is gone."""
        stored = self.kept(visitor).get(id)
        trace = with_run(load_run(stored.path)[0], stored.run)
        session, named = session.without_refused(), _with_name(trace, stored.name)
        return open_once(self.store, session, named, source_folders=self.source_folders)


def _request_of(search: SearchStatus, point: Mapping[str, Any]) -> Request:
    chosen = tuple(
        (change["name"], {knob: text for knob, text in change.items() if knob != "name"})
        for change in point["optimizations"]
    )
    settings = {key: str(value) for key, value in point["settings"].items()}
    return replace(
        search.order.request, optimizations=chosen, optimizer=point["optimizer"], settings=settings, numerics=False
    )


def _with_name(trace: Trace, name: str) -> Trace:
    return replace(trace, about=replace(trace.about, source=name))


def _store_run(stored_runs: KeptRuns, variant: Variant) -> str:
    """A full disk costs the copy, not the run: its own file is there until the page ends."""
    if variant.file is None or variant.run is None:
        return ""
    try:
        stored_runs.keep(variant.file, variant.run, variant.label)
    except (OSError, MemvizError) as error:
        return f"It is not among the kept runs: {error}"
    return ""
