"""Texts of a file, made fit to be kept: sound Unicode, and no longer than anybody reads."""

from __future__ import annotations

MOST_TEXT = 4096
"""Characters. Paths end there on Linux, and demangled C++ names stay below it but for a few."""
_TAIL = 1024


def sound(text: str) -> str:
    """JSON can name halves of characters, which no file and no terminal takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def bounded(text: str, most: int = MOST_TEXT) -> str:
    """Its begin and its end, where it is too long. Different texts stay different, and equal ones equal."""
    if len(text) <= most:
        return text
    # Few files have such a text, and OpenSSL takes its time to load.
    from hashlib import blake2b

    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    cut = f" … [cut from {len(text):,} characters, {digest}] … "
    return text[: most - _TAIL - len(cut)] + cut + text[-_TAIL:]
