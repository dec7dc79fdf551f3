"""An answer beside the one we expect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Answers = Iterator[dict[str, Any]]


def asked(what: str, expected: Any, got: Any, *, ok: bool | None = None) -> dict[str, Any]:
    return {"what": what, "expected": expected, "got": got, "ok": expected == got if ok is None else ok}
