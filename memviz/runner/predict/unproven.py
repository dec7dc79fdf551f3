"""Which rules without a recording behind them a prediction rests on, and with how many bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from memviz.runner.predict.evidence import NO_RULE, RULES, Standing, Unproven
from memviz.trace.model import Action
from memviz.units import bytes_text

if TYPE_CHECKING:
    from memviz.runner.predict.allocation_recorder import AllocationRecorder

_LEAST_SAID = 1 << 20
"""Bytes: in words, less is not worth a reader's time."""


def unproven_of(recorder: AllocationRecorder) -> tuple[Unproven, ...]:
    """In the order of the table."""
    highest, at_peak = _by_rule(recorder)
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


def _by_rule(recorder: AllocationRecorder) -> tuple[dict[int, int], dict[int, int]]:
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


def sentence_of(unproven: Iterable[Unproven]) -> str:
    """Empty where every rule that mattered is proved."""
    parts = [words for one in unproven if (words := _words(one))]
    return f"No recording proves these rules: {'; '.join(parts)}." if parts else ""


def _words(one: Unproven) -> str:
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
    return f"{one.rule} ({one.standing}: {bytes_text(one.bytes)}, {_of_the_peak(one.bytes_at_peak)})"


def _of_the_peak(size: int) -> str:
    return f"{bytes_text(size)} of the peak" if size else "none at the peak"
