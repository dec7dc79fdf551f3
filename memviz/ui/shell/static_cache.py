"""The page as all visitors get it: made and compressed once, and without hidden components.

Gradio would write the page and compress its eighty files for each visitor. Programs read the whole configuration at
another address.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memviz.text import Html

Rewrite = Callable[[Mapping[str, Any]], dict[str, Any]]


def without_hidden(config: Mapping[str, Any], hidden: int) -> dict[str, Any]:
    """Return the configuration without a block, the blocks in it, and the events that only these trigger.

    A page of 145 components takes a browser a fifth longer to open than one of the 107 that people see.
    """
    gone: set[int] = set()
    layout = _without_node(config["layout"], hidden, gone)
    targets = {event["id"]: {number for number, _ in event["targets"]} for event in config["dependencies"]}
    events = [event for event in config["dependencies"] if not targets[event["id"]] or targets[event["id"]] - gone]
    event_ids = {event["id"] for event in events}
    pages = {
        name: {
            **page,
            "layout": _without_node(page["layout"], hidden, set()),
            "components": [number for number in page["components"] if number not in gone],
            "dependencies": [number for number in page["dependencies"] if number in event_ids],
        }
        for name, page in config.get("page", {}).items()
    }
    components = [component for component in config["components"] if component["id"] not in gone]
    return {**config, "layout": layout, "dependencies": events, "components": components, "page": pages}


def _without_node(node: dict[str, Any], hidden: int, gone: set[int]) -> dict[str, Any]:
    """Return the tree without the hidden node, and add the numbers of all that was in it to `gone`."""
    children = list(node.get("children") or ())
    waiting = [child for child in children if child["id"] == hidden]
    while waiting:
        last = waiting.pop()
        gone.add(last["id"])
        waiting += last.get("children") or ()
    left = [_without_node(child, hidden, gone) for child in children if child["id"] != hidden]
    return {**node, "children": left} if "children" in node else node


_CONFIG = re.compile(rb"(?<=window\.gradio_config = )\{.*?\}(?=;</script>)", re.DOTALL)
_IN_A_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&'\u2028\u2029"}


def with_config(page: bytes, rewrite: Rewrite) -> bytes:
    """Return the page with its configuration rewritten, or unchanged where it has none that can be read."""
    match = _CONFIG.search(page)
    if match is None:
        return page
    try:
        config = rewrite(json.loads(match[0]))
    except (ValueError, KeyError):
        return page
    text = json.dumps(config, ensure_ascii=False, separators=(",", ":")).translate(_IN_A_SCRIPT)
    return page[: match.start()] + text.encode() + page[match.end() :]


SCRIPT = "/gradio_api/memviz/page.js"
_ASSETS, _FONTS, _THEME = "/assets/", "/static/fonts/", "/theme.css"
_MOST, _MOST_BYTES = 400, 4 << 20
_LEAST_PACKED = 500
_A_DAY, _FOR_EVER = "public, max-age=86400", "public, max-age=31536000, immutable"
"""The name of an asset, of the theme and of the script changes with its content; that of a font does not."""
_ADDRESS_HEADERS = ("host", "x-forwarded-host", "x-forwarded-proto", "x-gradio-server")
"""Gradio writes the address that they make into the page."""
_PARTIAL_HEADERS = ("range", "if-none-match", "if-modified-since", "if-range")
_OTHER_PAGES = (b"deep_link", b"all_endpoints")
"""In a query: Gradio's page is another one then."""
_BASE = re.compile(rb"<base [^>]*>")


@dataclass(frozen=True)
class _CachedResponse:
    plain: Response
    packed: Response | None

    @classmethod
    def of(cls, body: bytes, kind: str, caching: str | None) -> _CachedResponse:
        headers = {"content-type": kind, **({"cache-control": caching} if caching else {})}
        if not kind.startswith(("text/", "application/javascript")) or len(body) < _LEAST_PACKED:
            return cls(Response(body, headers=headers), None)
        headers["vary"] = "Accept-Encoding"
        packed = Response(gzip.compress(body, 6), headers={**headers, "content-encoding": "gzip"})
        return cls(Response(body, headers=headers), packed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        takes_packed = "gzip" in Headers(scope=scope).get("accept-encoding", "")
        cached = self.packed if self.packed and takes_packed else self.plain
        # A copy, because middleware outside (compression, CORS) changes the headers of an answer in place.
        await Response(cached.body, headers=cached.headers)(scope, receive, send)


class SharedPage:
    def __init__(self, head: Html, script: str, rewrite_config: Rewrite = dict) -> None:
        """`head` is added to the head of the page, and then `script`, which runs before Gradio's.

        `rewrite_config` makes the configuration that browsers get.
        """
        self.rewrite_config = rewrite_config
        self._script = _CachedResponse.of(script.encode(), "application/javascript", _FOR_EVER)
        address = f".{SCRIPT}?v={sha256(script.encode()).hexdigest()[:16]}"
        self._head = f'{head}<script defer src="{address}"></script>'.encode()
        self._cached: OrderedDict[tuple[str, ...], _CachedResponse] = OrderedDict()

    async def answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer the request, or return False where Gradio has to."""
        path: str = scope["path"]
        headers = Headers(scope=scope)
        if scope["method"] != "GET" or any(name in headers for name in _PARTIAL_HEADERS):
            return False
        if path == SCRIPT:
            await self._script(scope, receive, send)
            return True
        is_page = path == "/"
        if not is_page and path != _THEME and not path.startswith((_ASSETS, _FONTS)):
            return False
        is_shared = not is_page or _is_shared(scope)
        key = (path, *(headers.get(name, "") for name in _ADDRESS_HEADERS), scope["scheme"]) if is_page else (path,)
        cached = self._cached.get(key) if is_shared else None
        if cached is None:
            start, body = await _response(app, scope, receive)
            if is_page:
                body = _BASE.sub(lambda base: base[0] + self._head, body, count=1)
                body = with_config(body, self.rewrite_config)
            kept = Headers(raw=start["headers"])
            if is_shared and start["status"] == 200 and "set-cookie" not in kept and len(body) <= _MOST_BYTES:
                caching = None if is_page else _A_DAY if path.startswith(_FONTS) else _FOR_EVER
                cached = _CachedResponse.of(body, kept.get("content-type", ""), caching)
            else:
                headers = MutableHeaders(raw=list(start["headers"]))
                headers["content-length"] = str(len(body))
                await send({**start, "headers": headers.raw})
                await send({"type": "http.response.body", "body": body, "more_body": False})
                return True
            self._cached[key] = cached
            while len(self._cached) > _MOST:
                self._cached.popitem(last=False)
        self._cached.move_to_end(key)
        await cached(scope, receive, send)
        return True


class StaticCache:
    """Middleware that answers requests from the cache, inside the request guard."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            page: SharedPage = scope["app"].get_blocks().shared_page
            if await page.answer(self._app, scope, receive, send):
                return
        await self._app(scope, receive, send)


async def _response(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[Message, bytes]:
    """Return Gradio's own response, uncompressed."""
    start: Message = {}
    parts: list[bytes] = []

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
    await app({**scope, "headers": plain}, receive, collect)
    return start, b"".join(parts)


def _is_shared(scope: Scope) -> bool:
    """Return True if every visitor gets the same page; with authentication Gradio's page has the user's name."""
    app: Any = scope["app"]
    if getattr(app, "auth", None) is not None or getattr(app, "auth_dependency", None) is not None:
        return False
    return not any(word in scope.get("query_string", b"") for word in _OTHER_PAGES)
