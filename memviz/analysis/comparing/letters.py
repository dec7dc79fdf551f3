"""What the traces of a comparison are called."""

from __future__ import annotations


def letter(number: int) -> str:
    """What a trace of a comparison is called in short; A is the baseline."""
    return chr(ord("A") + number) if number < 26 else f"#{number + 1}"
