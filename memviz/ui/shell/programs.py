"""The interface for programs and agents: uploads and arguments are checked, errors are worded.

Each tab has its own interface in `programs.py` of its room, with the answers of the command line. Agents (MCP) get
short JSON that counts what was left off; `gradio_client` gets the whole answer. An address of an upload becomes its
path here; Gradio would fetch any address, without limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import gradio as gr
from gradio.exceptions import InvalidPathError
from gradio.utils import get_upload_folder

from memviz.analysis.devices import choose_device
from memviz.analysis.groups import GROUPINGS
from memviz.errors import MemvizError, UsageError
from memviz.trace.load import load_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.shell.request_guard import json_safe, json_safe_text
from memviz.ui.shell.temporary_files import write_failure
from memviz.ui.shell.visitors import presence

QUEUE = "/gradio_api/queue/join"
"""The route that receives every call of an API client."""
_OURS = "/gradio_api/file="
_FILE_META = {"_type": "gradio.FileData"}


def resolve_uploads(components: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Replace addresses of uploads by their paths; UsageError for any other address, which Gradio would fetch."""
    pairs = zip(components, inputs, strict=False)
    files = [_as_files(value) if isinstance(component, gr.File) else value for component, value in pairs]
    # Gradio looks for files in values of every kind, however deep.
    return [*mapped(files, _with_path), *inputs[len(components) :]]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of lists and objects of any depth: what `change` makes of each value, parts first."""
    if isinstance(value, dict):
        value = {key: mapped(item, change) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        value = [mapped(item, change) for item in value]
    return change(value)


def _as_files(value: Any) -> Any:
    """Agents name a file by a bare address."""
    if isinstance(value, list):
        return [_as_files(item) for item in value]
    return {"path": value, "meta": _FILE_META} if _is_address(value) else value


def _is_address(text: object) -> bool:
    return isinstance(text, str) and text.strip().lower().startswith(("http:", "https:"))


def _with_path(value: Any) -> Any:
    if not isinstance(value, dict) or not (_is_address(value.get("path")) and "meta" in value):
        return value
    path = local_path(value["path"].strip())
    if path is None:
        raise UsageError(
            "This server fetches no other addresses. Upload the file (POST to /gradio_api/upload) and pass the "
            "returned path."
        )
    # The address that comes beside the path would lead Gradio there again.
    return {**value, "path": path, "url": None}


def local_path(address: str) -> str | None:
    """The path of what lies here already. By which name this server was called does not matter: the path decides."""
    try:
        name = unquote(urlsplit(address).path.partition(_OURS)[2])
        path = Path(name).resolve()
        is_open = bool(name) and Path(get_upload_folder()).resolve() in path.parents and path.is_file()
    except (OSError, ValueError, RuntimeError):
        return None
    return str(path) if is_open else None


def address_of(path: str, root: str) -> str:
    return f"{root}{_OURS}{path}"


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
_PARTS = {"path": {"type": "string"}, "meta": _META}
_FILE = {"title": "FileData", "type": "object", "properties": _PARTS, "required": ["path"]}
"""Gradio's own refers to places that are elsewhere once it is a part of a larger schema."""


class ExplainingBlocks(gr.Blocks):
    """A page that reports invalid inputs to the client, where Gradio would only log a traceback."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        try:
            here = resolve_uploads(block_fn.inputs, inputs)
            return await super().preprocess_data(block_fn, here, *args, **kwargs)
        except gr.Error as error:
            error.print_exception = False
            raise
        except MemvizError as error:
            raise _gradio_error(str(error)) from None
        except Exception as error:
            raise _gradio_error(_mismatch_message(block_fn, inputs, error)) from None


def _mismatch_message(block_fn: Any, inputs: list[Any], error: Exception) -> str:
    names = [component.label or "" for component in block_fn.inputs]
    about = f"/{block_fn.api_name}" if block_fn.api_name else "This part of the page"
    if len(inputs) < len(names):
        return f"{about} takes {len(names)} values ({', '.join(names)}), not {len(inputs)}."
    if isinstance(error, InvalidPathError):
        return f"{about} takes only files uploaded to this server."
    kinds = ", ".join(f"{name} ({_KINDS[name]})" if name in _KINDS else name for name in names)
    return f"{about} takes {kinds or 'nothing'}. The request has another type."


def _gradio_error(message: str) -> gr.Error:
    return gr.Error(json_safe_text(message)[:_MOST_WORDS], print_exception=False)


def with_schema(component: _Made, schema: dict[str, Any]) -> _Made:
    """Told to programs in the place of Gradio's own. A class of our own would have Gradio write files beside ours."""
    vars(component)["api_info"] = lambda: schema
    return component


def one_file(label: str) -> gr.File:
    return with_schema(gr.File(label=label), _FILE)


def many_files(label: str) -> gr.File:
    return with_schema(gr.File(label=label, file_count="multiple"), {"type": "array", "items": _FILE})


@contextmanager
def with_worded_errors() -> Iterator[None]:
    """Raise expected errors as `gr.Error`, so that the client gets their message."""
    try:
        yield
    except MemvizError as error:
        raise _gradio_error(str(error)) from None
    except OSError as error:
        raise _gradio_error(write_failure(error)) from None
    except MemoryError:
        raise _gradio_error("This machine does not have enough free memory for the answer.") from None


def json_safe_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Make an answer valid JSON, with the key `path` of a layer renamed to `module`.

    Gradio's client takes an object with a path for a file to fetch.
    """

    def without_path(value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("path"), str):
            return value
        return {"module" if key == "path" else key: item for key, item in value.items()}

    safe_answer: dict[str, Any] = mapped(json_safe(answer), without_path)
    return safe_answer


def grouping_of(by: object) -> str:
    if not isinstance(by, str) or by not in GROUPINGS:
        raise UsageError(f"by must be one of {', '.join(GROUPINGS)}.")
    return by


def row_count(top: object) -> int:
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= _MOST_ROWS:
        raise UsageError(f"top must be a whole number from 1 to {_MOST_ROWS:,}.")
    return top


def open_upload(file: object) -> tuple[Trace, DeviceTrace]:
    """Load an upload; choose the device that ran out of memory, else the one with the highest peak."""
    if not isinstance(file, str) or not file:
        raise UsageError("Name a snapshot file.")
    trace = load_trace(file, is_wanted=presence())
    return trace, choose_device(trace)


MOST_AGENT_BYTES = 20_000
"""About five thousand tokens."""
_FRAMES = 6
_STACKS = ("stack", "frames")
_LONGEST_TEXT = 2000
_LEFT_OFF = "left_off"


def serve_agents(page: Any) -> None:
    """Replace two functions of Gradio's MCP server, if it is on; Gradio has no hook for them."""
    server = getattr(page, "mcp_server_obj", None)
    if server is None:
        return
    written, read = server.postprocess_output_data, server.convert_strings_to_filedata
    files: set[str] = set()
    # What Gradio deletes after an hour. Files that came within a question it would keep for ever.
    page.temp_file_sets.append(files)

    def write(data: Any, root_url: str) -> Any:
        answers = [isinstance(item, dict) and "path" not in item for item in data]
        return written(
            [short_json(item) if is_one else item for item, is_one in zip(data, answers, strict=True)], root_url
        )

    def take(value: Any, places: Any) -> Any:
        converted = read(value, places)
        files.update(_own_files(converted))
        return converted

    server.postprocess_output_data, server.convert_strings_to_filedata = write, take


def _own_files(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(value.get("path"), str):
        if not value["path"].startswith(("http:", "https:")):
            yield value["path"]
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _own_files(item)


def short_json(answer: dict[str, Any]) -> str:
    """Stacks lose their outer frames first, then whichever list is the longest its end."""

    def cut_text(value: Any) -> Any:
        return f"{value[:_LONGEST_TEXT]}..." if isinstance(value, str) and len(value) > _LONGEST_TEXT else value

    left_off: dict[str, int] = {}
    shortened = mapped(answer, cut_text)
    if len(json.dumps(shortened)) > MOST_AGENT_BYTES:
        for place, items in _all_lists(shortened):
            if place.rpartition(".")[2] in _STACKS and len(items) > _FRAMES:
                _cut_list(items, _FRAMES, place, left_off)
    while True:
        text = json.dumps({**shortened, **({_LEFT_OFF: left_off} if left_off else {})})
        if len(text) <= MOST_AGENT_BYTES:
            return text
        lists = _all_lists(shortened)
        place, items = max(lists, key=lambda pair: len(json.dumps(pair[1])) if pair[1] else 0, default=("", []))
        if not items:
            numbers = {key: value for key, value in shortened.items() if isinstance(value, int | float)}
            return json.dumps(numbers | {_LEFT_OFF: "the rest"})
        _cut_list(items, len(items) // 2, place, left_off)


def _cut_list(items: list[Any], to: int, place: str, left_off: dict[str, int]) -> None:
    left_off[place] = left_off.get(place, 0) + len(items) - to
    del items[to:]


def _all_lists(value: Any, place: str = "") -> Iterator[tuple[str, list[Any]]]:
    """All of them, with the names that lead there; rows of one list share a name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _all_lists(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        yield place, value
        for item in value:
            yield from _all_lists(item, place)
