"""The names this server is known by. Under any other, a page elsewhere may have borrowed its address (DNS rebinding).

A number is no name: nobody can make a browser take one address for another's, so every IP address is known. That
covers a port of a container, an address in the local network, and the probes of whoever runs it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

SETTING = "MEMVIZ_ALLOWED_HOSTS"
_OF_OTHERS = ("SPACE_HOST", "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH", "JUPYTERHUB_HOST", "JUPYTERHUB_PUBLIC_URL")
"""What the surroundings say of themselves: names, lists of names or whole addresses."""
_ON_A_SPACE = ".hf.space"
_NAME = re.compile(r"[a-z0-9_.:-]{1,253}", re.ASCII)


def host_of(text: str) -> str:
    """The name in a Host header, an origin or an address, without its port; empty where there is none."""
    try:
        name = urlsplit(text if "://" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""
    name = name.rstrip(".").lower()
    return name if _NAME.fullmatch(name) else ""


def names_given(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """`*` is every name, and `.example.org` or `*.example.org` all below that one."""
    given = [environment.get(name, "") for name in (SETTING, *_OF_OTHERS)]
    names = {_pattern(name) for text in given for name in re.split(r"[,\s]+", text) if name}
    machine = socket.gethostname().lower()
    return frozenset({"localhost", ".localhost", machine, f"{machine}.local", *names} - {"", ".local"})


def is_of_a_space(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """A Space goes by several names below this one, and nobody but its host gives names there."""
    return bool(environment.get("SPACE_ID")) and name.endswith(_ON_A_SPACE)


def _pattern(text: str) -> str:
    text = text.lower()
    if text == "*":
        return text
    below = text.startswith((".", "*."))
    name = host_of(text.removeprefix("*").removeprefix("."))
    return f".{name}" if below and name else name


def names_of_page(page: Any) -> Iterator[str]:
    """Gradio knows some only once it is up: the address it is bound to, and that under which it is shared."""
    for attribute in ("server_name", "local_url", "share_url", "root_path"):
        value = getattr(page, attribute, None)
        if isinstance(value, str) and not value.startswith("/"):
            yield host_of(value)


def is_known(name: str, names: Iterable[str]) -> bool:
    return is_address(name) or is_named(name, names)


def is_named(name: str, names: Iterable[str]) -> bool:
    return bool(name) and any(
        pattern in ("*", name) or (pattern.startswith(".") and name.endswith(pattern)) for pattern in names if pattern
    )


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name.partition("%")[0]).is_loopback)
