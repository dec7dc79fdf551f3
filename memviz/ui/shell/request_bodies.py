"""Request bodies read whole within a limit, and values made safe for JSON."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message

from memviz.errors import UsageError

_MOST_DRAINED = 1 << 30
_SECONDS = 60.0
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
Receive = Callable[[], Awaitable[Message]]


class RefusedBody(UsageError):
    """Not what any page would send."""


async def read_body(receive: Receive, most: int, seconds: float = _SECONDS) -> bytes:
    """Refused where it is larger or does not come. A sender listens only once it has sent all, so all is heard out."""
    try:
        return await asyncio.wait_for(_read_within(receive, most), seconds)
    except TimeoutError:
        raise RefusedBody("The rest of the request did not come.") from None


async def _read_within(receive: Receive, most: int) -> bytes:
    pieces: list[bytes] = []
    size, more = 0, True
    while more and size < _MOST_DRAINED:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedBody("The request broke off.")
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            pieces.clear()
        else:
            pieces.append(piece)
        more = message.get("more_body", False)
    if size > most:
        raise RefusedBody(f"The request has more than {most:,} bytes.")
    return b"".join(pieces)


def json_depth(body: bytes) -> int:
    """How deep JSON is nested, without building it."""
    depth = most = 0
    for match in _NESTING.finditer(body):
        mark: Any = match.group()[0]
        if mark in b"[{":
            depth += 1
            most = max(most, depth)
        elif mark in b"]}":
            depth -= 1
    return most


def json_safe_text(value: object) -> str:
    """TypeError for what is no text. Half of a pair of characters, which UTF-8 cannot say, is shown as one it can."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_safe(value: Any) -> Any:
    """The same, of lists and objects of any depth; what is neither finite nor infinite in JSON is null."""
    if isinstance(value, str):
        return json_safe_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {json_safe(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
