"""Predictions that are known already, with their traces, and the prices of optimizations that idle time predicts."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from memviz.errors import MemvizError
from memviz.runner.jobs.service import OrderStatus, Scheduler, Scratch, Variant
from memviz.runner.prices import Price, load_prices, price_of, price_requests, refused_price
from memviz.runner.request import Request, command_of
from memviz.trace.load import load_trace
from memviz.ui.payloads.timelines import LinkedTrace
from memviz.ui.shell.session import Opened, open_trace, timeline_key
from memviz.ui.shell.store import TraceStore

_REMEMBERED = 1024
_MOST_TRACES = 48
_MOST_TRACE_BYTES = 1 << 30
_LARGEST_TRACE = 64 << 20
"""A larger trace is drawn when it is opened, not by itself."""
_MOST_WAITING = 24
_PROCESSES = min(2, os.cpu_count() or 1)
_PATIENCE_SECONDS = 1.0
_BETWEEN_SECONDS = 0.4
"""Between two drawings of the prices."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Predictions:
    """Figures by request, and traces of the newest ones. A prediction is the same for every visitor."""

    def __init__(self, store: TraceStore, seconds: float, memory: int | None = None) -> None:
        options: dict[str, Any] = {"timeout": seconds, "memory": memory, "most_waiting": _MOST_WAITING}
        self.schedulers = tuple(Scheduler(**options, is_background=True) for _ in range(_PROCESSES))
        """For prices: processes of their own, which yield to that of answers."""
        self._store = store
        self._scratch = Scratch()
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._figures: OrderedDict[str, Variant] = OrderedDict()
        """Without traces, by a request without its output check."""
        self._complete: OrderedDict[str, Variant] = OrderedDict()
        self._checks: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        """Output checks, by the request without one."""
        self._unpriced: OrderedDict[str, str] = OrderedDict()
        """Why a price could not be predicted, besides a refusal, by its request."""
        self._opened: OrderedDict[Path, Opened] = OrderedDict()

    def close(self) -> None:
        for scheduler in self.schedulers:
            scheduler.close()
        self._scratch.close()

    def known(self, request: Request) -> Variant | None:
        """Return a prediction with its trace; else its figures, to be shown until it has run; else None."""
        with self._lock:
            complete = self._complete.get(_key(request))
            figures = self._figures.get(request_key(request))
        if complete is not None and complete.file is not None and complete.file.exists():
            return complete
        return None if figures is None or figures.run is None else replace(figures, state="waiting")

    def refusal(self, request: Request) -> Variant | None:
        with self._lock:
            figures = self._figures.get(request_key(request))
        return figures if figures is not None and figures.run is None else None

    def _figures_of(self, request: Request) -> Variant | None:
        return self.known(request) or self.refusal(request)

    def keep(self, variant: Variant) -> None:
        """Remember a finished or refused prediction. A full disk costs the trace alone."""
        if variant.request.on == "cuda":
            return
        with self._lock:
            remember(self._figures, request_key(variant.request), replace(variant, file=None))
            if variant.run is not None and variant.run.numerics is not None:
                remember(self._checks, request_key(variant.request), variant.run.numerics)
        if variant.file is None or variant.state != "done":
            return
        with suppress(OSError, MemvizError):
            self._keep_trace(variant, variant.file)

    def _keep_trace(self, variant: Variant, file: Path) -> None:
        with self._lock:
            self._folder = self._folder or self._scratch.new()
            replaced = self._complete.pop(_key(variant.request), None)
            if replaced is not None and replaced.file is not None:
                replaced.file.unlink(missing_ok=True)
            copy = self._folder / f"{len(self._complete)}-{file.parent.name}-{file.name}"
            try:
                os.link(file, copy)
            except OSError:
                shutil.copyfile(file, copy)
            remember(self._complete, _key(variant.request), replace(variant, file=copy))
            files = [kept.file for kept in self._complete.values() if kept.file is not None]
            total = sum(file.stat().st_size for file in files if file.exists())
            while len(self._complete) > _MOST_TRACES or (total > _MOST_TRACE_BYTES and len(self._complete) > 1):
                _, gone = self._complete.popitem(last=False)
                if gone.file is not None and gone.file.exists():
                    total -= gone.file.stat().st_size
                    gone.file.unlink()

    def traces(self, variants: Sequence[Variant | None]) -> list[LinkedTrace]:
        """Return what the two timelines draw, without variants whose trace is missing or too large."""
        found = []
        for letter, variant in zip("AB", variants, strict=False):
            opened = self._open(variant.file) if variant is not None and variant.file is not None else None
            trace = self._store.get(opened.key) if opened is not None else None
            if opened is None or trace is None or variant is None:
                continue
            device = next(device for device in trace.devices if device.name == opened.device)
            found.append(LinkedTrace(letter, timeline_key(opened), variant.label, trace, device))
        return found

    def _open(self, file: Path) -> Opened | None:
        with self._lock:
            opened = self._opened.get(file)
        if opened is not None and self._store.get(opened.key) is not None:
            return opened
        try:
            if file.stat().st_size > _LARGEST_TRACE:
                return None
            opened = open_trace(self._store, load_trace(file))
        except (OSError, MemvizError):
            return None
        with self._lock:
            remember(self._opened, file, opened)
        return opened

    def with_checks(self, variants: Sequence[Variant]) -> tuple[Variant, ...]:
        """Return the variants with the output checks that were made in the background."""
        checked = []
        for variant in variants:
            run = variant.run
            if run is not None and run.numerics is None and variant.request.on != "cuda":
                with self._lock:
                    numerics = self._checks.get(request_key(variant.request))
                # A live answer leaves the check to the background, but its command should make it.
                command = command_of(replace(run.request, numerics=True))
                variant = replace(variant, run=replace(run, numerics=numerics, command=command))
            checked.append(variant)
        return tuple(checked)

    # -- in the background

    def prices(self, base: Request, listing: Mapping[str, Any]) -> tuple[dict[str, Price | None], int]:
        """Return the price of every optimization, None where it is not known yet, and the FLOPs of the base."""
        known = self.known(base)
        run = known.run if known is not None else None
        shipped = {price.name: price for price in load_prices(base) or ()}
        prices: dict[str, Price | None] = {}
        for one in price_requests(base, listing):
            figures = self._figures_of(one.request) if one.request is not None else None
            if one.request is None:
                prices[one.name] = one.price
            elif run is not None and figures is not None and figures.run is None:
                prices[one.name] = refused_price(one.name, figures.phase)
            elif run is not None and figures is not None and figures.run is not None:
                # Where it is on, what it has changed.
                prices[one.name] = price_of(one.name, *((figures.run, run) if one.is_on else (run, figures.run)))
            elif one.name in shipped:
                prices[one.name] = shipped[one.name]
            else:
                reason = self._unpriced.get(request_key(one.request))
                prices[one.name] = Price(one.name, reason=reason) if reason else None
        return prices, run.flops or 0 if run is not None else 0

    def in_background(
        self,
        answered: Sequence[Variant],
        base: Request,
        listing: Mapping[str, Any],
        owner: str,
        *,
        checks: bool,
        is_there: Callable[[], bool] = lambda: True,
    ) -> Iterator[None]:
        """Check the outputs of what was answered, then predict what prices need. Yield after each of these.

        What is left ends with the page, since no other page asks for it.
        """
        self.leave(owner)
        requests = []
        for variant in answered if checks else ():
            if variant.run is not None and variant.request.optimizations and variant.request.on != "cuda":
                with self._lock:
                    is_checked = request_key(variant.request) in self._checks
                if not is_checked and variant.run.numerics is None:
                    requests.append(replace(plain(variant.request), numerics=True))
        if self.known(base) is not None:
            # Stored prices are predicted too, last: their figures answer the next switch at once.
            shipped = {price.name for price in load_prices(base) or ()}
            for one in sorted(price_requests(base, listing), key=lambda one: one.name in shipped):
                if one.request is None or request_key(one.request) in self._unpriced:
                    continue
                if self._figures_of(one.request) is None:
                    requests.append(plain(one.request))
        if not requests:
            return
        begun: dict[str, Scheduler] = {}
        with suppress(MemvizError):
            for first, scheduler in enumerate(self.schedulers):
                if own := requests[first :: len(self.schedulers)]:
                    begun[scheduler.submit(own, [""] * len(own), self._note, owner).id] = scheduler
        try:
            yield from self._noted(begun, is_there)
        finally:
            for order, scheduler in begun.items():
                scheduler.leave(order, stops=False)

    def _noted(self, begun: Mapping[str, Scheduler], is_there: Callable[[], bool]) -> Iterator[None]:
        # One that is run again is over after later ones.
        noted: set[tuple[str, int]] = set()
        seen = dict.fromkeys(begun, -1)
        is_new, yielded = False, 0.0
        while seen and is_there():
            for order, version in list(seen.items()):
                status = begun[order].status(order, newer_than=version, wait=_PATIENCE_SECONDS / len(seen))
                if status is None or status.is_left:
                    del seen[order]
                    continue
                seen[order] = status.version
                for number, variant in enumerate(status.variants):
                    if variant.is_over and (order, number) not in noted:
                        noted.add((order, number))
                        self.keep_failure(variant, in_background=True)
                        is_new = True
                if status.is_over:
                    del seen[order]
            if is_new and (not seen or time.monotonic() - yielded >= _BETWEEN_SECONDS):
                is_new, yielded = False, time.monotonic()
                yield

    def keep_failure(self, variant: Variant, *, in_background: bool = False) -> None:
        """Remember what cannot be predicted, except where its owner went on; of the background also what failed."""
        if variant.state != "failed" or variant.what == "cancelled":
            return
        key, is_late = request_key(variant.request), variant.what == "timeout"
        with self._lock:
            if in_background and variant.request.numerics:
                # The figures stay.
                error = "the check took too long" if is_late else variant.phase or variant.what
                remember(self._checks, key, {"error": error})
            elif variant.what == "refused":
                remember(self._figures, key, replace(variant, file=None))
            elif in_background:
                remember(self._unpriced, key, "took too long" if is_late else "prediction failed")

    def leave(self, owner: str) -> None:
        """Stop prices that are still to be predicted. The processes stay."""
        for scheduler in self.schedulers:
            newest = scheduler.newest_of(owner)
            if newest is not None:
                scheduler.leave(newest.id, stops=False)

    def _note(self, variant: Variant) -> str:
        """Remember the figures. An output check left a trace as well."""
        if variant.file is not None:
            variant.file.unlink(missing_ok=True)
        self.keep(replace(variant, file=None))
        return ""


def remember(among: OrderedDict[Key, Value], key: Key, value: Value, most: int = _REMEMBERED) -> None:
    """Keep the value as the newest; the oldest go."""
    among[key] = value
    among.move_to_end(key)
    while len(among) > most:
        among.popitem(last=False)


def changes(scheduler: Scheduler, order: str, is_there: Callable[[], bool] = lambda: True) -> Iterator[OrderStatus]:
    """Each change of an order until it is over, until its owner looks at another, or until they are gone."""
    status, seen = scheduler.status(order), -1
    while status is not None and not status.is_left and is_there():
        if status.version != seen:
            yield status
        if status.is_over:
            return
        seen = status.version
        status = scheduler.status(order, newer_than=seen, wait=_PATIENCE_SECONDS)


def request_key(request: Request) -> str:
    """Return the same key for requests with the same figures."""
    return _key(plain(request))


def plain(request: Request) -> Request:
    return replace(request, numerics=False, on="predict", label="")


def _key(request: Request) -> str:
    return json.dumps(replace(request, label="").as_json(), sort_keys=True)
