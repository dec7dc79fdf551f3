"""A user's program with the history on: started when the program starts the GPU, written whenever there is reason.

The file belongs to the program's end, however it ends. Earlier moments have files of their own next to it: `oom` when
memory ran out and the program went on, `signal1`, `signal2` ... when it got a signal. Of a program that runs out of
memory and ends with that, the moment itself is the end.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from memviz.errors import UsageError
from memviz.mesh import coordinates, sizes_of
from memviz.runner.measure.accelerator import Accelerator, error_sentence, find_accelerator
from memviz.runner.record.log import Log
from memviz.runner.record.memory_history import HistorySnapshot, RecordedHistory, StackKind
from memviz.runner.record.recording import (
    free_path,
    marked,
    note_holders,
    notes_of,
    trace_of_snapshot,
    with_labels,
    without_stacks,
    write_snapshot,
)
from memviz.runner.record.script import Script
from memviz.trace.memviz_labels import LOCAL_WORLD_FACT, MESH_FACT, RANK_FACT, WORLD_FACT

EXIT = os._exit
"""The original, also while `os._exit` is replaced."""


@contextmanager
def before_hard_exit(call: Callable[[], object]) -> Iterator[None]:
    """Calls it first where this process ends so inside. Processes that it forked end as they always do."""
    process = os.getpid()

    def leave(status: int) -> NoReturn:
        try:
            if os.getpid() == process:
                call()
        finally:
            EXIT(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = EXIT


_CLOSE = b"\0"

Answer = Callable[[int], None]


class Signals:
    """Signal handling between `open` and `close`, both called in the main thread. Does nothing outside POSIX."""

    def __init__(self, answers: Mapping[int, Answer], in_main: Answer = lambda number: None) -> None:
        """`in_main` is for what only the main thread can do, if it comes to it."""
        self._answers = answers

        def noticed(number: int, _frame: FrameType | None) -> None:
            """The thread is notified by the wakeup fd, which needs a Python handler to be installed."""
            in_main(number)

        self._noticed = noticed
        self._before: dict[int, Any] = {}
        self._read = self._write = self._old_write = -1
        self._thread: threading.Thread | None = None
        self._held = threading.local()

    def open(self) -> None:
        if os.name != "posix":
            return
        numbers = [number for number in self._answers if signal.getsignal(number) is signal.SIG_DFL]
        if not numbers:
            return
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._old_write = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in numbers:
            self._before[number] = signal.signal(number, self._noticed)
        os.register_at_fork(before=self._hold, after_in_parent=self._let_go, after_in_child=self._leave_child)
        self._thread = threading.Thread(target=self._listen, name="memviz signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is None:
            return
        self._restore()
        os.write(self._write, _CLOSE)
        self._thread.join()
        self._thread = None
        for end in (self._read, self._write):
            os.close(end)

    def _restore(self) -> None:
        signal.set_wakeup_fd(self._old_write)
        for number, handler in self._before.items():
            if signal.getsignal(number) is self._noticed:
                signal.signal(number, handler)

    def _hold(self) -> None:
        """A child has this pipe too until it has left it: a signal to it in between would end us in its place."""
        if self._thread is not None:
            self._held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)

    def _let_go(self) -> None:
        mask = self._held.__dict__.pop("mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _leave_child(self) -> None:
        if self._thread is not None:
            self._restore()
            self._thread = None
        self._let_go()

    def _listen(self) -> None:
        while (number := os.read(self._read, 1)) not in (_CLOSE, b""):
            answer = self._answers.get(number[0])
            if answer is not None and signal.getsignal(number[0]) is self._noticed:
                answer(number[0])


def end_by(number: int) -> None:
    """End the process as the signal would, from any thread: Python lets only the main one set a handler."""
    try:
        set_handler = ctypes.CDLL(None).signal
        set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)
        set_handler(number, None)
        os.kill(os.getpid(), number)
    finally:
        EXIT(128 + number)


FACT = "profile"
"""Key of a snapshot's fact that names the profile's file, which lies next to it."""


class Profile:
    """Profile started with the history, written at the end or on a signal. Its errors never end the program."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self._print_note = say
        self._running: Any = None
        self.is_over = threading.Event()
        """Written, or not to be had."""

    def start(self) -> None:
        try:
            self._running = _profiler()
            self._running.start()
        except Exception as error:
            self._running = None
            self.is_over.set()
            self._print_note(f"The profiler could not be turned on: {error_sentence(error)}")

    def write(self) -> bool:
        """Stop the profiler and write its file. Return True if there is one."""
        running, self._running = self._running, None
        if running is None:
            return False
        try:
            running.stop()
            running.export_chrome_trace(str(self.path))
        except Exception as error:
            self._print_note(f"The profile is not written. {error_sentence(error)}")
            return False
        finally:
            self.is_over.set()
        self._print_note(f"The profile is written to {self.path}.")
        return True


def _profiler() -> Any:
    try:
        import torch.profiler as of_torch
    except ImportError:
        raise UsageError("torch is not installed here.") from None
    # Its functions have no types.
    profiler: Any = of_torch
    there = profiler.supported_activities()
    activities = [getattr(profiler.ProfilerActivity, name, None) for name in ("CPU", "CUDA", "XPU")]
    # Stacks of Python are in the snapshot. Here each call would be an event of its own, and the program far slower.
    return profiler.profile(activities=[kind for kind in activities if kind in there], profile_memory=True)


_STAGES = ("pp", "pipeline", "stage")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True)
class RankPosition:
    rank: int
    world: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Its coordinate on every axis, the outermost first."""
    local_world: int | None = None
    """Processes of its machine."""

    @property
    def words(self) -> tuple[str, ...]:
        """Parts of its file's name: 'rank5', 'pp1', 'dp1'."""
        return f"rank{self.rank}", *(f"{axis}{place}" for axis, place in self.mesh.items())

    @property
    def name(self) -> str:
        of = "" if self.world is None else f" of {self.world}"
        where = ", ".join(self.words[1:])
        return f"Rank {self.rank}{of}{f' ({where})' if where else ''}"

    @property
    def facts(self) -> dict[str, str]:
        """For the file itself: its name may be changed."""
        mesh = ",".join(f"{axis}={place}" for axis, place in self.mesh.items())
        sizes = {WORLD_FACT: self.world, LOCAL_WORLD_FACT: self.local_world}
        known = {name: str(size) for name, size in sizes.items() if size is not None}
        return {RANK_FACT: str(self.rank), **known, **({MESH_FACT: mesh} if mesh else {})}


def rank_position(mesh: str = "", environment: Mapping[str, str] = os.environ) -> RankPosition | None:
    """None where this process is one by itself."""
    rank, world = _rank_number(environment, "RANK", "LOCAL_RANK"), _rank_number(environment, "WORLD_SIZE")
    if rank is None:
        return None
    sizes = sizes_of(mesh) if mesh else {}
    if sizes and world is not None and prod(sizes.values()) != world:
        raise UsageError(f"--mesh {mesh} has {prod(sizes.values())} ranks, but there are {world}.")
    local = _rank_number(environment, "LOCAL_WORLD_SIZE")
    return RankPosition(rank, world, coordinates(rank, sizes), local)


def _rank_number(environment: Mapping[str, str], *names: str) -> int | None:
    texts = (environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), None)


def is_chosen(position: RankPosition | None, ranks: str) -> bool:
    """Return True if `--ranks` has it: numbers, spans (0-3), first, last, stage (the first of every stage) or all."""
    parts = [word.strip().lower() for word in ranks.split(",")]
    if position is None:
        return True
    return any([_chooses_rank(word, position, ranks) for word in parts])


def _chooses_rank(word: str, position: RankPosition, ranks: str) -> bool:
    if word in ("all", "first"):
        return word == "all" or position.rank == 0
    if word == "last":
        if position.world is None:
            raise UsageError("The last rank is unknown: WORLD_SIZE is not set.")
        return position.rank == position.world - 1
    if word == "stage":
        if not set(_STAGES) & set(position.mesh):
            raise UsageError("--ranks stage needs --mesh with an axis pp, such as --mesh pp=2,dp=4.")
        return all(place == 0 for axis, place in position.mesh.items() if axis not in _STAGES)
    span = _SPAN.fullmatch(word)
    if span is None:
        raise UsageError(f"--ranks takes numbers, ranges (0-3), first, last, stage or all, not {ranks}.")
    return int(span[1]) <= position.rank <= int(span[2] or span[1])


FAILED = 2
OUT_OF_MEMORY = "oom"
_MOST_OUT_OF_MEMORY = 8
"""Moments written in one run: a program that tries sizes until one fits would spend its time on them."""
_PROFILE_SECONDS = 10.0
"""Time to wait for the profile at a signal: a process is often killed half a minute after it."""


@dataclass(frozen=True)
class RecordOptions:
    output: Path
    stacks: StackKind = "python"
    max_entries: int | None = None
    overwrite: bool = False
    ranks: str = "all"
    """Ranks that write a recording at their end; a failed one does in any case. See `rank_position`."""
    mesh: str = ""
    profile: bool = False
    """Run torch's profiler too."""
    holders: bool = False
    """Find what keeps each tensor in every file, not only in one of memory that ran out."""


def record_script(script: Script, options: RecordOptions, accelerator: Accelerator | None = None) -> int:
    """Run the script to its end and return its exit status; FAILED where it went well but left no recording."""
    position = rank_position(options.mesh)
    is_wanted = is_chosen(position, options.ranks)
    path = free_path(rank_path(options.output, position), overwrite=options.overwrite)
    free_path(sibling_path(path, OUT_OF_MEMORY), overwrite=options.overwrite)
    ends = _Interrupted()
    accelerator = accelerator or find_accelerator()
    history = RecordedHistory(accelerator, stacks=options.stacks, max_entries=options.max_entries)
    profile = None
    if options.profile:
        profile = Profile(free_path(profile_path(path), overwrite=options.overwrite), _print_note)
    writer = _RecordingWriter(
        history, path, script.name, position, is_wanted=is_wanted, profile=profile, holders=options.holders
    )
    signals = Signals(writer.answers(), writer.in_main)
    accelerator.when_used(writer.start)
    signals.open()
    process = os.getpid()
    try:
        return _run_recorded(script, writer, ends)
    finally:
        # A process that the program forked may come out here too; the recording is not its own.
        if os.getpid() == process:
            signals.close()
            marked[:] = [one for one in marked if one is not writer]
            history.stop()


def rank_path(path: Path, position: RankPosition | None) -> Path:
    """Every process of torchrun has a file: run.pickle, run.pickle.gz -> run.rank0.pickle, run.rank0.pickle.gz."""
    return path if position is None else sibling_path(path, ".".join(position.words))


def profile_path(path: Path) -> Path:
    """run.pickle -> run.profile.json.gz. It can be large, so it is packed in any case."""
    stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    return path.with_name(f"{stem}.profile.json.gz")


def sibling_path(path: Path, word: str) -> Path:
    stem, dot, endings = path.name.partition(".")
    return path.with_name(f"{stem}.{word}{dot}{endings}")


def _run_recorded(script: Script, writer: _RecordingWriter, ends: _Interrupted) -> int:
    process = os.getpid()
    try:
        with before_hard_exit(lambda: writer.finish(None)):
            script.run_to_its_end()
    except SystemExit as error:
        if os.getpid() == process and not writer.finish(error) and not error.code:
            return FAILED
        raise
    except BaseException as error:
        if os.getpid() != process:
            raise
        writer.finish(error)
        script.show(error)
        if isinstance(error, KeyboardInterrupt):
            ends.by_signal = True
        return 1
    return 0 if os.getpid() != process or writer.finish(None) else FAILED


class _Interrupted:
    """A program that does not catch Ctrl-C ends by the signal, after everything that it wants done at its end.

    What is registered first at exit is called last.
    """

    def __init__(self) -> None:
        self.by_signal = False
        atexit.register(self._end)

    def _end(self) -> None:
        if self.by_signal:
            sys.stdout.flush()
            sys.stderr.flush()
            end_by(signal.SIGINT)


@dataclass(eq=False)
class _RecordingWriter:
    """Takes snapshots and writes them, one at a time, from any thread."""

    history: RecordedHistory
    path: Path
    script: str
    position: RankPosition | None
    is_wanted: bool
    """Its end, where it does not fail."""
    profile: Profile | None = None
    holders: bool = False
    is_profiled: bool = False
    lock: Any = field(default_factory=threading.RLock)
    signals: int = 0
    out_of_memory: int = 0
    oom_path: Path | None = None
    has_started: bool = False
    is_over: bool = False
    why_not: str = ""
    moments: Log | None = None
    """Filled by `memviz.mark`."""
    marked_device: int | None = None
    """The GPU that was current then: moments are counted by its allocations."""
    process: int = 0

    def start(self) -> None:
        """Called when the GPU's driver is up and nothing is allocated yet."""
        if self.is_over:
            return
        try:
            self.history.start()
        except Exception as error:
            self.why_not = f"Recording could not be turned on: {error_sentence(error)}"
            return _print_note(self.why_not)
        self.history.when_out_of_memory = self.ran_out
        self.has_started = True
        self.moments = Log(self.history.counts)
        self.process = os.getpid()
        marked.append(self)
        if self.profile is not None:
            self.profile.start()

    def mark(self, name: str) -> None:
        """Keep a moment that the program names, and what keeps each tensor then, for the files that are written."""
        with self.lock:
            # A process that the program forked has marks of its own, and no recording.
            if self.is_over or self.moments is None or os.getpid() != self.process:
                return
            device = int(self.history.accelerator.api.current_device())
            if self.marked_device is None:
                self.marked_device = device
            if device == self.marked_device:
                with self.moments.during(name):
                    self.history.host.sample()
                note_holders(self.moments, self.history.accelerator.kind)

    def answers(self) -> dict[int, Callable[[int], None]]:
        wanted = {"SIGUSR1": self.on_user_signal, "SIGTERM": self.terminated}
        return {getattr(signal, name): answer for name, answer in wanted.items() if hasattr(signal, name)}

    def on_user_signal(self, _number: int) -> None:
        with self.lock:
            self.signals += 1
            while (path := sibling_path(self.path, f"signal{self.signals}")).exists():
                self.signals += 1
            self._keep(path, self.history.take, "on a signal")

    def terminated(self, number: int) -> None:
        if not self.is_wanted:
            # Launchers end all ranks where one has failed; that one has written why.
            return end_by(number)
        self.lock.acquire()
        # Never released: nothing may be written after the last file. The sender may kill the process soon, so
        # nothing is looked up that is not in the snapshot.
        self._keep(self.path, self.history.take, "on the signal to stop", look_round=False)
        if self.has_started and self.profile is not None:
            self.profile.is_over.wait(_PROFILE_SECONDS)
        end_by(number)

    def in_main(self, number: int) -> None:
        """torch lets only the thread that began a profile end it. One that hangs leaves none."""
        is_end = number == getattr(signal, "SIGTERM", None)
        if is_end and self.is_wanted and self.has_started and self.profile is not None:
            self.profile.write()

    def ran_out(self, snapshot: HistorySnapshot) -> None:
        with self.lock:
            self.out_of_memory += 1
            if self.out_of_memory > _MOST_OUT_OF_MEMORY:
                return
            path = sibling_path(self.path, OUT_OF_MEMORY)
            if self._keep(path, lambda: snapshot, "on out of memory", with_holders=True):
                self.oom_path = path

    def finish(self, error: BaseException | None) -> bool:
        """Write the recording at the program's end, if wanted. Return False if that failed or was done before."""
        with self.lock:
            if self.is_over:
                return False
            self.is_over = True
            has_failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
            if not self.is_wanted and not has_failed:
                return True
            if has_failed and self.position is not None:
                _print_note(f"{self.position.name} failed.")
            if not self.has_started:
                _print_note(self._why_nothing())
                return False
            if error is not None:
                self.history.failed(error)
            # First, since the snapshot records if a profile exists.
            self.is_profiled = self.profile is not None and self.profile.write()
            ended_so = error is not None and not isinstance(error, SystemExit) and self.history.ended_out_of_memory()
            if ended_so and self.oom_path is not None:
                with suppress(OSError):
                    self.oom_path.replace(self.path)
                    _print_note(f"{self.path} shows the moment of the OOM.")
                    return True
            return self._keep(self.path, self.history.take, "at its end")

    def _why_nothing(self) -> str:
        """A GPU that is listed may not start: then the program ran on the processor, or ended with torch's error."""
        if self.why_not:
            return "Nothing was recorded, so no file was written."
        try:
            self.history.accelerator.wake()
        except UsageError as error:
            return f"There is nothing to record. {error}"
        return f"{self.script} never used the GPU, so there is nothing to record."

    def _keep(
        self,
        path: Path,
        take: Callable[[], HistorySnapshot],
        when: str,
        *,
        look_round: bool = True,
        with_holders: bool = False,
    ) -> bool:
        if not self.history.is_on:
            _print_note("Nothing is recorded yet, so no file was written.")
            return False
        try:
            snapshot = take()
            found = snapshot.snapshot
            if look_round:
                found = self._with_labels(snapshot, path.name, with_holders=with_holders or self.holders)
            write_snapshot(path, found)
        except Exception as error:
            _print_note(f"No file was written. {error}")
            return False
        events = sum(len(trace) for trace in snapshot.snapshot.get("device_traces", []))
        _print_note(f"{events:,} events written to {path}, {when}.")
        for note in notes_of(self.history, snapshot):
            _print_note(f"{note.text} {note.remedy}")
        return True

    def _with_labels(self, snapshot: HistorySnapshot, source: str, *, with_holders: bool) -> dict[str, Any]:
        """The snapshot with labels; as torch gave it where these fail, so that the recording is not lost."""
        log, counted = Log(lambda: None), self.marked_device
        if self.moments is not None and counted is not None and snapshot.counts is not None:
            log = replace(self.moments, tensors_seen=[], holders=list(self.moments.holders))
        facts = {"script": self.script}
        if self.profile is not None and self.is_profiled:
            facts[FACT] = self.profile.path.name
        if self.position is not None:
            facts |= self.position.facts
        try:
            if "torch" in sys.modules:
                from memviz.runner.record.model_hooks import see_everything_alive

                # Another thread may change what is looked at; then what was seen until then is used.
                with suppress(RuntimeError):
                    see_everything_alive(log, self.history.accelerator.kind)
                if with_holders:
                    note_holders(log, self.history.accelerator.kind)
            quick = replace(snapshot, snapshot=without_stacks(snapshot.snapshot))
            trace = trace_of_snapshot(self.history, quick, log, None, facts=facts, source=source, counted=counted)
            return with_labels(snapshot.snapshot, trace)
        except UsageError:
            raise
        except Exception as error:
            _print_note(f"The recording has no labels: {error_sentence(error)}")
            return snapshot.snapshot


def _print_note(text: str) -> None:
    """Print to stderr, apart from the program's own output."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"memviz: {text}\n")
        sys.stderr.flush()
