"""Estimated peak of the form's last request, after each change. Runs go first, and known estimates are not repeated."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

from memviz.errors import MemvizError
from memviz.runner.jobs.service import OrderStatus, Scheduler, Variant
from memviz.runner.request import Request
from memviz.ui.run.form import RunRequests

_REMEMBERED = 256
_MOST_WAITING = 4
_PATIENCE_SECONDS = 1.0

Value = TypeVar("Value")


class Estimates:
    def __init__(self, seconds: float, memory: int | None = None) -> None:
        self.scheduler = Scheduler(timeout=seconds, memory=memory, most_waiting=_MOST_WAITING)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Variant] = OrderedDict()
        self._ordered: OrderedDict[str, str] = OrderedDict()
        """Each visitor's last order, if the form is unchanged since: its run replaces the estimate."""

    def known(self, requests: RunRequests) -> Variant | None:
        """Return the remembered estimate of the last request."""
        with self._lock:
            return self._known.get(_key(requests.requests[-1])) if requests.count else None

    def of(self, requests: RunRequests, owner: str) -> Iterator[Variant]:
        """Estimate the last request, with everything switched on. Ends without a result when a newer request comes."""
        self.leave(owner)
        if self.is_ordered(requests, owner):
            return
        if not requests.count or requests.faults or requests.requests[-1].on == "cuda":
            return
        estimate = self.known(requests)
        if estimate is not None:
            yield replace(estimate, label=requests.labels[-1])
            return
        with suppress(MemvizError):
            begun = self.scheduler.submit([_plain(requests.requests[-1])], [requests.labels[-1]], self._note, owner)
            for status in changes(self.scheduler, begun.id):
                if status.variants[0].what in ("refused", "timeout"):
                    self._note(status.variants[0])
                yield status.variants[0]

    def order(self, requests: RunRequests, owner: str) -> None:
        """Cancel estimates, and suppress those of the same fields: one that is on its way, or one requested at the
        same moment but received later, must not replace the order's status."""
        self.leave(owner)
        if requests.count:
            with self._lock:
                self._ordered.pop(owner, None)
                _remember(self._ordered, owner, _digest_of(requests))

    def is_ordered(self, requests: RunRequests, owner: str) -> bool:
        """Until these are others than what was ordered."""
        with self._lock:
            is_same = self._ordered.get(owner) == _digest_of(requests)
            if not is_same:
                self._ordered.pop(owner, None)
            return is_same

    def leave(self, owner: str) -> None:
        """Leave a running estimate to end by itself: its process is warm, and its result is remembered."""
        newest = self.scheduler.newest_of(owner)
        if newest is not None:
            self.scheduler.leave(newest.id, stops=False)

    def stop_all(self) -> None:
        self.scheduler.stop_all()

    def _note(self, variant: Variant) -> str:
        """Remember the figures, and delete the trace."""
        if variant.file is not None:
            variant.file.unlink(missing_ok=True)
        with self._lock:
            _remember(self._known, _key(variant.request), replace(variant, file=None))
        return ""


def _remember(among: OrderedDict[str, Value], key: str, value: Value) -> None:
    among[key] = value
    while len(among) > _REMEMBERED:
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


def _plain(request: Request) -> Request:
    return replace(request, numerics=False, on="predict", label="")


def _key(request: Request) -> str:
    return json.dumps(_plain(request).as_json(), sort_keys=True)


def _digest_of(requests: RunRequests) -> str:
    """In a few bytes: a model's configuration may be long."""
    texts = [*map(_key, requests.requests), *requests.labels, *map(str, requests.faults.items())]
    return sha256("\n".join(texts).encode(errors="surrogatepass")).hexdigest()
