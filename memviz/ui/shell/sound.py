"""What can be said in JSON that everybody reads: texts without half characters, numbers that are numbers."""

from __future__ import annotations

import math
from typing import Any


def sound_text(value: object) -> str:
    """TypeError for what is no text. Half of a pair of characters, which UTF-8 cannot say, is shown as one it can."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def sound(value: Any) -> Any:
    """The same, of lists and objects of any depth; what is neither finite nor infinite in JSON is null."""
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {sound(key): sound(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sound(item) for item in value]
    return value
