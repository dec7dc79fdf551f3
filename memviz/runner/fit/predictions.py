"""Predictions side by side in processes of their own, cached on disk."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from memviz.runner.jobs.limits import TIMEOUT_SECONDS
from memviz.runner.jobs.worker_process import RunEvent, Worker
from memviz.runner.request import Request, library_versions

_ROOT = Path(__file__).parents[3]
_SOURCES = ("memviz/runner", "memviz/allocator", "memviz/trace", "optimizations", "memviz/optimizations")
_FOLDER = Path("memviz") / "fit"
_SAYS_NOTHING = ("cancelled", "timeout", "host memory", "killed", "not begun")
"""Failures that may not happen again."""
_WORK = ("flops", "bytes_moved", "host_bytes", "link_bytes")
_MOST_BYTES = 64 << 20
"""Some fifty thousand predictions; more are not cached."""


@dataclass(frozen=True)
class Prediction:
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    fits: bool | None = None
    """On the card, with memory that is given back under pressure: by a replay, not by the peak."""
    fit: str = ""
    """"yes", "no" or "close"."""
    reserved_on_card_bytes: int = 0
    """Set where it fits: cached memory is freed under pressure, so it can be less than without a limit."""
    flops: int = 0
    bytes_moved: int = 0
    host_bytes: int = 0
    command: str = ""
    code: str = ""
    refused: str = ""
    """Why there is none."""
    pinned_host_bytes: int = 0
    host_peak_bytes: int | None = None
    link_bytes: int = 0
    of_classes: tuple[tuple[int, int, int, int], ...] = ()
    """`flops`, `bytes_moved`, `host_bytes`, `link_bytes` of one rank of each class, on many GPUs."""
    expected_error: dict[str, Any] | None = None
    """Same form as in `run --json`."""
    warnings: tuple[str, ...] = ()
    requests: str = ""
    """Hash of its memory requests, as in `RunEvent`."""

    def is_twin(self, other: Prediction) -> bool:
        """Return whether both run the same program: the same memory requests and the same work."""
        names = ("requests", *_WORK, "pinned_host_bytes")
        return bool(self.requests) and all(getattr(self, name) == getattr(other, name) for name in names)


def prediction_of(event: RunEvent) -> Prediction:
    run = event.run
    if run is None:
        return Prediction(refused=event.text or "Its worker ended without a result.")
    counts = ("peak_allocated_bytes", "peak_reserved_bytes", *_WORK, "pinned_host_bytes")
    counted: dict[str, Any] = {name: getattr(run, name) or 0 for name in counts}
    return Prediction(
        **counted,
        fits=run.fit.fits if run.fit else None,
        fit=run.fit.word if run.fit else "",
        reserved_on_card_bytes=run.fit.peak_reserved_bytes if run.fit else 0,
        command=run.command,
        code=run.code,
        host_peak_bytes=run.host_peak_bytes,
        expected_error=run.expected_error.as_json() if run.expected_error else None,
        of_classes=tuple((one.flops, one.bytes_moved, one.host_bytes, one.link_bytes) for one in run.classes),
        warnings=run.warnings,
        requests=event.requests,
    )


class KeptPredictions:
    """Cached predictions: one file for each state of our own code and of the libraries."""

    def __init__(self, folder: Path | None = None) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._path = (folder or cache / _FOLDER) / f"{code_state()}.jsonl"
        self._known: dict[str, Prediction] = {}
        self._orders: dict[str, list[tuple[int, ...]]] = {}
        self._lock = threading.Lock()
        with contextlib.suppress(OSError), self._path.open(encoding="utf-8") as lines:
            for line in lines:
                # Another process may be writing a line, or a full disk may have cut it.
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    row = json.loads(line)
                    if "search" in row:
                        self._orders.setdefault(row["search"], []).append(tuple(row["place"]))
                    else:
                        self._known[row["key"]] = Prediction(**row["prediction"])

    def get(self, request: Request) -> Prediction | None:
        return self._known.get(_request_key(request)) if is_cacheable(request) else None

    def add(self, request: Request, prediction: Prediction) -> None:
        if not is_cacheable(request):
            return
        with self._lock:
            self._known[_request_key(request)] = prediction
            self._write({"key": _request_key(request), "prediction": asdict(prediction)})

    def order_of(self, search: str) -> Sequence[tuple[int, ...]]:
        """Places of a space in the order in which this search tried them before.

        The next candidate depends on which process answered first. Without the order a repeated search would
        try others, and predict again.
        """
        return tuple(self._orders.get(search, ()))

    def add_to_order(self, search: str, place: tuple[int, ...]) -> None:
        with self._lock:
            self._orders.setdefault(search, []).append(place)
            self._write({"search": search, "place": place})

    def _write(self, row: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size > _MOST_BYTES:
                return
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def is_cacheable(request: Request) -> bool:
    """Return False for a user's file, since the code that it imports is unknown."""
    return ".py" not in request.workload


def _request_key(request: Request) -> str:
    config = blake2b(request.config.encode(), digest_size=16).hexdigest() if request.config else ""
    return json.dumps({**request.as_json(), "label": "", "config": config}, sort_keys=True)


def code_state(*, builds: bool = True) -> str:
    """Hash what predictions depend on besides the request.

    `builds`: whether PyTorch's build for the processor counts as another than one for a GPU.
    """
    state = blake2b(digest_size=12)
    for source in _SOURCES:
        for path in sorted((_ROOT / source).rglob("*.py")):
            state.update(path.read_bytes())
    for library, release in library_versions().items():
        state.update(f"{library} {release if builds else release.partition('+')[0]}".encode())
    return state.hexdigest()


Ask = Callable[[], Request | None]
"""Returns the next request to predict; None where there is no more."""
Hear = Callable[[Request, Prediction], None]
Others = Callable[[Request], Sequence[Request]]
"""Requests that differ from it only in allocator settings, and may follow later."""


class _OutOfTime(Exception):
    pass


def wait_for(threads: Sequence[threading.Thread], until: float | None = None) -> None:
    """Join all, or raise at the time `until` of the monotonic clock."""
    for thread in threads:
        while thread.is_alive():
            # In pieces: a person who presses Ctrl-C is heard by this thread alone.
            thread.join(0.2)
            if until is not None and time.monotonic() >= until:
                raise _OutOfTime


class SearchWorker(Protocol):
    @property
    def is_alive(self) -> bool: ...

    def run(self, requests: Sequence[Request], *, figures_only: bool) -> Iterator[RunEvent]: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class Predictor:
    """Processes that predict, one per core by default, started when they are first needed."""

    def __init__(
        self,
        *,
        processes: int | None = None,
        timeout: float = TIMEOUT_SECONDS,
        kept: KeptPredictions | None = None,
        turn: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        make_worker: Callable[[], SearchWorker] | None = None,
    ) -> None:
        """
        Args:
            turn: Held for each prediction, where others wait for the same machine.
            make_worker: Makes workers in place of processes of this machine.
        """
        self._count = processes or os.cpu_count() or 1
        self.kept = KeptPredictions() if kept is None else kept
        self._folder = tempfile.TemporaryDirectory(prefix="memviz-")
        self._workers: list[SearchWorker | None] = [None] * self._count

        def worker_here(place: int) -> SearchWorker:
            folder = Path(self._folder.name) / str(place)
            folder.mkdir(exist_ok=True)
            return Worker(folder, timeout=timeout)

        self._make_worker = worker_here if make_worker is None else lambda place: make_worker()
        self._lock = threading.Lock()
        self._turn = turn
        self.made = 0
        """Predictions that were not cached."""

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in filter(None, self._workers):
            worker.close()
        self._folder.cleanup()

    def one(self, request: Request, until: float | None = None) -> Prediction:
        """At the time `until` of the monotonic clock its process is ended, and it is refused."""
        cached = self.kept.get(request)
        if cached is not None:
            return cached
        timer = threading.Timer(max(0.0, (until or 0.0) - time.monotonic()), self._kill)
        if until is not None:
            timer.start()
        try:
            return self._predict(0, request)
        finally:
            timer.cancel()

    def _kill(self) -> None:
        for worker in filter(None, self._workers):
            worker.kill()

    def all(self, ask: Ask, hear: Hear, others: Others = lambda request: (), *, until: float | None = None) -> None:
        """Predict until `ask` returns None. Both are called by one thread at a time; an exception of theirs ends it.

        The `others` of a request cost little more, so they are predicted with it and cached. Running predictions
        are ended at the time `until` of the monotonic clock.
        """
        faults: list[BaseException] = []

        def work(place: int) -> None:
            try:
                while not faults:
                    with self._lock:
                        request = ask()
                    if request is None:
                        return
                    prediction = self.kept.get(request) or self._predict(place, request, others(request))
                    with self._lock:
                        if faults:
                            # Its process was ended by another fault: the result is not of the request.
                            return
                        hear(request, prediction)
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(self._count)]
        for thread in threads:
            thread.start()
        try:
            wait_for(threads, until)
        except BaseException as fault:
            with self._lock:
                faults.append(fault)
            self._kill()
            if isinstance(fault, _OutOfTime):
                return
            raise
        if faults:
            raise faults[0]

    def _predict(self, place: int, request: Request, others: Sequence[Request] = ()) -> Prediction:
        with self._turn():
            unknown = (other for other in others if is_cacheable(other) and self.kept.get(other) is None)
            requests = [request, *unknown]
            worker = self._workers[place]
            if worker is None or not worker.is_alive:
                worker = self._workers[place] = self._make_worker(place)
            wanted = [replace(one, on="predict", numerics=False) for one in requests]
            last = {event.number: event for event in worker.run(wanted, figures_only=True)}
        for number, one in enumerate(requests):
            if last[number].what not in _SAYS_NOTHING:
                self.kept.add(one, prediction_of(last[number]))
        with self._lock:
            self.made += len(requests)
        return prediction_of(last[0])
