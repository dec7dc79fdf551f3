"""Which rules without a recording behind them a prediction rests on, and with how many bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from memviz.runner.predict.evidence import CONVOLUTIONS, NO_RULE, RULES, SORTS, Standing, Unproven
from memviz.trace.model import Action
from memviz.units import bytes_text

if TYPE_CHECKING:
    from memviz.runner.predict.allocation_recorder import AllocationRecorder

_INDEX = 8
_LEAST_SAID = 1 << 20
"""Bytes: in words, less is not worth a reader's time."""


def unproven_of(recorder: AllocationRecorder) -> tuple[Unproven, ...]:
    """In the order of the table."""
    highest, at_peak = _by_rule(recorder)
    found = []
    for number, rule in enumerate(RULES):
        standing = rule.standing_on(recorder.card)
        if standing is Standing.MISSING and number in recorder.missing:
            likely, most = recorder.missing[number]
            found.append(Unproven(rule.name, standing, rule.because, likely, 0, most))
        elif standing not in (Standing.PROVED, Standing.MISSING) and highest.get(number):
            held = at_peak.get(number, 0)
            found.append(Unproven(rule.name, standing, rule.because, highest[number], held, None))
    return tuple(found)


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


def likely_and_most(rule: str, args: Any, out: Any) -> tuple[int | None, int | None]:
    """Bytes of one call of what is not predicted, beside its results: a likely figure, and an upper one."""
    if rule == CONVOLUTIONS:
        return _convolution(args, out)
    if rule == SORTS and isinstance(args[0], Tensor):
        copies = args[0].numel() * (args[0].element_size() + _INDEX)
        return copies, 2 * copies
    return None, None


def _convolution(args: Any, out: Any) -> tuple[int, int]:
    """Tensor cores read channels last: what lies otherwise is copied. At most the input is unfolded besides."""
    tensors = [tensor for tensor in args[:3] if isinstance(tensor, Tensor) and tensor.dim() > 2]
    large = [tensor for tensor in (*tensors, *_tensors(out)) if tensor.dim() > 2]
    if len(tensors) < 2:
        return 0, 0
    backward = len(tensors) == 3
    weight = tensors[-1]
    likely = 0 if _lies_channels_last(tensors[0]) else sum(map(_bytes, large))
    images = tensors[:2] if backward else [tensors[0], *_tensors(out)]
    places = max(image.numel() // max(image.size(1), 1) for image in images)
    channels = max(image.size(1) for image in images)
    window = weight[0, 0].numel()
    unfolded = places * channels * window * weight.element_size() if window > 1 else 0
    return likely, likely + unfolded


def _lies_channels_last(tensor: Tensor) -> bool:
    return tensor.stride(1) == 1 and not tensor.is_contiguous()


def _tensors(out: Any) -> list[Tensor]:
    items: Iterable[Any] = out if isinstance(out, tuple | list) else (out,)
    return [item for item in items if isinstance(item, Tensor)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


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
        return f"{one.rule} (not predicted: likely {likely} at a time, at most {bytes_text(one.bytes_at_most)})"
    if one.bytes is None or one.bytes < _LEAST_SAID:
        return ""
    return f"{one.rule} ({one.standing}: {bytes_text(one.bytes)}, {_of_the_peak(one.bytes_at_peak)})"


def _of_the_peak(size: int) -> str:
    return f"{bytes_text(size)} of the peak" if size else "none at the peak"
