"""Messages from a thread that works to a visitor who listens: whole, in their order, and across an event loop.

A message is its header's length (4 bytes, little-endian), the header as JSON, and as many bytes as it names as `bytes`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

_ALIVE_SECONDS = 15
"""Silence that a proxy may take for the end."""


class Outbox:
    def __init__(self) -> None:
        self.newest_fetched = ""
        """The kind of the message that was handed out last."""
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, bytes]] = []
        self._closed = False
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def put(self, kind: str, body: bytes = b"", **header: Any) -> None:
        """A newer one of the same kind takes the place of one that nobody has fetched yet, where none has a body."""
        head = json.dumps({"kind": kind, "bytes": len(body), **header}).encode()
        message = len(head).to_bytes(4, "little") + head + body
        with self._lock:
            if self._closed:
                return
            if not body and self._waiting and self._waiting[-1][0] == kind:
                self._waiting.pop()
            self._waiting.append((kind, message))
        self._tell()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._tell()

    def _tell(self) -> None:
        wake = self._wake
        if wake is not None and not wake[0].is_closed():
            wake[0].call_soon_threadsafe(wake[1].set)

    async def messages(self) -> AsyncIterator[bytes]:
        """Until it is closed and all are fetched. One listener."""
        changed = asyncio.Event()
        self._wake = asyncio.get_running_loop(), changed
        while True:
            changed.clear()
            with self._lock:
                waiting, closed, self._waiting = self._waiting, self._closed, []
            for kind, message in waiting:
                self.newest_fetched = kind
                yield message
            if not waiting and closed:
                return
            if not waiting:
                try:
                    await asyncio.wait_for(changed.wait(), _ALIVE_SECONDS)
                except TimeoutError:
                    self.put("alive")
