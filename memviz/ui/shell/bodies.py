"""Bodies of requests, taken whole and small: what no page would send is not kept, and its sender still hears why."""

from __future__ import annotations

import asyncio
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


async def whole_body(receive: Receive, most: int, seconds: float = _SECONDS) -> bytes:
    """Refused where it is larger or does not come. A sender listens only once it has sent all, so all is heard out."""
    try:
        return await asyncio.wait_for(_taken(receive, most), seconds)
    except TimeoutError:
        raise RefusedBody("The rest of the request did not come.") from None


async def _taken(receive: Receive, most: int) -> bytes:
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


def deepest(body: bytes) -> int:
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
