"""What every interface for programs shares: files and numbers are checked, and what is wrong is said in words.

Each tab has its own interface in `programs.py` of its room, with the same answers as the command line has:

from gradio_client import Client, handle_file
Client(url).predict(handle_file("run.pickle"), api_name="/summary")
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from gradio.exceptions import InvalidPathError

from memviz.analysis.groups import GROUPINGS
from memviz.analysis.which_device import chosen_device
from memviz.errors import MemvizError, UsageError
from memviz.trace.load import load_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.shell.exports import not_kept
from memviz.ui.shell.presence import presence
from memviz.ui.shell.sound import sound, sound_text

_MOST_ROWS = 10_000
_MOST_WORDS = 1000
_KINDS = {
    "file": "an uploaded file",
    "other": "an uploaded file",
    "files": "a list of uploaded files",
    "by": "a text",
    "top": "a whole number",
}


class ExplainingBlocks(gr.Blocks):
    """A page that says what is wrong with a question, where Gradio would say nothing and fill the log."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *more: Any, **options: Any) -> Any:
        try:
            return await super().preprocess_data(block_fn, inputs, *more, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception as error:
            raise _refused(_words_for(block_fn, inputs, error)) from None


def _words_for(block_fn: Any, inputs: list[Any], error: Exception) -> str:
    names = [component.label or "" for component in block_fn.inputs]
    about = f"/{block_fn.api_name}" if block_fn.api_name else "This part of the page"
    if len(inputs) < len(names):
        return f"{about} takes {len(names)} values ({', '.join(names)}); {len(inputs)} came."
    if isinstance(error, InvalidPathError):
        return f"{about} takes files that were uploaded here, and no others."
    kinds = ", ".join(f"{name} ({_KINDS[name]})" if name in _KINDS else name for name in names)
    return f"{about} takes {kinds or 'nothing'}. What came is of another kind."


def _refused(words: str) -> gr.Error:
    return gr.Error(sound_text(words)[:_MOST_WORDS], print_exception=False)


@contextmanager
def in_words() -> Iterator[None]:
    """Whatever is wrong with a question is said to who asked it."""
    try:
        yield
    except MemvizError as error:
        raise _refused(str(error)) from None
    except OSError as error:
        raise _refused(not_kept(error)) from None
    except MemoryError:
        raise _refused("The answer needs more memory than this machine has free.") from None


def sound_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """What everybody can read as JSON."""
    sound_value: dict[str, Any] = sound(answer)
    return sound_value


def grouping_of(by: object) -> str:
    if not isinstance(by, str) or by not in GROUPINGS:
        raise UsageError(f"by is one of {', '.join(GROUPINGS)}.")
    return by


def row_count(top: object) -> int:
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= _MOST_ROWS:
        raise UsageError(f"top is a whole number from 1 to {_MOST_ROWS:,}.")
    return top


def open_upload(file: object) -> tuple[Trace, DeviceTrace]:
    """With the device that ran out of memory, else the one whose memory went highest."""
    if not isinstance(file, str) or not file:
        raise UsageError("Name a snapshot file.")
    trace = load_trace(file, is_wanted=presence())
    return trace, chosen_device(trace)
