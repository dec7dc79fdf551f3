"""A file at an address that a stranger names: fetched only where the owner of the server switched that on.

It is fetched from public addresses alone, over http and https, and no further than a bound. A name is looked up once,
and the connection goes to the very address that was checked: a name that changes its mind leads nowhere else.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from memviz.errors import UsageError
from memviz.ui.shell.temporary_files import delete_export, file_stem, new_file

SWITCH = "MEMVIZ_FETCH"
_SECONDS = 20.0
_ALL_SECONDS = 300.0
_PIECE = 1 << 18
MOST_BYTES = 1 << 30
_MOST_REDIRECTS = 5
_AT_ONCE = 4
_LONGEST_ADDRESS = 4096
_HUB = ("huggingface.co", "hf.co")
"""On a Space these names lead to addresses inside of it; nobody else gives names below them."""
_REDIRECTS = (301, 302, 303, 307, 308)
_V4_INSIDE_V6 = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "2002::/16", "2001::/32", "::/96"))

_free = threading.BoundedSemaphore(_AT_ONCE)


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get(SWITCH, "").strip().lower() in ("1", "true", "yes", "on")


def fetched(address: str, most_bytes: int, environment: Mapping[str, str] = os.environ) -> str:
    """The path of a new file in a folder of its own; whoever asked for it drops it."""
    if not is_on(environment):
        raise UsageError(
            "This server fetches nothing from other addresses. Upload the file to it (POST to /gradio_api/upload) and "
            f"name that; or whoever runs the server sets {SWITCH}=1."
        )
    if not _free.acquire(blocking=False):
        raise UsageError(f"{_AT_ONCE} files are being fetched here already. Ask again in a while.")
    try:
        return _fetched(address, most_bytes)
    finally:
        _free.release()


def _fetched(address: str, most_bytes: int) -> str:
    end = time.monotonic() + _ALL_SECONDS
    for _ in range(_MOST_REDIRECTS + 1):
        where = _checked(address)
        try:
            connection = _connection(where)
            # A server that says a byte now and then would never let go of a reader.
            watch = threading.Timer(end - time.monotonic(), _hang_up, [connection])
            watch.daemon = True
            watch.start()
            try:
                answer = _asked(connection, where)
                if answer.status in _REDIRECTS:
                    address = urljoin(address, answer.headers.get("Location", ""))
                    continue
                if answer.status != 200:
                    raise UsageError(f"{where.hostname} answers {answer.status}.")
                return _written(answer, where, most_bytes, end)
            finally:
                watch.cancel()
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            # What a line says of a machine that is not public is nobody's business: only public ones come this far.
            raise UsageError(f"{where.hostname} cannot be read ({type(error).__name__}).") from None
    raise UsageError(f"It leads on to another address more than {_MOST_REDIRECTS} times.")


def _checked(address: str) -> SplitResult:
    try:
        where = urlsplit(address)
        is_sound = where.scheme in ("http", "https") and bool(where.hostname) and where.port != 0
    except ValueError:
        is_sound = False
    if not is_sound or len(address) > _LONGEST_ADDRESS or not address.isascii() or not address.isprintable():
        raise UsageError("An address begins with http:// or https:// and names a host.")
    if where.username is not None or where.password is not None:
        raise UsageError("An address with a password in it is not fetched.")
    return where


def _connection(where: SplitResult) -> http.client.HTTPConnection:
    host = where.hostname or ""
    port = where.port or (443 if where.scheme == "https" else 80)
    place = _place(host, port)
    kind = _Tls if where.scheme == "https" else _Plain
    return kind(host, port, place)


class _Plain(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, place: str) -> None:
        super().__init__(host, port, timeout=_SECONDS)
        self.place = place

    def connect(self) -> None:
        self.sock = socket.create_connection((self.place, self.port), _SECONDS)


class _Tls(_Plain):
    default_port = 443

    def connect(self) -> None:
        super().connect()
        self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _place(host: str, port: int) -> str:
    """The address of a machine that the whole world may ask."""
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageError(f"There is no {host}.") from None
    places = [str(row[4][0]) for row in known]
    if not (_is_hub(host) or all(is_public(place) for place in places)):
        raise UsageError(f"{host} is no public address, and nothing is fetched from others.")
    return places[0]


def _is_hub(host: str) -> bool:
    return any(host == name or host.endswith(f".{name}") for name in _HUB)


def is_public(place: str) -> bool:
    try:
        ip = ipaddress.ip_address(place.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        # What stands in these goes on to an address of the old kind, which may be anybody's.
        if any(ip in network for network in _V4_INSIDE_V6):
            return False
    return ip.is_global and not ip.is_multicast


def _asked(connection: http.client.HTTPConnection, where: SplitResult) -> http.client.HTTPResponse:
    wanted = (where.path or "/") + (f"?{where.query}" if where.query else "")
    connection.request("GET", wanted, headers={"Accept-Encoding": "identity", "User-Agent": "memviz"})
    return connection.getresponse()


def _written(answer: http.client.HTTPResponse, where: SplitResult, most_bytes: int, end: float) -> str:
    if (answer.length or 0) > most_bytes:
        raise _too_large(most_bytes)
    path = new_file(file_stem(unquote(where.path).rpartition("/")[2]))
    try:
        size = 0
        with path.open("wb") as file:
            while piece := answer.read1(_PIECE):
                size += len(piece)
                if size > most_bytes:
                    raise _too_large(most_bytes)
                file.write(piece)
        if time.monotonic() > end:
            raise UsageError(f"It has not come within {_ALL_SECONDS:g} seconds.")
        if answer.length:
            raise UsageError(f"{where.hostname} ended before all of it had come.")
    except BaseException:
        delete_export(path)
        raise
    return str(path)


def _hang_up(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _too_large(most_bytes: int) -> UsageError:
    return UsageError(f"It has more than the {most_bytes:,} bytes that are taken here.")
