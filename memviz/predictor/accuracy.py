"""Accuracy of predictions: measured errors, bytes that rest on unproven rules, and whether a run fits a card.

The figures are data: `python -m tests.truth.held_against` writes those of recordings, and `python -m
tests.benchmarks.published` those of published tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memviz.allocator.blocks import Platform
from memviz.allocator.context import communicators_of, context_on, nccl_bytes
from memviz.allocator.recorded_requests import AllocatorCalls
from memviz.allocator.replay_result import Figures
from memviz.allocator.replayer import CardMemory, Doubt, Replayer, always_had_room
from memviz.allocator.settings import Settings
from memviz.predictor.cards import KnownCard, card_named
from memviz.predictor.expected_error import ExpectedError, Fit
from memviz.predictor.ledger import live_changes
from memviz.predictor.rules import CONVOLUTIONS, NCCL, NO_RULE, NOT_COUNTED, RULES, Standing, Unproven, families_of
from memviz.trace.model import Trace
from memviz.units import bytes_text

if TYPE_CHECKING:
    from memviz.predictor.recorder import AllocationRecorder

DATA = Path(__file__).with_name("held_against.json")
Kind = Literal["training", "inference"]
CONVOLUTIONS_GREW_BY = 1.38
"""Share of the prediction by which memory in nvidia-smi exceeded it in the worst of GPUMemNet's timm convolutional
networks, measured on an A100: 58 % of the memory was not predicted."""


@dataclass(frozen=True)
class MeasuredPeak:
    name: str
    card: str
    torch: str
    kind: Kind
    families: frozenset[str]
    live: tuple[int, int] | None
    """Measured and predicted bytes."""
    allocated: tuple[int, int] | None
    reserved: tuple[int, int] | None
    source: str = ""
    """Repository of the recording, or name of the table."""
    whole: bool = True
    """False if the prediction left out earlier steps of the program, on which reserved bytes depend."""

    @property
    def is_published(self) -> bool:
        """True for a figure in a published table, False for a recording of every allocation."""
        return self.live is None


@cache
def measured_peaks() -> tuple[MeasuredPeak, ...]:
    peaks = []
    for row in (row for part in json.loads(DATA.read_text(encoding="utf-8")).values() for row in part):
        live, allocated, reserved = (row[name] and tuple(row[name]) for name in MEASURES)
        families = frozenset(row["families"])
        source, whole = row.get("source") or row["name"].split()[0], row.get("whole", True)
        facts = row["name"], row["card"], row["torch"], row["class"], families
        peaks.append(MeasuredPeak(*facts, live, allocated, reserved, source, whole))
    return tuple(peaks)


def is_like_recorded(card: KnownCard) -> bool:
    """Return whether a recorded card of its generation has the same threads and workspaces: rules depend on these."""
    recorded = [card_named(one.card) for one in measured_peaks() if not one.is_published]
    alike = {(one.capability[0], one.threads_per_multiprocessor, one.cublas_workspace_bytes) for one in recorded}
    return (card.capability[0], card.threads_per_multiprocessor, card.cublas_workspace_bytes) in alike


def expected_error(
    operators: Iterable[str], *, trains: bool, card: KnownCard, unproven: Iterable[Unproven] = ()
) -> ExpectedError:
    """Return the expected error for these operators, from recordings, else also from published tables.

    Tables have allocated or reserved bytes; where they are needed, no other bytes are said to be closer than allocated.
    `unproven` are the rules that the prediction rests on: recordings do not cover their families, and rules that count
    nothing estimate what is missing.
    """
    unproven = tuple(unproven)
    doubted = {one.rule for one in unproven if one.standing != Standing.MISSING}
    needed = families_of(operators)
    kind: Kind = "training" if trains else "inference"
    peaks = [one for one in measured_peaks() if one.kind == kind]
    recordings = [one for one in peaks if not one.is_published and one.whole]
    missing = needed - (_covered(recordings) - {rule.family for rule in RULES if rule.name in doubted})
    tables = [one for one in peaks if one.is_published]
    published = tables if missing & _covered(tables) else []
    missing -= _covered(published)
    counted = needed & NOT_COUNTED.keys()
    # NCCL's buffers are in no peak of PyTorch's allocator.
    uncounted = [one for one in unproven if one.standing == Standing.MISSING and one.rule != NCCL]
    estimates = [one.bytes_at_most for one in uncounted] if counted else []
    sizes = [size for size in estimates if size is not None]
    in_tables = width_of(published, "allocated") or width_of(published, "reserved")
    widths = {one: _widest(width_of(recordings, one), in_tables, width_of(published, one)) for one in MEASURES}
    return ExpectedError(
        live=widths["live"],
        allocated=widths["allocated"],
        reserved=widths["reserved"],
        recordings=len(recordings),
        published=len(published),
        kind=kind,
        not_covered=tuple(sorted(missing - counted)),
        not_counted=tuple(NOT_COUNTED[family] for family in sorted(counted)),
        least_growth=CONVOLUTIONS_GREW_BY if trains and CONVOLUTIONS in counted else 0.0,
        like_card=is_like_recorded(card),
        uncounted_bytes=sum(sizes) if sizes else None,
        estimates_all=len(sizes) == len(estimates),
    )


def _covered(rows: Iterable[MeasuredPeak]) -> frozenset[str]:
    return frozenset().union(*(one.families for one in rows))


Measure = Literal["live", "allocated", "reserved"]
MEASURES: tuple[Measure, ...] = ("live", "allocated", "reserved")
COVERAGE = 0.95
"""Share of the programs of a class that the stated interval is to cover."""
LEAST_WIDTHS: dict[Measure, float] = {"live": 0.0, "allocated": 0.1, "reserved": 0.5}
"""Percent, though all whole programs here are exact: of 67 of November 2026 two were not, by 0.45 % of what they
reserved, which depends on every earlier allocation."""


def _widest(*widths: float | None) -> float | None:
    return max((width for width in widths if width is not None), default=None)


def error_of(peak: MeasuredPeak, measure: Measure) -> float | None:
    pair: tuple[int, int] | None = getattr(peak, measure)
    return None if pair is None else 100 * abs(pair[1] - pair[0]) / pair[0]


def width_of(peaks: Iterable[MeasuredPeak], measure: Measure) -> float | None:
    """Return the error in percent that one more program of the class has at most, with the probability `COVERAGE`.

    By split conformal prediction: the error of the rank that so many peaks allow, the worst of fewer than 39.
    """
    errors = sorted(error for one in peaks if (error := error_of(one, measure)) is not None)
    if not errors:
        return None
    rank = min(len(errors), ceil((len(errors) + 1) * COVERAGE))
    return round(max(errors[rank - 1], LEAST_WIDTHS[measure]), 4)


_LEAST_SHOWN = 1 << 20
"""Bytes below which a sentence leaves a rule out."""


def unproven_of(recorder: AllocationRecorder, card: int = 0) -> tuple[Unproven, ...]:
    """Return the unproven rules that a run rests on, in the order of the table."""
    highest, at_peak = _bytes_by_rule(recorder, card)
    unproven = []
    for number, rule in enumerate(RULES):
        standing = rule.standing_on(recorder.card)
        if standing is Standing.MISSING and number in recorder.missing:
            likely, most = recorder.missing[number]
            unproven.append(Unproven(rule.name, standing, rule.because, likely, 0, most))
        elif standing not in (Standing.PROVED, Standing.MISSING) and highest.get(number):
            bytes_at_peak = at_peak.get(number, 0)
            unproven.append(Unproven(rule.name, standing, rule.because, highest[number], bytes_at_peak, None))
    return tuple(unproven)


def _bytes_by_rule(recorder: AllocationRecorder, card: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return, by rule, the highest bytes at any moment, and the bytes at the peak of live bytes."""
    history, rules = recorder.ledger.cards[card].history, np.frombuffer(recorder.columns.rule, dtype=np.uint8)
    cause = np.array(history.causes(), dtype=np.int64)
    change = live_changes(np.array(history.action, dtype=np.uint8), np.array(history.size, dtype=np.int64))
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
    """Name the unproven rules; empty where every rule that mattered is proved."""
    parts = [text for one in unproven if (text := _unproven_text(one))]
    return f"Not proved by any recording: {'; '.join(parts)}." if parts else ""


def _unproven_text(one: Unproven) -> str:
    if one.rule == NCCL:
        return f"{NCCL} (estimated, outside the allocator)"
    if one.standing == Standing.MISSING:
        if one.bytes is None or one.bytes_at_most is None:
            return f"{one.rule} (not predicted)"
        if one.bytes_at_most < _LEAST_SHOWN:
            return ""
        likely = "nothing" if not one.bytes else bytes_text(one.bytes)
        return f"{one.rule} (not predicted: estimated {likely} at a time, up to {bytes_text(one.bytes_at_most)})"
    if one.bytes is None or one.bytes < _LEAST_SHOWN:
        return ""
    at_peak = f"{bytes_text(one.bytes_at_peak)} of the peak" if one.bytes_at_peak else "none at the peak"
    return f"{one.rule} ({one.standing}: {bytes_text(one.bytes)}, {at_peak})"


def fit_on(
    trace: Trace,
    card: KnownCard,
    peak_reserved_bytes: int,
    error: ExpectedError | None = None,
    *,
    platform: Platform = "linux",
    ran: Figures | None = None,
) -> Fit:
    """Replay the run's requests on the card with the memory that a process gets there.

    `peak_reserved_bytes` is what the run reserves without a limit. `ran` are the figures of a run in that memory, if
    it had room for all, which needs no replay.
    """
    replayer = Replayer(trace, trace.devices[0])
    replayer.platform = platform
    return fit_of_replay(replayer, None, card, peak_reserved_bytes, error, ran=ran)


def fit_of_replay(
    replayer: Replayer,
    settings: Settings | None,
    card: KnownCard,
    peak_reserved_bytes: int | None,
    error: ExpectedError | None,
    *,
    ran: Figures | None = None,
) -> Fit:
    """With `peak_reserved_bytes` None, a replay finds it."""
    context = context_on(card.name)
    limited = CardMemory(card.memory_bytes, context.most_bytes)
    usable = limited.usable_bytes
    had_room = ran is not None and ran.peak_reserved_bytes <= usable and always_had_room(ran)
    replayed = replace(ran, memory=usable) if ran is not None and had_room else replayer.figures(settings, limited)
    out = replayed.oom
    if peak_reserved_bytes is None:
        free = replayed if always_had_room(replayed) else replayer.figures(settings)
        peak_reserved_bytes = free.peak_reserved_bytes
    return Fit(
        usable_bytes=usable,
        fits=out is None,
        peak_reserved_bytes=replayed.peak_reserved_bytes,
        event=None if out is None else out.event,
        requested_bytes=None if out is None else out.requested_bytes,
        allocated_bytes=None if out is None else out.allocated_bytes,
        too_much_bytes=peak_reserved_bytes - usable,
        overhead_bytes=limited.overhead_bytes,
        least_overhead_bytes=context.least_bytes,
        fit=replayer.fits(settings, card.memory_bytes, doubt_on(card, error, replayer.trace), known=replayed),
    )


def doubt_on(card: KnownCard, error: ExpectedError | None, trace: Trace | None = None) -> Doubt:
    """Return the uncertainty of a prediction; memory that is not counted, NCCL's too, can only add to it."""
    context = context_on(card.name)
    nccl = 0 if trace is None else nccl_bytes(communicators_of(trace.about.facts), card.name)[1]
    if error is None:
        return Doubt(context, more_bytes=nccl)
    more_bytes = (error.uncounted_bytes or 0) + error.more_elsewhere + nccl
    return Doubt(context, error.share + error.least_growth, error.share, more_bytes)


def reserved_elsewhere(
    trace: Trace,
    calls: AllocatorCalls,
    platform: Platform,
    peak_reserved_bytes: int,
    settings: Settings | None = None,
    *,
    gpu: int = 0,
) -> dict[str, Any]:
    """Return the fields of an expected error for platforms that order segments' addresses the other way."""
    replayer = Replayer(trace, trace.devices[gpu])
    replayer.calls, is_linux = calls, platform == "linux"
    replayer.platform = "windows" if is_linux else "linux"
    change = replayer.figures(settings).peak_reserved_bytes - peak_reserved_bytes
    return {"elsewhere_bytes": change, "elsewhere": ("Windows and WSL" if is_linux else "Linux") if change else ""}
