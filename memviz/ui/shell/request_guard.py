"""Every request is checked here: the host name, the page that sent it, its size and nesting.

A host name that is not the server's own may be borrowed (DNS rebinding); an IP address cannot be, so each is
accepted. Faults of a visitor's line or file are answered and kept out of the log.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from gradio.route_utils import FnIndexInferError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memviz.errors import UsageError
from memviz.ui.shell.temporary_files import Exports, drop_leftovers, write_failure
from memviz.ui.shell.visitors import OpenPages

_MOST_DRAINED = 1 << 30
_SECONDS = 60.0
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


class RefusedBody(UsageError):
    """Not what any page would send."""


async def read_body(receive: Receive, most: int) -> bytes:
    """Refused where it is larger or does not come. A sender listens only once it has sent all, so all is heard out."""
    pieces: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(_SECONDS):
            while more and size < _MOST_DRAINED:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedBody("The request was interrupted.")
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > most:
                    pieces.clear()
                more = message.get("more_body", False)
    except TimeoutError:
        raise RefusedBody("The rest of the request did not arrive.") from None
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
    """Return the text with lone surrogates, which UTF-8 cannot encode, replaced; TypeError if it is no text."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_safe(value: Any) -> Any:
    """The same, of lists and objects of any depth; what is no finite number in JSON is null."""
    if isinstance(value, str):
        return json_safe_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {json_safe(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value


NAMES_SETTING = "MEMVIZ_ALLOWED_HOSTS"
_HOST_SETTINGS = ("SPACE_HOST", "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH", "JUPYTERHUB_HOST", "JUPYTERHUB_PUBLIC_URL")
"""Environment variables that hold host names, lists of them, or whole addresses."""
_SPACE_DOMAIN = ".hf.space"
"""Only the host of Spaces assigns names below it."""
_HOST_NAME = re.compile(r"[a-z0-9_.:-]{1,253}", re.ASCII)


def host_of(text: str) -> str:
    """The name in a Host header, an origin or an address, without its port; empty where there is none."""
    try:
        name = urlsplit(text if "://" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""
    name = name.rstrip(".").lower()
    return name if _HOST_NAME.fullmatch(name) else ""


def allowed_names(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """`*` is every name, and `.example.org` or `*.example.org` all below that one."""
    texts = [environment.get(name, "") for name in (NAMES_SETTING, *_HOST_SETTINGS)]
    names = {_pattern(name) for text in texts for name in re.split(r"[,\s]+", text) if name}

    machine = socket.gethostname().lower()
    return frozenset({"localhost", ".localhost", machine, f"{machine}.local", *names} - {"", ".local"})


def _pattern(text: str) -> str:
    text = text.lower()
    if text == "*":
        return text
    with_subdomains = text.startswith((".", "*."))
    name = host_of(text.removeprefix("*").removeprefix("."))
    return f".{name}" if with_subdomains and name else name


def names_of_page(page: Any) -> Iterator[str]:
    """Gradio knows some only once it is up: the address it is bound to, and that under which it is shared."""
    for attribute in ("server_name", "local_url", "share_url", "root_path"):
        value = getattr(page, attribute, None)
        if isinstance(value, str) and not value.startswith("/"):
            yield host_of(value)


def is_allowed_name(name: str, names: Iterable[str]) -> bool:
    return is_address(name) or matches_name(name, names)


def matches_name(name: str, names: Iterable[str]) -> bool:
    return bool(name) and any(
        pattern in ("*", name) or (pattern.startswith(".") and name.endswith(pattern)) for pattern in names if pattern
    )


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


_MOST_BODY = 2 << 20
_DEEPEST = 100
_UPLOAD, _READINGS = "/gradio_api/upload", "/gradio_api/memviz/readings"
_EVENTS = "/gradio_api/queue/data"
_HEARTBEAT, _FILE = "/gradio_api/heartbeat/", "/gradio_api/file="
_UNSAFE_JSON = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]|NaN|Infinity")


class RequestGuard:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._names = allowed_names()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        page = scope["app"].get_blocks()
        refusal = self._refusal(Headers(scope=scope), page)
        if refusal and scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008, "reason": refusal[:120]})
        if refusal:
            return await PlainTextResponse(refusal, 403, _PLAIN)(scope, receive, send)
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        try:
            await self._pass(page, scope, receive, send)
        except ClientDisconnect:
            return

    def _refusal(self, headers: Headers, page: Any) -> str:
        """Return why the request is refused; empty if it is from this server's own page or a program."""
        names = {*self._names, *names_of_page(page)}
        hosts = list(_host_names(headers))
        for host in hosts:
            on_space = os.environ.get("SPACE_ID") and host.endswith(_SPACE_DOMAIN)
            if not is_allowed_name(host, names) and not on_space:
                return f"This server does not accept the host name {host or 'of the request'}. {_remedy(host)}"
        origin = headers.get("origin")
        if origin is None:
            return ""
        name = host_of(origin) if "://" in origin else ""
        if name in hosts or is_loopback(name) or matches_name(name, names):
            return ""
        return f"A page of {name or 'an unknown address'} sent this request, not a page of this server. {_remedy(name)}"

    async def _pass(self, page: Any, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if _HEARTBEAT in path:
            pages: OpenPages = page.open_pages
            with pages.of(path.rpartition("/")[2]):
                return await self._app(scope, receive, send)
        if _FILE in path:
            return await self._file(page.exports, scope, receive, send)
        if _UPLOAD in path:
            return await self._upload(scope, receive, send)
        if _EVENTS in path:
            return await self._events(scope, receive, send)
        if scope["method"] in ("GET", "HEAD", "OPTIONS") or _READINGS in path:
            return await self._app(scope, receive, send)
        try:
            body = _json_safe_body(await read_body(receive, _MOST_BODY))
        except RefusedBody as refused:
            return await _error_response(str(refused), 400)(scope, receive, send)
        try:
            await self._app(scope, _replay_body(body, receive), send)
        except _UNKNOWN_ENDPOINT as error:
            # Raised before Gradio answers: it looks up the endpoint first, and catches what fails in it.
            message = f"This request failed ({type(error).__name__}: {str(error)[:200]})."
            await _error_response(json_safe_text(message), 400)(scope, receive, send)

    async def _file(self, exports: Exports, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = scope["path"].partition(_FILE)[2]
        if wanted.lower().startswith(("http:", "https:")):
            return await _error_response("This server fetches no other addresses.", 403)(scope, receive, send)
        if not exports.is_one(wanted):
            return await self._app(scope, receive, send)
        whole = scope["method"] == "GET" and "range" not in Headers(scope=scope)
        with exports.claim(wanted, whole=whole) as claim:
            if not claim.is_there:
                return await _error_response("This file was already downloaded or deleted. Create it again.", 404)(
                    scope, receive, send
                )

            status = 0

            async def pass_on(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            await self._app(scope, receive, pass_on)
            claim.is_delivered = whole and status == 200

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass queue events on. For an unknown session Gradio answers, and then raises as well."""
        try:
            await self._app(scope, receive, send)
        except RuntimeError as error:
            if not isinstance(error.__cause__, HTTPException):
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an upload to Gradio, which leaves partial files if it breaks off; delete them."""
        try:
            await self._app(scope, receive, send)
        except OSError as error:
            drop_leftovers(error)
            await _error_response(write_failure(error), 507)(scope, receive, send)
        except BaseException as error:
            drop_leftovers(error)
            raise


_UNKNOWN_ENDPOINT = (LookupError, TypeError, ValueError, AttributeError, FnIndexInferError)
_PLAIN = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def _remedy(name: str) -> str:
    return f"To allow it, set {NAMES_SETTING}={name or 'its.name'} and restart."


def _host_names(headers: Headers) -> Iterator[str]:
    """Yield the host names of the request. Browsers always send one; HTTP/1.0 programs may not."""
    if "host" in headers:
        yield host_of(headers["host"])
    forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip()
    if forwarded:
        yield host_of(forwarded)


def _error_response(message: str, status: int) -> JSONResponse:
    """Return an error with the keys of Gradio's errors and the key of memviz's, `reason`."""
    return JSONResponse({"detail": message, "error": message, "reason": message}, status, _PLAIN)


def _json_safe_body(body: bytes) -> bytes:
    """JSON that everything behind can take: not too deep, and without halves of characters."""
    if json_depth(body) > _DEEPEST:
        raise RefusedBody(f"The request is nested deeper than {_DEEPEST} levels.")
    if not _UNSAFE_JSON.search(body):
        return body
    try:
        return json.dumps(json_safe(json.loads(body))).encode()
    except (ValueError, RecursionError):
        # The endpoint reports the error.
        return body


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body once more, and then what the client sends."""
    is_sent = False

    async def receive_again() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
