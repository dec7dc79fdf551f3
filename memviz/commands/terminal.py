"""Escaped terminal output and the exit statuses of the command line.

Names of functions and files come from strangers. All output of a command, errors and argparse's texts included, goes
through `escape_control_chars`: nothing in it moves the cursor, changes the title, or reverses the writing direction.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from types import FrameType
from typing import Any, TextIO, cast

from memviz.errors import MemvizError, library_needed
from memviz.text import escape_control_chars

FAILED = 2
"""Exit status of a command that fails with a message on stderr; argparse's status too."""
BROKEN = 70
"""A fault of memviz itself. Python's own 1 would say to a gate that a peak grew."""
NOT_WRITTEN = 74
INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + 13
"""The status of a program that SIGPIPE ended."""

_ENDING = ("SIGTERM", "SIGHUP")


class NotWritten(MemvizError):
    """The standard output takes no more."""


class ReaderGone(MemvizError):
    """The reader of the output has closed the pipe."""


class _Stream:
    """A standard stream that escapes what is written; other attributes are those of the stream."""

    def __init__(self, stream: TextIO, fault: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._fault = fault

    def write(self, text: str) -> int:
        try:
            self._stream.write(escape_control_chars(text))
        except UnicodeEncodeError:
            # A terminal that knows ASCII alone.
            self.write(text.encode("ascii", "backslashreplace").decode())
        except OSError as error:
            self._fault(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._fault(error)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _output_fault(error: OSError) -> None:
    if isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL):
        raise ReaderGone("The output pipe is closed.") from None
    raise NotWritten(f"The output cannot be written ({error.strerror or error}).") from None


def _error_fault(error: OSError) -> None:
    """Ignore the error: there is no other stream to report it on."""


def print_line(text: str) -> None:
    """Print a line of memviz's own to stderr."""
    sys.stderr.write(f"memviz: {escape_control_chars(text, keep='')}\n")
    sys.stderr.flush()


def progress(line: str) -> None:
    """Show a line on a terminal, which the next one replaces; empty words remove it."""
    stream = sys.stderr
    # A program's own stream need not have it.
    if not getattr(stream, "isatty", bool)():
        return
    plain = cast(TextIO, getattr(stream, "_stream", stream))
    with suppress(OSError, UnicodeEncodeError):
        plain.write(f"\r\x1b[K{escape_control_chars(line, keep='')}")
        plain.flush()


@contextmanager
def harmless_streams() -> Iterator[None]:
    output, errors = _Stream(sys.stdout, _output_fault), _Stream(sys.stderr, _error_fault)
    with redirect_stdout(cast(TextIO, output)), redirect_stderr(cast(TextIO, errors)):
        yield


def status_of(work: Callable[[], int]) -> int:
    """Run a command, print its error if there is one, and return the exit status."""
    try:
        with _ended_by_signals():
            return _flushed(work)
    except ReaderGone:
        return READER_GONE
    except NotWritten as error:
        _say(error)
        return NOT_WRITTEN
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError:
        _say("This machine does not have enough memory.")
    except OSError as error:
        _say(f"{error.filename or 'A file'} cannot be used ({error.strerror or error}).")
    except MemvizError as error:
        _say(error)
    except ModuleNotFoundError as error:
        needed = library_needed(error)
        if needed is None:
            return _broken()
        _say(needed)
    except Exception:
        return _broken()
    return FAILED


def _broken() -> int:
    import traceback

    _say("This is a bug in memviz, not in your file. Please report the following.")
    traceback.print_exc()
    return BROKEN


def _flushed(work: Callable[[], int]) -> int:
    try:
        status = work()
    except SystemExit as error:
        # argparse has said what there was to say.
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else FAILED
    sys.stdout.flush()
    return status


def _say(message: object) -> None:
    print(f"memviz: {message}", file=sys.stderr)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn ending signals into SystemExit, so that partial files, run folders and child processes are cleaned up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    # Only a program's main thread may ask for signals; what somebody asked to be ignored stays so.
    with suppress(ValueError):
        for number in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_streams() -> None:
    """Open null in place of closed standard streams: a file opened later would get their number, and their output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
    # Python has no stream where there was none when it started.
    sys.stdout = sys.stdout or cast(TextIO, _Closed())
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - for as long as the program runs


def discard_output() -> None:
    """Redirect stdout to null: Python would retry unwritten output at exit, report it, and change the status."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


class _Closed:
    """A standard output that was closed before the program began."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")

    def flush(self) -> None:
        """There is nothing in it."""

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 1
