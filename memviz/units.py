"""The only place that turns bytes and seconds into words, and words into bytes."""

from __future__ import annotations

import re

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kmgtpe]?)(i?)(b?)\s*", re.IGNORECASE)


def bytes_text(count: int | float) -> str:
    """1536 -> '1.50 KiB'. Below 1 KiB the number is exact."""
    sign = "-" if count < 0 else ""
    size = abs(count)
    if size < 1024:
        return f"{sign}{int(size)} B"
    unit = 0
    while size >= 1024 and unit < len(_BINARY) - 1:
        size /= 1024
        unit += 1
    digits = 2 if size < 100 else 1
    # 1023.999 MiB must not read "1024.0 MiB".
    if round(size, digits) >= 1024 and unit < len(_BINARY) - 1:
        size, unit, digits = size / 1024, unit + 1, 2
    return f"{sign}{size:.{digits}f} {_BINARY[unit]}"


def delta_text(count: int) -> str:
    """A change always shows its direction."""
    return bytes_text(count) if count < 0 else f"+{bytes_text(count)}"


def count_text(count: int) -> str:
    return f"{count:,}"


def percent_text(part: float, whole: float) -> str:
    if not whole:
        return "0 %"
    share = 100 * part / whole
    return f"{share:.1f} %" if abs(share) < 10 else f"{share:.0f} %"


def duration_text(microseconds: int) -> str:
    """Traces count in µs; people read ms or s."""
    if microseconds < 1_000:
        return f"{microseconds} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1e3:.2f} ms"
    return f"{microseconds / 1e6:.2f} s"


def parse_bytes(text: str) -> int:
    """'24GiB', '24G', '512 MiB' and plain bytes. K, M, G mean 1024, as everywhere here."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; write for example 24GiB or 512MiB")
    number, prefix, _, _ = match.groups()
    power = " kmgtpe".index(prefix.lower()) if prefix else 0
    return int(float(number) * 1024**power)
