"""The only place that turns bytes and seconds into words, and words into bytes."""

from __future__ import annotations

import math
import re

_KIB, _MIB, _GIB, _TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_TEN = 10
_MINUS = "−"
"""Beside a hyphen, a plus looks like more. Programs read whole numbers, never these words."""
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kmgtpe]?)(i?)(b?)\s*", re.IGNORECASE)


def bytes_text(count: int | float) -> str:
    """Three digits: '38.1 MiB', '1,150 MiB'. MiB go up to 10 GiB, so that neighbours do not hide in a '1 GiB'."""
    size = abs(count)
    sign = _MINUS if count < 0 else ""
    if size < _KIB:
        return f"{sign}{int(size)} B"
    for unit, name in ((_TIB, "TiB"), (_GIB, "GiB")):
        if size >= _TEN * unit:
            return f"{sign}{size / unit:,.2f} {name}"
    # 1023.9 KiB must not read '1,024 KiB'.
    if size < _MIB and round(size / _KIB) < 1024:
        return f"{sign}{_three_digits(size / _KIB)} KiB"
    return f"{sign}{_three_digits(max(size / _MIB, 1))} MiB"


def bytes_texts(*counts: int) -> list[str]:
    """Sizes that a sentence compares, in the unit of the largest if none is less than 1: '6.60 GiB', '11.57 GiB'."""
    sizes = [abs(count) for count in counts if count] or [0]
    for unit, name in ((_TIB, "TiB"), (_GIB, "GiB")):
        if max(sizes) >= _TEN * unit and min(sizes) >= unit:
            return [f"{count / unit:,.2f} {name}".replace("-", _MINUS) for count in counts]
    return [bytes_text(count) for count in counts]


def _three_digits(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f}"


def unit_text(unit: int) -> str:
    """The name of a power of 1024."""
    return ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")[unit.bit_length() // 10]


def delta_text(count: int) -> str:
    """A change always shows its direction."""
    return bytes_text(count) if count < 0 else f"+{bytes_text(count)}"


def count_text(count: int) -> str:
    return f"{count:,}".replace("-", _MINUS)


def counted(count: int, noun: str) -> str:
    """'1 rank', '2,000 ranks'."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def percent_text(part: float, whole: float) -> str:
    if not whole or not part:
        return "0 %"
    share = 100 * part / whole
    if abs(share) < 0.05:
        # Next to nothing is not nothing. Its direction stands beside it, in the bytes.
        return "under 0.1 %"
    if 99.5 <= abs(share) < 100:
        # Nearly all is not all.
        text = f"{math.copysign(min(abs(share), 99.9), share):.1f} %"
    else:
        text = f"{share:.1f} %" if abs(share) < 10 else f"{share:,.0f} %"
    return text.replace("-", _MINUS)


def duration_text(microseconds: int) -> str:
    """Traces count in µs; people read ms or s."""
    if microseconds < 1_000:
        return f"{microseconds} µs"
    # 999.9 ms must not read '1,000 ms'.
    if microseconds < 999_500:
        return f"{_three_digits(microseconds / 1e3)} ms"
    return f"{microseconds / 1e6:,.2f} s"


def work_text(operations: int) -> str:
    """'76.5 TFLOP', and what is less than one in a smaller unit: it is not '0.0 TFLOP'."""
    if operations >= 1e12:
        return f"{operations / 1e12:,.1f} TFLOP"
    if operations >= 1e9:
        return f"{operations / 1e9:,.1f} GFLOP"
    return f"{operations / 1e6:,.1f} MFLOP"


_MOST_BYTES = 1 << 62
"""Sums of several still fit 64 bits."""


def limit_bytes(limit: tuple[float, str], whole: int) -> float:
    """Return a limit in bytes; one of the kind "share" is a part of `whole`."""
    amount, kind = limit
    return amount * whole if kind == "share" else amount


def parse_bytes(text: str) -> int:
    """'24GiB', '24G', '512 MiB' and plain bytes. K, M, G mean 1024, as everywhere here."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; write for example 24GiB or 512MiB")
    number, prefix, _, _ = match.groups()
    power = " kmgtpe".index(prefix.lower()) if prefix else 0
    size = float(number) * 1024**power
    if size > _MOST_BYTES:
        raise ValueError(f"{text[:40]!r} is more than any memory: the most is 4EiB")
    return int(size)


_SECONDS = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(s|m|min|h)?\s*", re.IGNORECASE)
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}
_MOST_SECONDS = 1e9


def parse_seconds(text: str) -> float:
    """'90', '90s', '10m' and '2h', more than 0."""
    match = _SECONDS.fullmatch(text)
    seconds = float(match[1]) * _UNIT_SECONDS[(match[2] or "s").lower()] if match else 0.0
    if not 0 < seconds <= _MOST_SECONDS:
        raise ValueError(f"{text!r} is not a time; write for example 90s, 10m or 2h")
    return seconds


def kind_text(value: object) -> str:
    """ "an int", "a dict": what was found where something else belongs."""
    name = (value if isinstance(value, type) else type(value)).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def whole_number(text: str, digits: int = 9) -> int | None:
    """Return the number that a text of unknown origin is; None where it is none, or has more digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None
