"""Who a request comes from, as far as a server can know it: by address, since whoever likes can make up cookies."""

from __future__ import annotations

import ipaddress
import os

from starlette.types import Scope

_UNKNOWN = "unknown"


def visitor_of(scope: Scope) -> str:
    """On a Space all come through proxies, which say for whom: the nearest address that is not one of theirs."""
    client = scope.get("client")
    direct = str(client[0]) if client else _UNKNOWN
    if not os.environ.get("SPACE_ID"):
        return direct
    said = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"x-forwarded-for"]
    for address in reversed(",".join(said).split(",")):
        if _is_public(address.strip()):
            return address.strip()
    return direct


def _is_public(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False
