"""Text of anybody's, as something that moves no cursor, sets no title and turns no writing round."""

from __future__ import annotations

import re

_UNUSUAL = re.compile(r"[^\n\t -~]")


def harmless(text: str, keep: str = "\n\t") -> str:
    """As it stands, but for what is not printed: control characters, marks of direction, halves of a character."""
    if not _UNUSUAL.search(text) and all(letter in keep or letter not in text for letter in "\n\t"):
        return text
    return "".join(letter if letter.isprintable() or letter in keep else _escaped(letter) for letter in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
