"""What is wrong with a field of the Run tab, before anything is run: each fault stands at its own field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

EVERY_CHOICE = "*"
"""As the value of a knob with choices: each of them."""
_COUNTS = {"warmup": (0, "Warm-up steps are 0 to 100"), "steps": (1, "Steps are 1 to 100")}
_MOST_STEPS = 100


def knob_faults(prefix: str, knobs: Any, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """By the field's name, as in `w:batch`."""
    for knob in knobs:
        text = texts.get(knob["name"])
        words = _fault(knob, text) if text is not None else ""
        if words:
            yield f"{prefix}:{knob['name']}", words


def step_faults(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, (least, words) in _COUNTS.items():
        text = options.get(name, "1").strip()
        if not text.isdecimal() or not least <= int(text[:9]) <= _MOST_STEPS:
            yield name, f"{words}; not {text[:40] or 'nothing'}."


def _fault(knob: Mapping[str, Any], text: str) -> str:
    if knob["type"] == "bool" or (knob["type"] == "text" and not knob["choices"]) or text == EVERY_CHOICE:
        return ""
    values = [part.strip() for part in text.split(",") if part.strip()]
    if not values:
        return "" if knob.get("optional") else f"It is empty. Give a value, such as {knob['default']}."
    return next((words for value in values if (words := _wrong(knob, value))), "")


def _wrong(knob: Mapping[str, Any], text: str) -> str:
    shown = text[:40]
    if knob.get("optional") and text.lower() == "none":
        return ""
    if knob["choices"]:
        choices = [str(choice) for choice in knob["choices"]]
        return "" if text in choices else f"{shown} is none of {', '.join(choices)}."
    try:
        float(text) if knob["type"] == "float" else int(text)
    except ValueError:
        return f"{shown} is not a {'number' if knob['type'] == 'float' else 'whole number'}."
    return ""
