"""Accuracy of predictions: errors measured on recordings and published peaks, and bytes that rest on unproven rules.

The figures are data: `python -m tests.truth.held_against` writes those of recordings, and `python -m
tests.benchmarks.published` those of published tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from memviz.runner.expected_error import ExpectedError
from memviz.runner.predict.cards import KnownCard, card_named
from memviz.runner.predict.evidence import (
    CONVOLUTIONS,
    NCCL,
    NO_RULE,
    NOT_COUNTED,
    RULES,
    Standing,
    Unproven,
    families_of,
)
from memviz.trace.model import Action
from memviz.units import bytes_text

if TYPE_CHECKING:
    from memviz.runner.predict.allocation_recorder import AllocationRecorder

DATA = Path(__file__).with_name("held_against.json")
Kind = Literal["training", "inference"]
CONVOLUTIONS_GREW_BY = 1.38
"""GPUMemNet's runs of convolutional networks of timm, measured elsewhere on an A100: of the worst, 58 % of what
nvidia-smi showed was not predicted, so that it came out higher by this share of the prediction."""


@dataclass(frozen=True)
class MeasuredPeak:
    """A peak that somebody measured, and what is predicted of it."""

    name: str
    card: str
    torch: str
    kind: Kind
    families: frozenset[str]
    live: tuple[int, int] | None
    """Measured and predicted bytes."""
    allocated: tuple[int, int] | None
    reserved: tuple[int, int] | None

    @property
    def is_published(self) -> bool:
        """A figure in a table, and not a recording of every allocation."""
        return self.live is None


@cache
def measured_peaks() -> tuple[MeasuredPeak, ...]:
    return tuple(
        MeasuredPeak(
            name=row["name"],
            card=row["card"],
            torch=row["torch"],
            kind=row["class"],
            families=frozenset(row["families"]),
            live=_pair(row["live"]),
            allocated=_pair(row["allocated"]),
            reserved=_pair(row["reserved"]),
        )
        for part in json.loads(DATA.read_text(encoding="utf-8")).values()
        for row in part
    )


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])


def is_recorded(card: KnownCard) -> bool:
    """Return whether any recorded card has the same threads and workspaces, the rules' only inputs besides its size."""
    return _rule_inputs(card) in {
        _rule_inputs(card_named(one.card)) for one in measured_peaks() if not one.is_published
    }


def _rule_inputs(card: KnownCard) -> tuple[int, int]:
    return card.threads_per_multiprocessor, card.cublas_workspace_bytes


def expected_error(
    operators: Iterable[str], *, trains: bool, card: KnownCard, unproven: Iterable[Unproven] = ()
) -> ExpectedError:
    """Expected error with these operators: by recordings alone where they have all that matters, else tables too.

    `unproven` are the rules that the prediction rests on: those that count nothing say how much is missing.
    """
    needed = families_of(operators)
    kind: Kind = "training" if trains else "inference"
    ours = [one for one in measured_peaks() if one.kind == kind]
    recordings = [one for one in ours if not one.is_published]
    missing = needed - _covered(recordings)
    published = [one for one in ours if one.is_published and one.families & missing] if missing else []
    used = [*recordings, *published]
    missing -= _covered(published)
    counted = needed & NOT_COUNTED.keys()
    estimates = _estimates(unproven) if counted else []
    sizes = [size for size in estimates if size is not None]
    return ExpectedError(
        live=_worst(one.live for one in used),
        allocated=_worst(one.allocated for one in used),
        reserved=_worst(one.reserved for one in used),
        recordings=len(recordings),
        published=len(published),
        kind=kind,
        not_covered=tuple(sorted(missing - counted)),
        not_counted=tuple(NOT_COUNTED[family] for family in sorted(counted)),
        least_growth=CONVOLUTIONS_GREW_BY if CONVOLUTIONS in counted else 0.0,
        like_card=is_recorded(card),
        uncounted_bytes=sum(sizes) if sizes else None,
        estimates_all=len(sizes) == len(estimates),
    )


def _estimates(unproven: Iterable[Unproven]) -> list[int | None]:
    """Bytes at most of each rule that counts nothing; NCCL's buffers are in no peak of PyTorch's allocator."""
    return [one.bytes_at_most for one in unproven if one.standing == Standing.MISSING and one.rule != NCCL]


def _covered(rows: Iterable[MeasuredPeak]) -> frozenset[str]:
    return frozenset().union(*(one.families for one in rows))


def _worst(pairs: Iterable[tuple[int, int] | None]) -> float | None:
    """In percent, of what was measured."""
    errors = [100 * abs(predicted - measured) / measured for measured, predicted in filter(None, pairs)]
    return round(max(errors), 4) if errors else None


_LEAST_SAID = 1 << 20
"""Bytes: in words, less is not worth a reader's time."""


def unproven_of(recorder: AllocationRecorder) -> tuple[Unproven, ...]:
    """In the order of the table."""
    highest, at_peak = _bytes_by_rule(recorder)
    unproven = []
    for number, rule in enumerate(RULES):
        standing = rule.standing_on(recorder.card)
        if standing is Standing.MISSING and number in recorder.missing:
            likely, most = recorder.missing[number]
            unproven.append(Unproven(rule.name, standing, rule.because, likely, 0, most))
        elif standing not in (Standing.PROVED, Standing.MISSING) and highest.get(number):
            held = at_peak.get(number, 0)
            unproven.append(Unproven(rule.name, standing, rule.because, highest[number], held, None))
    return tuple(unproven)


def _bytes_by_rule(recorder: AllocationRecorder) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes at once at most, and at the moment of the highest live bytes."""
    history, rules = recorder.ledger.history, np.frombuffer(recorder.columns.rule, dtype=np.uint8)
    action, size = np.array(history.action, dtype=np.uint8), np.array(history.size, dtype=np.int64)
    cause = np.array(history.causes(), dtype=np.int64)
    change = np.where(action == Action.ALLOC, size, 0) - np.where(action == Action.FREE_COMPLETED, size, 0)
    if not len(change) or not len(rules):
        return {}, {}
    top = int(np.cumsum(change).argmax())
    number = np.where(cause >= 0, rules[np.maximum(cause, 0)], NO_RULE)
    highest, at_peak = {}, {}
    for rule in set(number.tolist()) - {NO_RULE}:
        level = np.cumsum(np.where(number == rule, change, 0))
        highest[rule], at_peak[rule] = int(level.max()), int(level[top])
    return highest, at_peak


def unproven_sentence(unproven: Iterable[Unproven]) -> str:
    """Empty where every rule that mattered is proved."""
    parts = [words for one in unproven if (words := _unproven_text(one))]
    return f"No recording proves these rules: {'; '.join(parts)}." if parts else ""


def _unproven_text(one: Unproven) -> str:
    if one.standing == Standing.MISSING:
        if one.bytes is None or one.bytes_at_most is None:
            return f"{one.rule} (not predicted)"
        if one.bytes_at_most < _LEAST_SAID:
            return ""
        likely = "nothing" if not one.bytes else bytes_text(one.bytes)
        return (
            f"{one.rule} (not predicted: likely {likely} at a time, up to {bytes_text(one.bytes_at_most)} by estimate)"
        )
    if one.bytes is None or one.bytes < _LEAST_SAID:
        return ""
    return f"{one.rule} ({one.standing}: {bytes_text(one.bytes)}, {_peak_text(one.bytes_at_peak)})"


def _peak_text(size: int) -> str:
    return f"{bytes_text(size)} of the peak" if size else "none at the peak"
