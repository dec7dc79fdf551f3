"""The settings of PyTorch's allocator: what `PYTORCH_CUDA_ALLOC_CONF` says, as one frozen value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from memviz.allocator.settings_text import NEWEST, Release, parsed_values, variable_in
from memviz.errors import UsageError
from memviz.trace.rounding import LARGE_SEGMENT, SLOTS, MiB

_UNLIMITED = (-1, 2**64 - 1)
"""`max_split_size` in snapshots: the pickler of C++ casts to a signed number, the Python binding does not."""
_RESERVE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(g?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """Sizes are bytes. The defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    """Blocks of at least this are never split; None is PyTorch's "unlimited"."""
    large_segment_size: int = LARGE_SEGMENT
    max_non_split_rounding_size: int = LARGE_SEGMENT
    """By how much a block of at least `max_split_size` may exceed the request it serves."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * SLOTS
    garbage_collection_threshold: float = 0.0
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    graph_capture_record_stream_reuse: bool = False
    expandable_segments_reserve: str = ""
    """Address space per expandable segment: a fraction of the card, or GiB as in '40G'. Empty: 9/8 of the card."""
    backend: str = "native"
    others: tuple[tuple[str, str], ...] = field(default=())
    """What does not change where device memory lies (pinned memory, locks), in the order written."""

    def to_text(self) -> str:
        """What to paste into the environment; empty where everything is PyTorch's default."""
        parts = [f"{key}:{value}" for key, value in self._written() if value != ""]
        return ",".join([*parts, *(f"{key}:{value}" for key, value in self.others)])

    def to_snapshot(self) -> dict[str, Any]:
        """As a snapshot's `allocator_settings` would have it."""
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.to_text(),
            "max_split_size": -1 if self.max_split_size is None else self.max_split_size,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "roundup_power2_divisions": {
                str(1 << at): roundup_power2_division
                for at, roundup_power2_division in enumerate(self.roundup_power2_divisions)
            },
            "graph_capture_record_stream_reuse": self.graph_capture_record_stream_reuse,
        }

    def _written(self) -> list[tuple[str, str]]:
        return [
            ("backend", self.backend if self.backend != "native" else ""),
            ("expandable_segments", "True" if self.expandable_segments else ""),
            # PyTorch checks the two below against this one, whatever their order; people read from the left.
            ("large_segment_size_mb", _mib(self.large_segment_size, LARGE_SEGMENT)),
            ("max_split_size_mb", _mib(self.max_split_size, None)),
            ("max_non_split_rounding_mb", _mib(self.max_non_split_rounding_size, self.large_segment_size)),
            ("roundup_power2_divisions", _divisions_text(self.roundup_power2_divisions)),
            ("garbage_collection_threshold", _number(self.garbage_collection_threshold, 0.0)),
            ("per_process_memory_fraction", _number(self.per_process_memory_fraction, 1.0)),
            ("throw_on_cudamalloc_oom", "True" if self.throw_on_cudamalloc_oom else ""),
            ("graph_capture_record_stream_reuse", "True" if self.graph_capture_record_stream_reuse else ""),
            ("expandable_segments_reserve", self.expandable_segments_reserve),
        ]

    def reserve_bytes(self, card_bytes: int) -> int:
        """Address space of one expandable segment on a card of this size, before whole pages."""
        full = card_bytes + card_bytes // 8
        match = _RESERVE.fullmatch(self.expandable_segments_reserve)
        if not match or float(match[1]) <= 0:
            # PyTorch warns and keeps its default too, rather than stop a job for it.
            return full
        return int(min(float(match[1]) * (1 << 30 if match[2] else card_bytes), full))


def parse_settings(text: str, release: Release = NEWEST) -> Settings:
    """What PyTorch of this release reads from the text, or its own refusal as a UsageError.

    The text may carry the variable's name, as it stands in a shell.
    """
    return Settings(**parsed_values(text, release))


def settings_from_environment(environment: Mapping[str, str], release: Release = NEWEST) -> Settings:
    name = variable_in(environment, release)
    return parse_settings(environment[name], release) if name else Settings()


def settings_from_snapshot(recorded: Mapping[str, Any]) -> Settings:
    """`allocator_settings` of a snapshot: the values in force, and from the raw text what it leaves out."""
    raw = recorded.get("PYTORCH_CUDA_ALLOC_CONF")
    try:
        settings = parse_settings(raw) if type(raw) is str else Settings()
    except UsageError:
        # It ran, so the release that wrote it could read it; the values below hold without the text.
        settings = Settings()
    known = {name: value for name, value in _in_force(recorded, settings).items() if value is not None}
    if recorded.get("max_split_size") in _UNLIMITED:
        known["max_split_size"] = None
    return replace(settings, **known)


def _in_force(recorded: Mapping[str, Any], written: Settings) -> dict[str, Any]:
    size = recorded.get("max_split_size")
    threshold: Any = recorded.get("garbage_collection_threshold")
    divisions = recorded.get("roundup_power2_divisions")
    flags = ("expandable_segments", "graph_capture_record_stream_reuse")
    return {
        **{name: value for name in flags if type(value := recorded.get(name)) is bool},
        "max_split_size": size if type(size) is int and size > 0 else None,
        "garbage_collection_threshold": float(threshold) if type(threshold) in (int, float) else None,
        "roundup_power2_divisions": _divisions(divisions, written) if type(divisions) is dict else None,
    }


def _divisions(table: Mapping[Any, Any], written: Settings) -> tuple[int, ...]:
    """{'1': n, '2': n, ..., '32768': n}: keyed by the MiB at which each slot begins."""
    slots = list(written.roundup_power2_divisions)
    for number in range(SLOTS):
        value = table.get(str(1 << number))
        if type(value) is int and value >= 0:
            slots[number] = value
    return tuple(slots)


def changes_layout(one: Settings, other: Settings) -> bool:
    """Whether the two would place the same requests differently, memory being plenty."""
    names = {known.name for known in fields(Settings)} - {
        "garbage_collection_threshold",
        "per_process_memory_fraction",
        "throw_on_cudamalloc_oom",
        "others",
    }
    return any(getattr(one, name) != getattr(other, name) for name in names)


def _mib(size: int | None, default: int | None) -> str:
    return "" if size is None or size == default else str(size // MiB)


def _number(value: float, default: float) -> str:
    return "" if value == default else repr(value)


def _divisions_text(slots: tuple[int, ...]) -> str:
    if not any(slots):
        return ""
    if len(set(slots)) == 1:
        return str(slots[0])
    # Every slot by name: the shorter forms mean different things to different releases.
    return "[" + ",".join(f"{1 << number}:{value}" for number, value in enumerate(slots)) + "]"
