"""Signals and `os._exit` of a recorded program: both end it without Python's exit, so its recording is written first.

Signals are answered by a thread of its own, because Python runs handlers in the main thread, which may hang in the
GPU's driver.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

EXIT = os._exit
"""The real one, whatever stands in its place just then."""


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
    """Between `open` and `close`; both in the main thread. Elsewhere than on POSIX there is nothing to answer."""

    def __init__(self, answers: Mapping[int, Answer], in_main: Answer = lambda number: None) -> None:
        """`in_main` is for what only the main thread can do, if it comes to it."""
        self._answers = answers

        def noticed(number: int, _frame: FrameType | None) -> None:
            """The thread has been told by now. Something has to be here, or Python would not tell it."""
            in_main(number)

        self._noticed = noticed
        self._before: dict[int, Any] = {}
        self._read = self._write = self._old_write = -1
        self._thread: threading.Thread | None = None
        self._held = threading.local()

    def open(self) -> None:
        if os.name != "posix":
            return
        ours = [number for number in self._answers if signal.getsignal(number) is signal.SIG_DFL]
        if not ours:
            return
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._old_write = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in ours:
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
