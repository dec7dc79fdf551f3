"""How one file writes its events: learnt from an event that was read operation by operation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "number", "pool", "stack"]
KINDS: dict[str, Kind] = {
    "action": "text",
    "addr": "number",
    "size": "number",
    "stream": "number",
    "time_us": "number",
    "compile_context": "text",
    "user_metadata": "text",
    "pool_id": "pool",
    "frames": "stack",
}


@dataclass(frozen=True)
class Template:
    """How this file writes an event."""

    memo: bytes
    """What follows each new object: MEMOIZE, 'r' (LONG_BINPUT with a number behind it) or nothing."""
    slots: tuple[tuple[str, Kind, bytes], ...]
    """Name, kind, and the bytes that fetch the key's text from the memo."""


_REFERENCE = rb"(?:h.|j....)"
_NUMBER = rb"(?:K.|M..|J....|\x8a[\x00-\x08].{0,8}?)"


def template_of(buffer: bytes, start: int, end: int, keys: list[str]) -> Template | None:
    """None where a key is written out (as in the first event) or unknown, or a value is of another form."""
    if any(key not in KINDS for key in keys):
        return None
    for memo in (b"\x94", b"r", b""):
        memo_pattern = _memo_pattern(memo)
        parts = [rb"\}", memo_pattern, rb"\("]
        for key in keys:
            parts += [rb"(", _REFERENCE, rb")", _value_pattern(KINDS[key], memo_pattern)]
        match = re.compile(b"".join(parts) + rb"u", re.DOTALL).fullmatch(buffer, start, end)
        if match:
            return Template(memo, tuple((key, KINDS[key], match[i + 1]) for i, key in enumerate(keys)))
    return None


def _memo_pattern(memo: bytes) -> bytes:
    return {b"\x94": rb"\x94", b"r": rb"r....", b"": rb""}[memo]


def _value_pattern(kind: Kind, memo: bytes) -> bytes:
    if kind == "number":
        return _NUMBER
    if kind == "text":
        return rb"(?:" + _REFERENCE + rb"|\x8c.{1,256}?" + memo + rb"|X.{4,260}?" + memo + rb")"
    if kind == "pool":
        return rb"(?:" + _REFERENCE + rb"|" + _NUMBER + _NUMBER + rb"\x86" + memo + rb")"
    return rb"(?:" + _REFERENCE + rb"|\]" + memo + _LIST_BODY + rb")"


_LIST_BODY = rb"(?:\(" + _REFERENCE + rb"*e|" + _REFERENCE + rb"a|)"
LIST = re.compile(_LIST_BODY, re.DOTALL)
REFERENCES = re.compile(rb"h(.)|j(....)", re.DOTALL)
REFERENCE_ROW = re.compile(_REFERENCE + rb"{2,}e", re.DOTALL)
"""What follows the mark of a list of nothing but references."""
