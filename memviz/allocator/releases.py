"""Releases of PyTorch by name, and those of which rules are known: of another one an answer would be made up."""

from __future__ import annotations

import re

from memviz.errors import UsageError

_RELEASE = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")


def known_release(text: str, oldest: tuple[int, int], newest: tuple[int, int]) -> tuple[int, int]:
    """'2.6' as (2, 6)."""
    if not _RELEASE.fullmatch(text):
        raise UsageError(f"{text!r} is not a release; write for example 2.8.")
    major, _, minor = text.partition(".")
    release = int(major), int(minor)
    if not oldest <= release <= newest:
        first, last = (".".join(map(str, one)) for one in (oldest, newest))
        raise UsageError(f"No rules of torch {text} are known here; they are from {first} to {last}.")
    return release
