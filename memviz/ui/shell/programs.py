"""What every interface for programs shares: files and numbers are checked, and what is wrong is said in words.

Each tab has its own interface in `programs.py` of its room, with the same answers as the command line has:

from gradio_client import Client, handle_file
Client(url).predict(handle_file("run.pickle"), api_name="/summary")
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import gradio as gr
from gradio.exceptions import InvalidPathError

from memviz.analysis.groups import GROUPINGS
from memviz.analysis.which_device import chosen_device
from memviz.errors import MemvizError, UsageError
from memviz.trace.load import load_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.shell.exports import not_kept
from memviz.ui.shell.given_files import files_here
from memviz.ui.shell.presence import presence
from memviz.ui.shell.sound import sound, sound_text

_Made = TypeVar("_Made", bound=gr.components.Component)
_MOST_ROWS = 10_000
_MOST_WORDS = 1000
_KINDS = {
    "file": "an uploaded file",
    "other": "an uploaded file",
    "files": "a list of uploaded files",
    "by": "a text",
    "top": "a whole number",
    "event": "a whole number",
    "query": "a text",
    "memory": "a text",
    "search": "true or false",
}

_META = {"type": "object", "properties": {"_type": {"type": "string", "const": "gradio.FileData"}}}
_FILE = {
    "title": "FileData",
    "type": "object",
    "properties": {"path": {"type": "string"}, "meta": _META},
    "required": ["path"],
}
"""Gradio's own refers to places that are elsewhere once it is a part of a larger schema."""


class ExplainingBlocks(gr.Blocks):
    """A page that says what is wrong with a question, where Gradio would say nothing and fill the log."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *more: Any, **options: Any) -> Any:
        try:
            async with files_here(block_fn.inputs, inputs, getattr(self, "max_file_size", None)) as here:
                return await super().preprocess_data(block_fn, here, *more, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        except MemvizError as error:
            raise _refused(str(error)) from None
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


def with_schema(component: _Made, schema: dict[str, Any]) -> _Made:
    """Told to programs in the place of Gradio's own. A class of our own would have Gradio write files beside ours."""
    vars(component)["api_info"] = lambda: schema
    return component


def one_file(label: str) -> gr.File:
    return with_schema(gr.File(label=label), _FILE)


def many_files(label: str) -> gr.File:
    return with_schema(gr.File(label=label, file_count="multiple"), {"type": "array", "items": _FILE})


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
    """What everybody can read as JSON, Gradio's own client too: to it an object with a `path` is a file to fetch."""
    sound_value: dict[str, Any] = _without_paths(sound(answer))
    return sound_value


def _without_paths(value: Any) -> Any:
    """A layer's place in its model is its `module` here; the command line says `path`."""
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if not isinstance(value, dict):
        return value
    is_file = isinstance(value.get("path"), str)
    return {"module" if is_file and key == "path" else key: _without_paths(item) for key, item in value.items()}


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
