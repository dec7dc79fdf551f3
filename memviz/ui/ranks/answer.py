"""The ranks that the tab shows (given with the page, of a table, or of open traces) and the data of their map."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memviz.errors import UsageError
from memviz.ranks.numbers import Rank, by_mesh, once_more, rank_in_name, rank_label
from memviz.ranks.reduce_rank import kept_row
from memviz.ranks.row import FailedFile
from memviz.ranks.summary import NOTHING, JobChanges, RankSummary, aligned, job_changes, summary_of
from memviz.results.headline import differing_names, distinct_names, trace_name
from memviz.trace.memviz_labels import RANK_FACT
from memviz.ui.shell.session import Context, Opened, Session, timeline_key
from memviz.units import whole_number

LEAST = 2
"""One rank has none to compare with."""


@dataclass(frozen=True)
class ShownRanks:
    job: RankSummary
    keys: Mapping[int, str] = field(default_factory=dict)
    """Keys, in the store, of the ranks that are open."""
    is_given: bool = False
    """True for ranks given at startup: any rank's file may then be opened from its path."""
    is_open: bool = False
    """They are what this visitor has open, and no more."""
    names: tuple[str, ...] = ()
    """Names of the open jobs, if there are several."""
    number: int = 0
    """The place of this job among them."""
    given: Mapping[int, str] = field(default_factory=dict)
    """Names that the visitor gave to open ranks."""


def open_ranks(context: Context, session: Session, job: int = 0) -> dict[int, Opened]:
    """Return open ranks of a job by number; of duplicates the one that a folder would take. Computes nothing."""
    return {one.number: one.opened for one in reversed(_open_jobs(context, session)[job])}


@dataclass(frozen=True)
class _NumberedTrace:
    number: int
    source: str
    opened: Opened


def _open_jobs(context: Context, session: Session) -> list[list[_NumberedTrace]]:
    """Return the open ranks of each job, the shortest names first, as where files are read from a folder.

    Files of one job are named alike; a rank that comes again under the same name begins the next job.
    """
    found = []
    for opened in session.opened:
        if (trace := context.store.get(opened.key)) is not None:
            said = whole_number(trace.about.facts.get(RANK_FACT, ""))
            if (number := rank_in_name(trace.about.source) if said is None else said) is not None:
                found.append(_NumberedTrace(number, trace.about.source, opened))
    jobs: list[list[_NumberedTrace]] = []
    newest: dict[str, tuple[list[_NumberedTrace], set[int]]] = {}
    for one in found:
        named = _job_name(one.source)
        if named not in newest or one.number in newest[named][1]:
            newest[named] = [], set()
            jobs.append(newest[named][0])
        newest[named][0].append(one)
        newest[named][1].add(one.number)
    several = [job for job in jobs if len(job) >= LEAST]
    return several if len(several) > 1 else [sorted(found, key=lambda one: len(one.source))]


def _job_name(source: str) -> str:
    return trace_name(re.sub(r"\d+", "*", source))


def has_ranks(context: Context, session: Session) -> bool:
    if context.given_ranks is not None or context.tables.get(session.table) is not None:
        return True
    return len(open_ranks(context, session)) >= LEAST


def shown_ranks(context: Context, session: Session, job: int = 0) -> ShownRanks | None:
    """`job` is the number of the job among those that are open."""
    jobs = _open_jobs(context, session)
    job = min(job, len(jobs) - 1)
    numbers = open_ranks(context, session, job)
    keys = {number: opened.key for number, opened in numbers.items()}
    given = {number: opened.name for number, opened in numbers.items() if opened.is_renamed}
    if context.given_ranks is not None:
        return ShownRanks(context.given_ranks, keys, is_given=True, given=given)
    if (brought := context.tables.get(session.table)) is not None:
        # Its rows name files of another machine, which are not opened; what is open here is.
        return ShownRanks(brought.job, keys, given=given)
    pairs = [(number, context.find(timeline_key(opened))) for number, opened in sorted(numbers.items())]
    ranks = tuple(Rank(number, kept_row(pair[0], pair[1].name)) for number, pair in pairs if pair is not None)
    if len(ranks) < LEAST:
        return None
    names = distinct_names(differing_names([_job_name(of_job[0].source) for of_job in jobs])) if jobs[1:] else []
    # Open traces are left out whose rank is already open.
    taken: dict[int, str] = {}
    duplicates = []
    for one in jobs[job]:
        if one.number in taken:
            duplicates.append(FailedFile(one.source, once_more(one.number, taken[one.number])))
        taken.setdefault(one.number, one.source)
    summary = summary_of(ranks, tuple(duplicates))
    return ShownRanks(summary, keys, is_open=True, names=tuple(names), number=job, given=given)


def compared_jobs(context: Context, session: Session, shown: ShownRanks) -> tuple[JobChanges, list[str]] | None:
    """Compare the shown job with the first, or the first with the second, and name both; None where one is open."""
    if not shown.names:
        return None
    sides = sorted({0, shown.number or 1})
    jobs = [shown if side == shown.number else shown_ranks(context, session, side) for side in sides]
    try:
        changes = job_changes(*(job.job for job in jobs if job is not None))
    except UsageError:
        return None
    return changes, [shown.names[side] for side in sides]


_SHADES = 254
"""0 is a cell of which nothing is known."""
_MOST_CELLS = 700_000
_LONGEST = 40


def rank_map_value(
    job: RankSummary, chosen: int | None = None, given: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Order rows by mesh coordinates if all ranks have them, else by number. `given` are a visitor's own names."""
    given = given or {}
    ranks = by_mesh(job.ranks)
    table, highest = aligned(ranks), max(job.highest.row.peak_bytes, 1)
    known = table.live != NOTHING
    # Rounded to the nearest, but never to the shade of "not recorded".
    shades = np.where(known, 1 + (np.maximum(table.live, 0) * _SHADES + highest // 2) // highest, 0).astype(np.uint8)
    columns = table.columns
    while shades.size > _MOST_CELLS and columns % 2 == 0:
        columns //= 2
        shades = np.maximum(shades[:, ::2], shades[:, 1::2])
    group_of = {number: i for i, group in enumerate(job.groups) for number in group.ranks}
    return {
        "ranks": [rank.number for rank in ranks],
        "names": [f"{rank.number} {rank_label(rank, given.get(rank.number))}".strip()[:_LONGEST] for rank in ranks],
        "peaks": [rank.row.peak_bytes for rank in ranks],
        "groups": [group_of[rank.number] for rank in ranks],
        "outliers": [one.rank for one in job.outliers],
        "steps": [
            name.replace("ProfilerStep#", "step ")[:_LONGEST] or (f"step {number}" if place else "before")
            for place, (number, name) in enumerate(table.steps)
        ],
        "columns": columns,
        "highest": job.highest.row.peak_bytes,
        "chosen": chosen,
        "shades": base64.b64encode(shades.tobytes()).decode("ascii"),
        "label": f"Live bytes of {len(ranks)} ranks over their steps. Arrow keys move, Enter selects a rank.",
    }
