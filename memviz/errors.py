"""Every error that memviz raises on purpose.

MemvizError                 shown to people as it stands: what, why, and what to do
├── TraceError              a file that cannot become a Trace
├── UsageError              a question that this Trace cannot answer (no such device, event, time)
└── LibraryNeeded           a part of memviz that was not installed with it

They are raised where the fault is found and shown in one place per surface: `memviz.__main__` for the
command line, `memviz.ui.shell.programs` and the tabs for the page.
"""

from __future__ import annotations

import os
import re


class MemvizError(Exception):
    """Base of all; its text is complete and safe to show."""


class TraceError(MemvizError):
    """A file was refused. Names the file, the reason and the remedy, in that order."""

    def __init__(self, reason: str, *, remedy: str = "", source: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        self.source = source
        head = f"{source}: {reason}" if source else reason
        super().__init__(f"{head} {remedy}".rstrip())

    def named(self, source: str) -> TraceError:
        """The same error with the file's name; readers deep inside do not know it."""
        return self if self.source else type(self)(self.reason, remedy=self.remedy, source=source)


class UsageError(MemvizError):
    """The Trace is fine; the question does not fit it."""


class LibraryNeeded(MemvizError):
    """A part of memviz that was not installed with it."""


_EXTRA_OF = {
    **dict.fromkeys(("gradio", "starlette", "plotly", "pandas"), "page"),
    **dict.fromkeys(("torch", "diffusers", "transformers", "safetensors"), "run"),
    **dict.fromkeys(("pyarrow",), "ranks"),
}


def library_needed(error: ModuleNotFoundError) -> LibraryNeeded | None:
    """None where it is no library of ours that is missing."""
    name = (error.name or "").partition(".")[0]
    return needed_library(name) if name in _EXTRA_OF else None


def needed_library(name: str) -> LibraryNeeded:
    # Where memviz is installed pip adds to that one. In a checkout it would bring the package of somebody else that
    # has this name on the public index.
    is_checkout = os.path.isfile(os.path.join(os.path.dirname(__file__), os.pardir, "requirements.txt"))
    remedy = "-r requirements.txt" if is_checkout else f'"memviz[{_EXTRA_OF[name]}]"'
    return LibraryNeeded(f"This needs {name}, which is not installed here. `pip install {remedy}` brings it.")


def first_line(error: BaseException) -> str:
    """Return the first line of a third-party error, to be quoted within a message."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]


_FRAMES = re.compile(r"\s*(?:Exception raised from |C\+\+ CapturedTraceback|frame #\d)")


def without_frames(text: str) -> str:
    """Return the text of a torch error without the C++ stack frames behind it."""
    return _FRAMES.split(text)[0]
