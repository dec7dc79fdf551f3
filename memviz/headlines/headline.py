"""A headline: the answer and its reason; and text of unknown origin made safe for a terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    answer: str
    reason: str = ""

    def and_also(self, more: str) -> Headline:
        """With another sentence to the reason, where there is one to add."""
        return Headline(self.answer, f"{self.reason} {more}".strip())

    def as_estimate(self, limit: str = "") -> Headline:
        """Called an estimate, with what limits it."""
        return Headline(f"Estimate: {self.answer}", self.reason).and_also(limit)

    def __str__(self) -> str:
        return f"{self.answer} {self.reason}".strip()


def headline_json(headline: Headline) -> dict[str, str]:
    return {"answer": headline.answer, "reason": headline.reason}


_UNUSUAL = re.compile(r"[^\n\t -~]")


def escape_control_chars(text: str, keep: str = "\n\t") -> str:
    """Escape what is not printed: control characters, marks of direction, lone surrogates."""
    if not _UNUSUAL.search(text) and all(letter in keep or letter not in text for letter in "\n\t"):
        return text
    return "".join(letter if letter.isprintable() or letter in keep else _escaped(letter) for letter in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
