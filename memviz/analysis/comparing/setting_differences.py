"""Allocator settings that several traces do not share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memviz.trace.model import Trace


@dataclass(frozen=True)
class Setting:
    name: str
    values: tuple[str | None, ...]
    """Per trace; None where the file does not say."""

    @property
    def is_known_to_differ(self) -> bool:
        """An older file that does not say may have had the same."""
        return len(set(self.values) - {None}) > 1


def setting_differences(traces: Sequence[Trace]) -> tuple[Setting, ...]:
    flat = [dict(_flat(trace.settings)) for trace in traces]
    names = sorted({name for each in flat for name in each})
    every = (Setting(name, tuple(each.get(name) for each in flat)) for name in names)
    return tuple(each for each in every if len(set(each.values)) > 1)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
