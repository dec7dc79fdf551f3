"""Runs in a process of their own, so that no abort, out-of-memory or endless loop of a model affects others."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

from memviz.errors import MemvizError, needed_library
from memviz.runner.jobs.limits import (
    MEMORY,
    OWN_SESSION,
    SECONDS,
    TIMEOUT_SECONDS,
    end_tree,
    lower_priority,
    most_bytes,
    most_seconds,
    own_bytes,
    resident_bytes,
)
from memviz.runner.request import ALLOCATOR_SETTINGS, Request, Run
from memviz.units import bytes_text

_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_DEFAULT_CONF = "expandable_segments:True"
"""That of the optimization, which this process does not import."""
LEFT_OUT = "MEMVIZ_ALLOC_CONF_LEFT_OUT"
"""Environment variable: allocator settings of the shell that a run's process was started without."""
_ROOT = Path(__file__).resolve().parents[3]
_LISTING = Path(__file__).resolve().parents[1] / "listing.json"
_LAST_WORDS = 2_000
_NOT_BEGUN = "Not started, because the run before it ended the process."
_LOOK_SECONDS = 0.25
"""Between two looks at the memory that is taken."""


@dataclass(frozen=True)
class RunEvent:
    kind: Literal["phase", "figures", "done", "failed"]
    number: int
    phase: str = ""
    run: Run | None = None
    file: Path | None = None
    what: str = ""
    """Kind of failure: refused, exception, killed, timeout, cancelled, host memory, out of memory."""
    text: str = ""
    """Message of a failure, or of a problem besides good figures."""
    where: str = ""
    requests: str = ""
    """Hash of the memory requests of a prediction for a search; empty where they were replayed."""


def event_of(message: Mapping[str, Any], folder: Path) -> RunEvent:
    run, file = message.get("run"), message.get("file")
    run = None if run is None else Run.from_json(run)
    return RunEvent(**{**message, "run": run, "file": folder / file if file else None})


def message_of(event: RunEvent) -> dict[str, Any]:
    """For `event_of` on another machine, which has no files of this one."""
    message = {name: getattr(event, name) for name in ("kind", "number", "what", "text", "requests")}
    return {**message, "run": None if event.run is None else event.run.as_json()}


def environment_of(request: Request) -> dict[str, str]:
    """Return the environment that a measured run needs before CUDA starts; predictions read the optimization."""
    chosen = dict(request.optimizations).get(ALLOCATOR_SETTINGS)
    return {} if chosen is None else dict.fromkeys(_CONF, chosen.get("conf", _DEFAULT_CONF))


def listing(programs: Sequence[str] = ()) -> dict[str, Any]:
    """List everything that can be run, in a low-priority subprocess, so that this process does not import PyTorch."""
    rows: dict[str, Any] = json.loads("".join(_output_of("memviz.runner.listing", *programs, is_background=True)))
    return rows


def stored_listing() -> dict[str, Any]:
    """Return the result of `listing` without GPUs and programs, from the file that `runner/listing.py` writes."""
    rows: dict[str, Any] = json.loads(_LISTING.read_text(encoding="utf-8"))
    return rows


def gpus_here() -> dict[str, Any]:
    """List the GPUs on which a run could be measured, without starting a driver in this process."""
    gpus: dict[str, Any] = json.loads("".join(_output_of("memviz.runner.measure.accelerator")))
    return gpus


def rows_of(seed: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a seed's published table as they are computed."""
    yield from map(json.loads, _output_of("memviz.runner.published", seed))


def _output_of(module: str, *arguments: str, is_background: bool = False) -> Iterator[str]:
    """Yield the output lines of a module. Its process ends with its consumer, and at the limits of a run."""
    with tempfile.TemporaryFile() as errors:
        process = start_python(["-W", "ignore", "-m", module, *arguments], stderr=errors, env=_environment({}))
        if is_background:
            lower_priority(process.pid)
        watch = _Watch(process)
        try:
            assert process.stdout is not None
            yield from process.stdout
            status = process.wait()
        finally:
            watch.end()
            end_tree(process)
            close_streams(process.stdout)
        if status:
            raise RunError(f"{module} ended with status {status}. {watch.why or _end_of(errors)}")


def start_python(arguments: Sequence[str], **streams: Any) -> subprocess.Popen[str]:
    # Every process of the runner starts here: tests replace it by one that has PyTorch already.
    if find_spec("torch") is None:
        raise needed_library("torch")
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", **OWN_SESSION, **streams)


def start_module(module: str, errors: IO[bytes], more: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a process that takes orders line by line, and answers so."""
    return start_python(["-m", module], stdin=subprocess.PIPE, stderr=errors, env=_environment(more))


def send_line(process: subprocess.Popen[str], message: Mapping[str, Any]) -> None:
    # That a process is gone shows where its answer does not come.
    with contextlib.suppress(OSError, ValueError):
        assert process.stdin is not None
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()


def close_streams(*streams: IO[Any] | None) -> None:
    for stream in streams:
        # The end of a process may leave unwritten lines, which cannot be flushed.
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()


class _Watch:
    """Ends a process that takes too much memory or time, even while its output is not read."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.why = ""
        self._process = process
        self._seconds, self._bytes = most_seconds(), most_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch_tree, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch_tree(self) -> None:
        until = time.monotonic() + self._seconds
        while not self._over.wait(_LOOK_SECONDS) and not self.why:
            if time.monotonic() >= until:
                self.why = too_long(self._seconds)
            elif takes_more(self._process.pid, self._bytes):
                self.why = too_much(self._bytes)
        if self.why:
            end_tree(self._process)


def takes_more(pid: int, most: int) -> bool:
    """Compare the quick upper bound first, and the slower exact value only if that exceeds the limit."""
    return resident_bytes(pid) > most and own_bytes(pid) > most


def too_much(most: int) -> str:
    return (
        f"The run exceeded its limit of {bytes_text(most)} of host memory and was stopped. "
        f"Use fewer layers, steps or micro-batches, or raise {MEMORY}."
    )


def too_long(seconds: float) -> str:
    return f"The run timed out after {seconds:,g} seconds. Set {SECONDS} for another limit."


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS))
    return file.read().decode("utf-8", "replace").strip()


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    # Without allocator settings of the shell: a run chooses its own, and they would change a baseline.
    inherited = {name: text for name, text in os.environ.items() if name not in _CONF}
    left_out = " ".join(f"{name}={os.environ[name]}" for name in _CONF if os.environ.get(name))
    environment = {**inherited, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", LEFT_OUT: left_out, **more}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH", "")]))
    return environment


class RunError(MemvizError):
    """A process of the runner failed; the message has all that is known."""


class Worker:
    """One process. It is killed with all it started when the context ends."""

    module = "memviz.runner.jobs.worker"

    def __init__(
        self,
        folder: Path,
        *,
        timeout: float = TIMEOUT_SECONDS,
        memory: int | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self.folder = folder
        self.timeout = timeout
        self.memory = memory or most_bytes()
        self.served = 0
        self.is_free = True
        """False while an answer is pending; an unread one would be taken for the next."""
        self._look_at = 0.0
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._cancelled = threading.Event()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = start_module(self.module, self._errors, {MEMORY: str(self.memory), **(environment or {})})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self._process.pid)

    def warm_up(self) -> None:
        """Have it import what every run needs; return at once."""
        self._send([], [])

    def run(self, requests: Sequence[Request], first: int = 0, *, figures_only: bool = False) -> Iterator[RunEvent]:
        """Run requests in order. Each ends in `done` or `failed`, even if the process dies.

        `figures_only` are predictions without numerics and without a file of their trace.
        """
        numbers = list(range(first, first + len(requests)))
        waiting = list(numbers)
        figures: dict[int, RunEvent] = {}
        self.is_free = False
        self._send(requests, numbers, figures_only=figures_only)
        until = time.monotonic() + self.timeout
        while waiting:
            message = self._next(until)
            if isinstance(message, str):
                yield from self._ended(waiting, message, figures)
                return
            if message["kind"] in ("done", "failed"):
                waiting.remove(message["number"])
                until = time.monotonic() + self.timeout
            if message["kind"] == "idle":
                continue
            event = event_of(message, self.folder)
            if event.kind == "figures":
                figures[event.number] = event
            self.is_free = not waiting
            yield event

    def _send(self, requests: Sequence[Request], numbers: list[int], *, figures_only: bool = False) -> None:
        order = {"folder": str(self.folder), "requests": [request.as_json() for request in requests]}
        send_line(self._process, {**order, "numbers": numbers, "seconds": self.timeout, "figures_only": figures_only})

    def _next(self, until: float) -> dict[str, Any] | str:
        """Return the next message, or why there will be none. Messages sent before the end still count."""
        while True:
            why = self._reason_to_end(until) if self._lines.empty() else ""
            if why:
                return why
            try:
                line = self._lines.get(timeout=0.1)
            except queue.Empty:
                continue
            if line is None:
                return "cancelled" if self._cancelled.is_set() else "killed"
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and "kind" in message:
                    return message

    def _reason_to_end(self, until: float) -> str:
        now = time.monotonic()
        if self._cancelled.is_set():
            return "cancelled"
        if now >= until:
            return "timeout"
        if now < self._look_at:
            return ""
        self._look_at = now + _LOOK_SECONDS
        if not self.is_alive:
            # What it left behind holds its end of the pipe open, and the reader waits for that.
            self.kill()
        return "host memory" if takes_more(self._process.pid, self.memory) else ""

    def _ended(self, waiting: list[int], what: str, figures: Mapping[int, RunEvent]) -> Iterator[RunEvent]:
        self.kill()
        first, *rest = waiting
        done, message = figures.get(first), self._failure_message(what)
        if done is not None and what != "cancelled":
            text = " ".join(filter(None, (done.text, "The rest of the run is missing.", message)))
            yield replace(done, kind="done", text=text)
        else:
            last_output = _end_of(self._errors) if what == "killed" else ""
            yield RunEvent("failed", first, what=what, text=message, where=last_output)
        for number in rest:
            yield RunEvent("failed", number, what="not begun", text=_NOT_BEGUN)

    def _failure_message(self, what: str) -> str:
        if what == "cancelled":
            return "Cancelled."
        if what == "timeout":
            return too_long(self.timeout)
        if what == "host memory":
            return too_much(self.memory)
        status = self._process.poll()
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            memory = " The system sends it when the machine runs out of memory." if name == "SIGKILL" else ""
            return f"Its process was ended by {name}.{memory}"
        return f"Its process ended with status {status}."

    def cancel(self) -> None:
        """End what is running and what waits as failed. From any thread."""
        self._cancelled.set()

    def kill(self) -> None:
        """End the process with all that it started. From any thread."""
        end_tree(self._process)

    def close(self) -> None:
        self.kill()
        self._reader.join()
        close_streams(self._process.stdin, self._process.stdout, self._errors)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
