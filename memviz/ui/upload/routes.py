"""Routes beside Gradio's: files arrive in parts, messages about them are streamed back, and kept pages are shown.

Gradio's own upload takes a file whole before anything is done with it, and stays for programs and for browsers that
cannot do this. Here it comes in parts that are read as they arrive (`reading`). Every route asks Gradio who may
use the page, and those of files answer only the page itself, never another site in the same browser.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message

from memviz.errors import UsageError
from memviz.ui.shell.request_guard import json_safe_text, read_body
from memviz.ui.shell.temporary_files import kept_page, write_failure
from memviz.ui.shell.visitors import visitor_of
from memviz.ui.upload.arriving import TooMuch
from memviz.ui.upload.reading import OPENED, Busy, FileTooLarge, Reading, Readings

PATH = "/gradio_api/memviz/readings"
"""Below Gradio's own: what stands elsewhere, a proxy in front of it may answer with the page."""
KEPT_PATH = "/gradio_api/memviz/kept"
_KEPT_HEADERS = {
    # It has text of a file: whatever it were to run has no rights of this page.
    "Content-Security-Policy": "sandbox allow-scripts allow-downloads",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}
MOST_BYTES_ON_A_SPACE = 200 << 20
_LOGIN_CHECK = "/gradio_api/login_check"
_OF_THE_VISITOR = ("type", "asgi", "http_version", "scheme", "headers", "client", "server", "root_path", "state")
_LONGEST_NAME = 300
_MOST_SAID = 1 << 14
_MOST_SIZE = 1 << 53
"""The largest number that every browser knows exactly."""
Handler = Callable[[Request], Awaitable[Response]]


def most_bytes() -> int | None:
    """Return the largest upload: limited on a Space, which visitors share; None elsewhere."""
    return MOST_BYTES_ON_A_SPACE if os.environ.get("SPACE_ID") else None


def routes() -> list[Route]:
    one = PATH + "/{ticket}"
    return [
        Route(PATH, _guarded(_begin), methods=["POST"]),
        Route(one, _guarded(_part), methods=["POST"]),
        Route(one, _guarded(_listen), methods=["GET"]),
        Route(one, _guarded(_drop), methods=["DELETE"]),
        Route(KEPT_PATH + "/{name}", _kept, methods=["GET"]),
    ]


async def _kept(request: Request) -> Response:
    """A page that a visitor keeps here: shown to all who may use this server, from wherever they follow its link."""
    if not await _is_authorized(request):
        return _refusal("Log in first.", 401)
    path = kept_page(request.path_params["name"])
    if path is None:
        return PlainTextResponse("This link has expired. Ask the sender for the page.", 404, _KEPT_HEADERS)
    return FileResponse(path, media_type="text/html", headers=_KEPT_HEADERS)


def _guarded(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        if not _is_same_origin(request):
            return _refusal("Only the page itself may send this request.", 403)
        if not await _is_authorized(request):
            return _refusal("Log in first.", 401)
        try:
            return await handler(request)
        except (UsageError, ValueError, KeyError, TypeError, RecursionError):
            return _refusal("Invalid request.", 400)
        except TooMuch:
            return _refusal("More bytes than announced.", 400)
        except OSError as error:
            return _refusal(write_failure(error), 507)

    return answer


def _refusal(reason: str, status: int) -> Response:
    return JSONResponse({"reason": reason}, status)


def _is_same_origin(request: Request) -> bool:
    """Browsers send Sec-Fetch-Site, older ones only Origin, programs neither."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


async def _is_authorized(request: Request) -> bool:
    """Ask Gradio with a request of the same visitor, because its login covers only its own routes."""
    app = request.app
    if app.auth is None and app.auth_dependency is None:
        return True
    scope = {key: request.scope[key] for key in _OF_THE_VISITOR if key in request.scope}
    scope |= {"method": "GET", "path": _LOGIN_CHECK, "raw_path": _LOGIN_CHECK.encode(), "query_string": b""}
    statuses: list[int] = []

    async def no_body() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, no_body, collect)
    return statuses == [200]


def _reading(request: Request) -> tuple[Readings, str, Reading]:
    """Return all uploads, and the ticket and the upload that this request is about."""
    readings: Readings = request.app.get_blocks().readings
    ticket = request.path_params["ticket"]
    reading = readings.get(ticket)
    if reading is None:
        raise UsageError("This ticket has no upload.")
    return readings, ticket, reading


async def _begin(request: Request) -> Response:
    message = json.loads(await read_body(request.receive, _MOST_SAID))
    name, size, packed = json_safe_text(message["name"])[-_LONGEST_NAME:], message["size"], message["packed"] is True
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MOST_SIZE:
        raise UsageError("The size must be a whole number of bytes.")
    name, visitor = name.replace("\\", "/").rsplit("/", 1)[-1], visitor_of(request.scope)
    try:
        readings: Readings = request.app.get_blocks().readings
        is_beside = message.get("beside") is True
        ticket = readings.begin(name, size, packed=packed, visitor=visitor, is_beside=is_beside)
    except FileTooLarge as fault:
        return _refusal(str(fault), 413)
    except Busy:
        return _refusal("Too many files are being read. Try again in a moment.", 429)
    return JSONResponse({"ticket": ticket})


async def _part(request: Request) -> Response:
    """Receive the next part of a file; a header marks the last. A refused part is not counted."""
    _, _, reading = _reading(request)
    arriving = reading.arriving
    if int(request.headers["memviz-part"]) != reading.next_part or reading.is_receiving:
        raise UsageError("Parts must arrive in order.")
    if not 0 <= int(request.headers["content-length"]) <= arriving.room:
        raise UsageError("More bytes than announced.")
    reading.is_receiving = True
    try:
        reading.begin()
        async for chunk in request.stream():
            arriving.add(chunk, plain=request.headers.get("memviz-plain") == "1")
        reading.next_part += 1
    except ClientDisconnect:
        arriving.end("The upload was interrupted.")
        raise
    finally:
        reading.is_receiving = False
    if request.headers.get("memviz-last") == "1":
        arriving.end()
    return Response(status_code=204)


async def _listen(request: Request) -> Response:
    readings, ticket, reading = _reading(request)
    if reading.has_listener:
        raise UsageError("This file already has a listener.")
    reading.use()
    messages = stream_messages(readings, ticket, reading)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(messages, headers=headers, media_type="application/octet-stream")


async def stream_messages(readings: Readings, ticket: str, reading: Reading) -> AsyncGenerator[bytes, None]:
    """Stream the messages about an upload. If the client disconnects before the file is open, it is dropped."""
    reading.has_listener = True
    try:
        async for message in reading.outbox.messages():
            yield message
    finally:
        # The page hangs up as soon as it hears that its file is open, which may be before the last message's end here.
        readings.drop(ticket, is_delivered=reading.outbox.newest_fetched == OPENED)


async def _drop(request: Request) -> Response:
    readings: Readings = request.app.get_blocks().readings
    readings.drop(request.path_params["ticket"])
    return Response(status_code=204)
