"""What is the same for every visitor is made once and kept, packed: the page, and Gradio's own scripts and styles.

Gradio writes the page anew for each visitor, and reads and packs each file anew, eighty of them.
"""

from __future__ import annotations

import gzip
import re
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memviz.ui.html.markup import Html
from memviz.ui.shell.page_config import Rewrite, rewritten

_ASSETS, _FONTS, _THEME = "/assets/", "/static/fonts/", "/theme.css"
SCRIPT = "/gradio_api/memviz/page.js"
_MOST, _MOST_BYTES = 400, 4 << 20
_LEAST_PACKED = 500
_A_DAY, _FOR_EVER = b"public, max-age=86400", b"public, max-age=31536000, immutable"
"""A name of Gradio's assets holds what they are; the other addresses that end so are asked for with it."""
_DECIDES_THE_ADDRESS = ("host", "x-forwarded-host", "x-forwarded-proto", "x-gradio-server")
_ASKED_IN_PART = ("range", "if-none-match", "if-modified-since", "if-range")
_OWN_ANSWER = (b"deep_link", b"all_endpoints")
"""In a query: Gradio's page is another one then."""
_BASE = re.compile(rb"<base [^>]*>")
_THEME_HASH = re.compile(rb'"theme_hash":\s*"(\w+)"')


@dataclass(frozen=True)
class _Kept:
    body: bytes
    packed: bytes | None
    kind: bytes
    caching: bytes | None

    @classmethod
    def of(cls, body: bytes, kind: bytes, caching: bytes | None) -> _Kept:
        is_text = kind.startswith((b"text/", b"application/javascript"))
        packed = gzip.compress(body, 6) if is_text and len(body) >= _LEAST_PACKED else None
        return cls(body, packed, kind, caching)

    async def send(self, headers: Headers, send: Send) -> None:
        takes_packed = self.packed is not None and "gzip" in headers.get("accept-encoding", "")
        body = self.packed if takes_packed and self.packed is not None else self.body
        sent = [(b"content-type", self.kind), (b"content-length", str(len(body)).encode())]
        if self.packed is not None:
            sent.append((b"vary", b"Accept-Encoding"))
        if takes_packed:
            sent.append((b"content-encoding", b"gzip"))
        if self.caching is not None:
            sent.append((b"cache-control", self.caching))
        await send({"type": "http.response.start", "status": 200, "headers": sent})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class SameForAll:
    def __init__(self, first_lines: Html, script: str, seen: Rewrite = dict) -> None:
        """`first_lines` come into the head of the page, and then `script`, which runs before Gradio's.

        `seen`: of the page's configuration, what browsers are given.
        """
        self.seen = seen
        self._script = _Kept.of(script.encode(), b"application/javascript", _FOR_EVER)
        address = f".{SCRIPT}?v={sha256(script.encode()).hexdigest()[:16]}"
        self._lines = f'{first_lines}<script defer src="{address}"></script>'.encode()
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()

    async def answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> bool:
        """False where somebody else has to."""
        path: str = scope["path"]
        headers = Headers(scope=scope)
        if scope["method"] != "GET" or any(name in headers for name in _ASKED_IN_PART):
            return False
        if path == SCRIPT:
            await self._script.send(headers, send)
            return True
        is_page = path == "/"
        if not is_page and path != _THEME and not path.startswith((_ASSETS, _FONTS)):
            return False
        is_alike = not is_page or _is_alike(scope)
        key = (path, *(headers.get(name, "") for name in _DECIDES_THE_ADDRESS), scope["scheme"]) if is_page else (path,)
        kept = self._kept.get(key) if is_alike else None
        if kept is None:
            start, body = await _answered(app, scope, receive)
            if is_page:
                theme = _line_of_theme(body)
                body = _BASE.sub(lambda base: base[0] + theme + self._lines, body, count=1)
                body = rewritten(body, self.seen)
            kept = _to_keep(start, body, path) if is_alike else None
            if kept is None:
                await _send_on(start, body, send)
                return True
            self._kept[key] = kept
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        await kept.send(headers, send)
        return True


class Handout:
    """What every request passes after the doorway."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            same: SameForAll = scope["app"].get_blocks().same_for_all
            if await same.answer(self._app, scope, receive, send):
                return
        await self._app(scope, receive, send)


def _line_of_theme(page: bytes) -> bytes:
    """Gradio knows its hash once it is up."""
    said = _THEME_HASH.search(page)
    return b'<link rel="preload" as="style" href=".%s?v=%s">' % (_THEME.encode(), said[1]) if said else b""


async def _answered(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[Message, bytes]:
    """By Gradio, unpacked."""
    start: Message = {}
    parts: list[bytes] = []

    async def hear(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    await app({**scope, "headers": _plain(scope)}, receive, hear)
    return start, b"".join(parts)


def _to_keep(start: Message, body: bytes, path: str) -> _Kept | None:
    headers = Headers(raw=start["headers"])
    if start["status"] != 200 or "set-cookie" in headers or len(body) > _MOST_BYTES:
        return None
    caching = None if path == "/" else _A_DAY if path.startswith(_FONTS) else _FOR_EVER
    return _Kept.of(body, headers.get("content-type", "").encode(), caching)


async def _send_on(start: Message, body: bytes, send: Send) -> None:
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["content-length"] = str(len(body))
    await send({**start, "headers": headers.raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _plain(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]


def _is_alike(scope: Scope) -> bool:
    """Where visitors have names, Gradio's page says theirs."""
    app: Any = scope["app"]
    if getattr(app, "auth", None) is not None or getattr(app, "auth_dependency", None) is not None:
        return False
    return not any(word in scope.get("query_string", b"") for word in _OWN_ANSWER)
