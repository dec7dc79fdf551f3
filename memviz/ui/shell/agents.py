"""Answers as agents read them, through MCP: JSON that stays short, with what was left off counted.

Gradio would show them a dict as Python writes it, of any length. Programs (`gradio_client`) have the whole answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MOST_BYTES = 20_000
"""About five thousand tokens."""
_FRAMES = 6
_STACKS = ("stack", "frames")
_LONGEST_TEXT = 2000
_LEFT_OFF = "left_off"


def serve_agents(page: Any) -> None:
    """Where MCP is on. Gradio has no place for it, so its server of this page gets two functions of ours."""
    server = getattr(page, "mcp_server_obj", None)
    if server is None:
        return
    written, read = server.postprocess_output_data, server.convert_strings_to_filedata
    kept: set[str] = set()
    # What Gradio deletes after an hour. Files that came within a question it would keep for ever.
    page.temp_file_sets.append(kept)

    def write(data: Any, root_url: str) -> Any:
        return written([short_json(item) if _is_answer(item) else item for item in data], root_url)

    def take(value: Any, places: Any) -> Any:
        taken = read(value, places)
        kept.update(_own_files(taken))
        return taken

    server.postprocess_output_data, server.convert_strings_to_filedata = write, take


def _own_files(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(value.get("path"), str):
        if not value["path"].startswith(("http:", "https:")):
            yield value["path"]
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _own_files(item)


def _is_answer(value: Any) -> bool:
    return isinstance(value, dict) and "path" not in value


def short_json(answer: dict[str, Any], most_bytes: int = MOST_BYTES) -> str:
    """Stacks lose their outer frames first, then whichever list is the longest its end."""
    left_off: dict[str, int] = {}
    kept = _copied(answer)
    if len(_text(kept)) > most_bytes:
        for place, items in _lists(kept):
            if place.rpartition(".")[2] in _STACKS and len(items) > _FRAMES:
                _cut(items, _FRAMES, place, left_off)
    while True:
        text = _text({**kept, **({_LEFT_OFF: left_off} if left_off else {})})
        if len(text) <= most_bytes:
            return text
        place, items = max(_lists(kept), key=lambda pair: len(_text(pair[1])) if pair[1] else 0, default=("", []))
        if not items:
            return _text(
                {key: value for key, value in kept.items() if isinstance(value, int | float)} | {_LEFT_OFF: "the rest"}
            )
        _cut(items, len(items) // 2, place, left_off)


def _cut(items: list[Any], to: int, place: str, left_off: dict[str, int]) -> None:
    left_off[place] = left_off.get(place, 0) + len(items) - to
    del items[to:]


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}..."
    return value


def _lists(value: Any, place: str = "") -> Iterator[tuple[str, list[Any]]]:
    """All of them, with the names that lead there; rows of one list share a name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _lists(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        yield place, value
        for item in value:
            yield from _lists(item, place)


def _text(value: Any) -> str:
    return json.dumps(value)
