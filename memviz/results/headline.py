"""A headline, and the names of devices, purposes, traces and counts in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from memviz.analysis.devices import DeviceName, others_out_of_memory
from memviz.trace.model import Category, DeviceTrace, Trace, is_reserved_known
from memviz.units import bytes_text, count_text


@dataclass(frozen=True)
class Headline:
    answer: str
    reason: str = ""

    def and_also(self, more: str) -> Headline:
        """Add a sentence to the reason, unless it is empty."""
        return Headline(self.answer, f"{self.reason} {more}".strip())

    def as_estimate(self, limit: str = "") -> Headline:
        """Mark the answer as an estimate, with what limits it."""
        return Headline(f"Estimate: {self.answer}", self.reason).and_also(limit)

    def as_json(self) -> dict[str, str]:
        return {"answer": self.answer, "reason": self.reason}

    def __str__(self) -> str:
        return f"{self.answer} {self.reason}".strip()


def letter(number: int) -> str:
    """Return the short name of a trace in a comparison; A is the baseline."""
    return chr(ord("A") + number) if number < 26 else f"#{number + 1}"


LONGEST_NAME = 60
"""Characters of one name in a sentence."""

_MANY = {"parameter", "gradient", "activation", "input", "output"}
_ENDINGS = (".gz", ".pickle", ".pkl", ".json")
_WORDS = re.compile(r"[^-_./ ,(]+|[-_./ ,(]+")
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def device_name(device: DeviceName) -> str:
    return f"device {device.name}" if device.name.isdigit() else f"pinned memory ({device.name})"


def device_number(device: DeviceTrace) -> int | str:
    """Return the device's name in JSON: a number, or 'host0' for pinned memory."""
    return device.device if device.kind == "gpu" else device.name


def device_suffix(device: DeviceName) -> str:
    """ " of device 1" where there is another it could be of, else nothing."""
    return f" of {device_name(device)}" if device.is_one_of_several else ""


def purpose_name(category: str) -> str:
    """parameter -> parameters, temporary -> temporary tensors; what has no plural or is one stays."""
    if category == "temporary":
        return "temporary tensors"
    return f"{category}s" if category in _MANY else category


def is_plural_purpose(category: str) -> bool:
    return category in (*_MANY, "temporary", Category.AUTOCAST_WEIGHT_COPIES.label, Category.WEIGHT_COPIES.label)


def reserved_text(live_bytes: int, reserved_bytes: int) -> str:
    return bytes_text(reserved_bytes) if is_reserved_known(live_bytes, reserved_bytes) else "not known"


def count_word(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else count_text(count)


def and_list(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def shorten(text: str) -> str:
    """Cut in the middle: long names tend to begin alike and to differ at their ends."""
    end = (LONGEST_NAME - 1) // 2
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1 - end]}…{text[-end:]}"


def consecutive_spans(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers, which are in ascending order."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return spans


def trace_name(source: str) -> str:
    """Return a file's name without the endings of its format and compression."""
    for ending in _ENDINGS:
        source = source.removesuffix(ending)
    return source


def differing_names(names: Sequence[str]) -> list[str]:
    """Names without the words with which all of them begin, and without those with which all end."""
    words = [_WORDS.findall(name) for name in names]
    least = min(map(len, words), default=0)
    if len(set(names)) < 2 or not least:
        return list(names)
    head = next((i for i in range(least) if len({name[i] for name in words}) > 1), -1)
    if head < 0:
        # One is the beginning of the others, as a recording's is of its replays.
        return list(names)
    tail = next((i for i in range(least - head) if len({name[-1 - i] for name in words}) > 1), least - head - 1)
    inner = ["".join(name[head : len(name) - tail]).strip("-_./ ") for name in words]
    if all(map(str.isdigit, inner)) and head:
        # A number alone says little: 'rank 3' keeps its word.
        inner = ["".join(name[max(head - 2, 0) : len(name) - tail]).strip("-_./ ") for name in words]
    return inner if all(inner) and len(set(inner)) == len(set(names)) else list(names)


def distinct_names(names: Sequence[str]) -> list[str]:
    """Short names; with their letters where two would read the same."""
    cut = [shorten(name) for name in names]
    return [f"{name} ({letter(i)})" if cut.count(name) > 1 else name for i, name in enumerate(cut)]


def other_oom_note(trace: Trace, device: DeviceTrace) -> str:
    """Return a note on other devices that ran out of memory; empty where none did."""
    names = others_out_of_memory(trace, device)
    if not names:
        return ""
    return f"Device{'s' if len(names) > 1 else ''} {and_list(names)} ran out of memory."
