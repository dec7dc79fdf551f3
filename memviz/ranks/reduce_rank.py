"""One file of one rank -> a row. A worker anywhere needs only numpy and access to the file.

A recording is cut at its steps, so that the same moment of every rank is in the same column: ranks of one program take
the same steps, but not the same time, and not always the same number of events.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import IO

import numpy as np

from memviz.analysis.annotations import steps
from memviz.analysis.breakdown import purpose_totals
from memviz.analysis.cache import cached_on, drop_large
from memviz.analysis.devices import choose_device
from memviz.analysis.health import history
from memviz.analysis.lifetimes import live_rows
from memviz.analysis.peak import failed_requests, peak
from memviz.analysis.purpose.phases import phase_spans
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.timeline import peak_bytes, timeline
from memviz.errors import MemvizError, first_line
from memviz.memory import large_blocks_kept
from memviz.ranks.places import Place, file_system, is_remote, zip_member
from memviz.ranks.row import Curve, FailedFile, KindBytes, RankRanOut, RankRow, Reduced, SiteBytes, StepPart
from memviz.trace.limits import Limits
from memviz.trace.load import load_trace, load_zip_member, read_trace
from memviz.trace.memviz_labels import MESH_FACT, RANK_FACT
from memviz.trace.model import Action, DeviceTrace, Ints8, Trace
from memviz.units import whole_number

MOST_PARTS = 24
"""Limit of parts. Longer recordings keep their last ones, since the dump and any OOM come at the end."""
MOST_COLUMNS = 480
_TAIL = 0.1
"""The rest after the last step becomes a step if it has more than this share of that step's events."""
_NUMBER = re.compile(r"(\d{1,9})\D*$")


def curve(trace: Trace, device: DeviceTrace) -> Curve:
    parts = step_parts(trace, device)
    columns = MOST_COLUMNS // len(parts)
    live = np.concatenate([_peak_by_column(device, part, columns) for part in parts])
    return Curve(parts, columns, tuple(live.tolist()))


def step_parts(trace: Trace, device: DeviceTrace) -> tuple[StepPart, ...]:
    """In order; together they hold every event. Where the recording shows no steps, one part is the whole."""
    last = len(device.events) - 1
    steps_there = _noted(trace, device) or _seen(trace, device)
    if not steps_there:
        return (StepPart(0, "", -1, last),)
    first = steps_there[0]
    parts = [StepPart(first.number - 1, "", -1, first.first_event - 1)] if first.first_event > 0 else []
    for step in steps_there:
        # What lies between two steps is the later one's: no event is lost.
        parts.append(replace(step, first_event=parts[-1].last_event + 1 if parts else -1))
    end = parts[-1]
    if last - end.last_event > _TAIL * (end.last_event - end.first_event + 1):
        parts.append(StepPart(end.number + 1, "", end.last_event + 1, last))
    else:
        parts[-1] = replace(end, last_event=last)
    if len(parts) <= MOST_PARTS:
        return tuple(parts)
    # The parts before the last steps become one, so that the peak is kept.
    kept = parts[-(MOST_PARTS - 1) :]
    return (StepPart(kept[0].number - 1, "", parts[0].first_event, kept[0].first_event - 1), *kept)


def _noted(trace: Trace, device: DeviceTrace) -> list[StepPart]:
    """Return the steps that the profiler or the optimizer annotated."""
    ranges = [step for step in steps(trace, device) if step.end_event >= step.start_event]
    numbers = [int(number[1]) if (number := _NUMBER.search(step.name)) else 0 for step in ranges]
    if any(after <= before for before, after in pairwise(numbers)):
        numbers = list(range(1, len(ranges) + 1))
    rows = zip(numbers, ranges, strict=True)
    in_order = [StepPart(number, step.name, step.start_event, step.end_event) for number, step in rows]
    apart = all(before.last_event < after.first_event for before, after in pairwise(in_order))
    return in_order if apart else []


def _seen(trace: Trace, device: DeviceTrace) -> list[StepPart]:
    """Return steps inferred from the stacks of forwards, backwards and optimizer steps."""
    spans = groupby(phase_spans(trace, device).spans, key=lambda span: span.step)
    rows = [(number, list(group)) for number, group in spans]
    return [StepPart(number, f"step {number}", group[0].first, group[-1].last) for number, group in rows]


def _peak_by_column(device: DeviceTrace, part: StepPart, columns: int) -> Ints8:
    """The highest of each column; a part of fewer events than columns shows each of them several times."""
    # Row e + 1 of the timeline belongs to event e.
    begin, end = part.first_event + 1, max(part.last_event, part.first_event) + 2
    count = min(columns, end - begin)
    highest = np.maximum.reduceat(timeline(device).live[:end], begin + np.arange(count) * (end - begin) // count)
    return np.asarray(highest[np.arange(columns) * count // columns], dtype=np.int64)


MOST_SITES = 128
"""Limit of sites per rank; the rest is one sum, so that the total stays complete."""
MOST_RAN_OUT = 16
_LONGEST = 300
"""Characters of a site: it is anybody's text, and a hundred thousand rows hold some."""
_TRIES = 3
_PAUSE_SECONDS = 0.2
_PIECE = 4 << 20


@large_blocks_kept()
def reduce_rank(place: Place, device: str | None = None) -> Reduced:
    """Whatever is wrong with one file is told as its own row, and stops nobody."""
    try:
        return row_of(trace_at(place), place, device)
    except MemvizError as error:
        return FailedFile(place.address, str(error).removeprefix(f"{place.name}: "), place.etag, place.size)
    except MemoryError:
        return FailedFile(place.address, "Reading the file needs more memory than this machine has free.")


def answer_reads(*cached: Callable[[Trace, DeviceTrace], object]) -> None:
    """Run a helper process: answer each address and name with the Trace, or with the error.

    The trace carries its row, its peak, and the results that the given functions cache on it.
    """
    asks, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            address, name = pickle.load(asks)
        except EOFError:
            return
        try:
            trace = trace_at(Place(address))
            trace = replace(trace, about=replace(trace.about, source=name))
            row = row_of(trace, Place(name))
            device = choose_device(trace, row.device)
            peak_bytes(device)
            for function in cached:
                function(trace, device)
            # Larger results are computed again by who needs them.
            drop_large(trace)
            keep_row(trace, row)
            answer: Trace | MemvizError = trace
        except MemvizError as error:
            answer = error
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


def trace_at(place: Place) -> Trace:
    """Wherever it lies. A place on a network is asked a few times before it counts as gone."""
    if (inside := zip_member(place.address)) is not None:
        return load_zip_member(*inside)
    if not is_remote(place.address):
        path = Path(place.address)
        if path.exists() and not path.is_file() and not path.is_dir():
            # Whoever opens a pipe waits until somebody writes into it, which may be never.
            raise MemvizError("It is a pipe or a device, not a file.")
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise MemvizError("No permission to list the folder.")
        return load_trace(path)
    with tempfile.TemporaryFile() as file:
        size = _fetch(place, file)
        return read_trace(file, place.name, size)


def _fetch(place: Place, file: IO[bytes]) -> int:
    """Read as a whole first: a reader that goes back and forth would ask a network again and again."""
    for left in reversed(range(_TRIES)):
        try:
            return _copied(place, file)
        except FileNotFoundError:
            raise MemvizError("The file does not exist.") from None
        except MemvizError:
            raise
        except Exception as error:
            # Every file system raises errors of its own.
            if not left:
                raise MemvizError(f"It cannot be read after {_TRIES} tries ({first_line(error)}).") from None
            time.sleep(_PAUSE_SECONDS * (_TRIES - left))
    raise AssertionError("the last try returns or raises")


def _copied(place: Place, file: IO[bytes]) -> int:
    most = Limits.from_environment().file_bytes
    system, path = file_system(place.address)
    file.seek(0)
    file.truncate()
    with system.open(path, "rb") as source:
        while piece := source.read(_PIECE):
            file.write(piece)
            if file.tell() > most:
                raise MemvizError(f"It has more than the {most:,} bytes allowed here.")
    size = file.tell()
    file.seek(0, io.SEEK_SET)
    return size


def row_of(trace: Trace, place: Place, device: str | None = None) -> RankRow:
    chosen = choose_device(trace, device)
    line = timeline(chosen)
    live_sites = peak(trace, chosen, "site", top=MOST_SITES).live
    kept = (SiteBytes(group.key[-_LONGEST:], group.label[-_LONGEST:], group.bytes) for group in live_sites.groups)
    failed = failed_requests(trace, chosen, slice(-MOST_RAN_OUT, None))
    return RankRow(
        place=place.address,
        etag=place.etag,
        file_bytes=place.size,
        said_rank=whole_number(trace.about.facts.get(RANK_FACT, "")),
        said_mesh=trace.about.facts.get(MESH_FACT, "")[:_LONGEST],
        origin=trace.about.label,
        device=chosen.name,
        device_count=len(trace.devices),
        event_count=len(chosen.events),
        history=history(chosen),
        start_bytes=line.start_bytes,
        peak_bytes=line.peak_bytes,
        peak_event=line.peak_event,
        end_bytes=line.end_bytes,
        reserved_peak_bytes=line.reserved_peak_bytes,
        reserved_end_bytes=int(line.reserved[-1]),
        categories=_categories(trace, chosen),
        sites=tuple(kept),
        other_sites_bytes=live_sites.rest_bytes,
        ran_out=tuple(
            RankRanOut(one.event, one.requested_bytes, one.live_bytes, one.reserved_bytes, one.site[-_LONGEST:])
            for one in failed
        ),
        ran_out_count=int((chosen.events.action == Action.OOM).sum()),
        curve=curve(trace, chosen),
    )


def keep_row(trace: Trace, row: RankRow) -> None:
    cached_on(trace, ("rank's row", row.device), lambda: row)


def kept_row(trace: Trace, device: str) -> RankRow:
    """The row of a trace that is open, made once."""
    return cached_on(trace, ("rank's row", device), lambda: row_of(trace, Place(trace.about.source), device))


def _categories(trace: Trace, device: DeviceTrace) -> tuple[KindBytes, ...]:
    probable: Counter[str] = Counter()
    for part in purpose_totals(trace, device, live_rows(device, timeline(device).peak_event)):
        probable[part.kind] += part.bytes if part.certainty == Certainty.PROBABLE else 0
    groups = peak(trace, device, "category").live.groups
    return tuple(KindBytes(group.label, group.bytes, probable[group.label]) for group in groups)
