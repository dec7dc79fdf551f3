"""What a test is allowed, and what is said where it takes more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memviz.analysis.peak import peak
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.headlines.headline import escape_control_chars
from memviz.trace.model import DeviceTrace, Trace
from memviz.units import bytes_text, parse_bytes, percent_text

MOST_SITES = 5


@dataclass(frozen=True)
class MemoryLimit:
    bytes: int | None = None
    """None where only the card limits the test."""
    card: str | None = None
    """The one that is pretended, by a part of its name; None for one without an end."""
    settings: str | None = None
    """As in PYTORCH_CUDA_ALLOC_CONF."""
    assume: Mapping[str, Any] | None = None
    """Answers where the test asks for values that nobody computes, by line."""


def limit_of(
    limit: int | str | None = None,
    *,
    card: str | None = None,
    settings: str | None = None,
    assume: Mapping[str, Any] | None = None,
) -> MemoryLimit:
    """As `@pytest.mark.limit_gpu_memory` has it."""
    try:
        size = parse_bytes(limit) if isinstance(limit, str) else limit
    except ValueError as error:
        raise UsageError(f"limit_gpu_memory: {error}.") from None
    if size is not None and size < 0:
        raise UsageError(f"limit_gpu_memory: {limit} is less than nothing.")
    return MemoryLimit(size, card, settings, assume)


@dataclass(frozen=True)
class Used:
    """Live bytes, as `summary` has them."""

    peak_bytes: int
    """At most, over what was there when the test began."""
    before_bytes: int
    reserved_bytes: int
    allocations: int


def used(device: DeviceTrace) -> Used:
    line = timeline(device)
    return Used(line.peak_bytes - line.start_bytes, line.start_bytes, line.reserved_peak_bytes, len(device.events))


def over_limit(trace: Trace, device: DeviceTrace, limit: int) -> str:
    """Empty where the test keeps to it."""
    took = used(device)
    if took.peak_bytes <= limit:
        return ""
    more, where = bytes_text(took.peak_bytes - limit), f" ({trace.about.label})" if trace.about.on else ""
    head = (
        f"The test held {bytes_text(took.peak_bytes)} of GPU memory at its peak, {more} more than its limit of "
        f"{bytes_text(limit)}{where}."
    )
    return f"{head}\n{largest_sites(trace, device)}"


def largest_sites(trace: Trace, device: DeviceTrace) -> str:
    """Lines that add up to what was live at the peak."""
    live = peak(trace, device, "site", top=MOST_SITES)
    rows = [(group.bytes, group.label) for group in live.live.groups]
    if live.live.rest_count:
        rows.append((live.live.rest_bytes, "all others"))
    sizes = [(bytes_text(size), percent_text(size, live.live_bytes), label) for size, label in rows]
    return "\n".join(f"{size:>10}  {share:>5}  {escape_control_chars(label, keep='')}" for size, share, label in sizes)
