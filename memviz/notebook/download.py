"""A snapshot from the web, within bounds: how many bytes, how long, and over which protocols."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from tempfile import TemporaryFile
from typing import IO, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from memviz.errors import TraceError, UsageError
from memviz.trace.limits import Limits

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_PROTOCOLS = ("http", "https")
_HANDLERS = (
    ProxyHandler,
    HTTPHandler,
    HTTPSHandler,
    HTTPRedirectHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    UnknownHandler,
)
_SILENCE_SECONDS = 30.0
_PIECE = 1 << 20


def is_address(text: str) -> bool:
    return bool(_ADDRESS.match(text))


def file_name(address: str) -> str:
    """The last part of its path: never the host, nor what stands before an @ in it."""
    return unquote(urlsplit(address).path).replace("\\", "/").rstrip("/").rpartition("/")[2] or "download"


@contextmanager
def downloaded(address: str, limits: Limits) -> Iterator[tuple[BinaryIO, int]]:
    """The file's content, on disk for as long as it is needed, and its size.

    Raises:
        UsageError: The address is not one of http or https.
        TraceError: There is no such file, or it is beyond the limits.
    """
    _check(address)
    name = file_name(address)
    with TemporaryFile() as file:
        try:
            size = _fetch(address, file, limits)
        except TraceError as error:
            raise error.named(name) from None
        except HTTPError as error:
            error.close()
            reason = f"Its server answers {error.code}."
            raise TraceError(reason, remedy="Look whether the address is right.", source=name) from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            why = error.reason if isinstance(error, URLError) else error
            raise TraceError(f"It cannot be downloaded ({why}).", source=name) from None
        file.seek(0)
        yield file, size


def _check(address: str) -> None:
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise UsageError(f"This is no address: {error}.") from None
    if parts.scheme.lower() not in _PROTOCOLS or not parts.hostname:
        raise UsageError("Only addresses that begin with http:// or https:// are opened; download the file first.")


def _opener() -> OpenerDirector:
    """A server may send us on, but to no other protocol: there is nothing here that knows one."""
    opener = OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    return opener


def _fetch(address: str, file: IO[bytes], limits: Limits) -> int:
    until, size = time.monotonic() + limits.seconds, 0
    request = Request(address, headers={"User-Agent": "memviz", "Accept-Encoding": "identity"})
    with _opener().open(request, timeout=min(_SILENCE_SECONDS, limits.seconds)) as answer:
        # One read is one arrival, so that a server which sends a byte now and then is noticed.
        while piece := answer.read1(_PIECE):
            size += len(piece)
            if size > limits.file_bytes:
                reason = f"It has more than the {limits.file_bytes:,} bytes allowed here."
                raise TraceError(reason, remedy="If you trust the file, raise MEMVIZ_MAX_FILE_BYTES.")
            if time.monotonic() > until:
                raise TraceError(
                    f"It has not arrived within {limits.seconds:g} s.", remedy="Download it first, and open the file."
                )
            file.write(piece)
        promised = answer.headers.get("Content-Length", "")
    if promised.isdigit() and int(promised) != size:
        raise TraceError(f"The download ended after {size:,} of {int(promised):,} bytes.", remedy="Try again.")
    return size
