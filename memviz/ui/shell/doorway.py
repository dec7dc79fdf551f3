"""What every request passes, Gradio's own routes and the page's: by which name it came, from whose page, how large.

It answers in words and keeps faults of a visitor's line or file out of the log. It notes who is here, too, and that
a file made for somebody was fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from gradio.route_utils import FnIndexInferError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memviz.ui.shell.bodies import RefusedBody, deepest, whole_body
from memviz.ui.shell.exports import Exports, drop, not_kept
from memviz.ui.shell.gradio_uploads import drop_leftovers
from memviz.ui.shell.known_names import (
    SETTING,
    host_of,
    is_known,
    is_loopback,
    is_named,
    is_of_a_space,
    names_given,
    names_of_page,
)
from memviz.ui.shell.open_pages import OpenPages
from memviz.ui.shell.sound import sound, sound_text

_MOST_BODY = 2 << 20
_DEEPEST = 100
_UPLOAD, _READINGS = "/gradio_api/upload", "/gradio_api/memviz/readings"
_EVENTS = "/gradio_api/queue/data"
_HEARTBEAT, _FILE = "/gradio_api/heartbeat/", "/gradio_api/file="
_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]|NaN|Infinity")


class Doorway:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._names = names_given()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        page = scope["app"].get_blocks()
        refusal = self._stranger(Headers(scope=scope), page)
        if refusal and scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008, "reason": refusal[:120]})
        if refusal:
            return await PlainTextResponse(refusal, 403, _PLAIN)(scope, receive, send)
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        try:
            await self._pass(page, scope, receive, send)
        except ClientDisconnect:
            # Nobody is left to be told.
            return

    def _stranger(self, headers: Headers, page: Any) -> str:
        """Why it is not answered at all; empty for what is ours."""
        names = {*self._names, *names_of_page(page)}
        hosts = list(_asked(headers))
        for host in hosts:
            if not is_known(host, names) and not is_of_a_space(host):
                return f"This server is not known as {host or 'that'}. {_remedy(host)}"
        origin = headers.get("origin")
        if origin is None:
            return ""
        name = host_of(origin) if "://" in origin else ""
        if name in hosts or is_loopback(name) or is_named(name, names):
            return ""
        return f"A page of {name or 'no known place'} asked for this, not a page of this server. {_remedy(name)}"

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
            body = _sound_body(await whole_body(receive, _MOST_BODY))
        except RefusedBody as refused:
            return await _say(str(refused), 400)(scope, receive, send)
        try:
            await self._app(scope, _again(body, receive), send)
        except _NO_QUESTION as error:
            # Gradio looks for what was asked for before it answers anything; what fails while answering it catches.
            words = f"This page has no answer to that ({type(error).__name__}: {str(error)[:200]})."
            await _say(sound_text(words), 400)(scope, receive, send)

    async def _file(self, exports: Exports, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = scope["path"].partition(_FILE)[2]
        if wanted.lower().startswith(("http:", "https:")):
            return await _say("This server fetches nothing for others.", 403)(scope, receive, send)
        if not exports.is_one(wanted):
            return await self._app(scope, receive, send)
        with exports.giving(wanted) as is_there:
            if not is_there:
                return await _say("This file was fetched already, or is gone. Make it again.", 404)(
                    scope, receive, send
                )
            given = False

            async def pass_on(message: Message) -> None:
                nonlocal given
                if message["type"] == "http.response.start":
                    given = message["status"] == 200 and scope["method"] == "GET"
                await send(message)

            await self._app(scope, receive, pass_on)
            if given:
                drop(wanted)

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For a session that is not there Gradio says so, and then raises as well."""
        try:
            await self._app(scope, receive, send)
        except RuntimeError as error:
            if not isinstance(error.__cause__, HTTPException):
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Gradio's own way in: where it breaks off, Gradio leaves what had come."""
        try:
            await self._app(scope, receive, send)
        except OSError as error:
            drop_leftovers(error)
            await _say(not_kept(error), 507)(scope, receive, send)
        except BaseException as error:
            drop_leftovers(error)
            raise


_NO_QUESTION = (LookupError, TypeError, ValueError, AttributeError, FnIndexInferError)
_PLAIN = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def _remedy(name: str) -> str:
    return f"If it should be, set {SETTING}={name or 'its.name'} and start it again."


def _asked(headers: Headers) -> Iterator[str]:
    """The names it came by. Programs of old name none; browsers always do."""
    if "host" in headers:
        yield host_of(headers["host"])
    forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip()
    if forwarded:
        yield host_of(forwarded)


def _say(words: str, status: int) -> JSONResponse:
    """Under the names that Gradio's own errors have, and ours."""
    return JSONResponse({"detail": words, "error": words, "reason": words}, status, _PLAIN)


def _sound_body(body: bytes) -> bytes:
    """JSON that everything behind can take: not too deep, and without halves of characters."""
    if deepest(body) > _DEEPEST:
        raise RefusedBody(f"The request is nested deeper than {_DEEPEST} levels.")
    if not _HALF_A_PAIR.search(body):
        return body
    try:
        return json.dumps(sound(json.loads(body))).encode()
    except (ValueError, RecursionError):
        # Whoever it is for says what is wrong with it.
        return body


def _again(body: bytes, receive: Receive) -> Receive:
    told = False

    async def tell() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return tell
