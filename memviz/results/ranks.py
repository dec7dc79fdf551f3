"""Many ranks: the headline, and the JSON of `ranks --json`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memviz.allocator.context import OVERHEAD_BYTES, overhead_on
from memviz.allocator.replayer import CardMemory, check_room
from memviz.predictor.cards import card_named
from memviz.ranks.card import OnCard
from memviz.ranks.numbers import Rank, mesh_of
from memviz.ranks.summary import JobChanges, NamedDelta, PeakDifference, RankChange, RankSummary, highest
from memviz.results.headline import Headline, and_list, consecutive_spans, shorten
from memviz.results.result import named_fields
from memviz.trace.model import is_reserved_known
from memviz.units import bytes_text, count_text, counted, delta_text

_FEW = 4
_MOST_SPANS = 8


def ranks_headline(job: RankSummary, card: OnCard | None = None, *, is_brief: bool = False) -> Headline:
    """Return the headline; a brief one leaves out the outlier and the lowest rank."""
    highest = job.highest
    peak = f"Highest peak of {counted(len(job.ranks), 'rank')}: {bytes_text(highest.row.peak_bytes)}, on rank"
    answer = f"{peak} {highest.number}."
    if job.ran_out:
        ran_out = _rank_names([rank.number for rank in job.ran_out])
        answer = f"{ran_out[0].upper()}{ran_out[1:]} ran out of memory. {answer}"
    sentences = ["" if card is None else card_sentence(card), _group_sentence(job)]
    if not is_brief:
        sentences.append(_outlier_sentence(job))
    if (gap := job.imbalance.bytes) and not is_brief:
        sentences.append(f"The lowest peak, on rank {job.imbalance.lowest}, is {bytes_text(gap)} lower.")
    if many := len(job.failed):
        sentences.append(f"{counted(many, 'file')} {'was' if many == 1 else 'were'} skipped.")
    return Headline(answer, " ".join(filter(None, sentences)))


def _group_sentence(job: RankSummary) -> str:
    if len(job.ranks) == 1:
        return ""
    out, group = len(job.outliers), job.groups[0]
    largest, same = len(group.ranks), "the same" if group.least_bytes == group.most_bytes else "nearly the same"
    # A rank that ran out of memory reached its peak; what it needs is not known.
    need = "reached" if job.ran_out else "need"
    if len(job.groups) == 1:
        return f"All {need} {'' if job.imbalance.bytes == 0 else 'nearly '}the same."
    if out:
        rest = len(job.ranks) - out
        what = same if rest == largest else "the same as their group"
        return f"{count_text(rest)} {need} {what}, {count_text(out)} {'differs' if out == 1 else 'differ'}."
    if largest == 1:
        return f"Every rank {need}{'s' if need == 'need' else ''} a different amount."
    return f"{counted(len(job.groups), 'group')}; in the largest, {count_text(largest)} ranks {need} {same}."


def _outlier_sentence(job: RankSummary) -> str:
    if not job.outliers:
        return ""
    one = job.outliers[0]
    return f"Rank {one.rank} has {delta_text(one.delta_bytes)} over rank {one.against}{cause_words(one)}."


def cause_words(one: PeakDifference) -> str:
    """Return ', most of it activation (+2 MiB); the largest site is train.py:3 forward (+1 MiB)'."""
    category, site = one.chief_category, one.chief_site
    causes = []
    if category is not None:
        part = _share_text(category.delta_bytes, one.delta_bytes)
        causes.append(f", {part} {category.words} ({delta_text(category.delta_bytes)})")
    if site is not None:
        joint = "; the largest site is" if causes else f", {_share_text(site.delta_bytes, one.delta_bytes)} by"
        causes.append(f"{joint} {shorten(site.name)} ({delta_text(site.delta_bytes)})")
    return "".join(causes)


def _share_text(of_cause: int, total: int) -> str:
    """Other causes may offset this one."""
    if abs(of_cause) > abs(total):
        return "more than all of it"
    return "most of it" if 2 * abs(of_cause) > abs(total) else "the largest part of it"


def missing_ranks(job: RankSummary, before: str = "No file of") -> str:
    """Return 'No file of ranks 3, 8-11.', or nothing where none is missing."""
    if not job.missing:
        return ""
    noun = "rank" if sum(last - first + 1 for first, last in job.missing) == 1 else "ranks"
    return f"{before} {noun} {spans_text(job.missing)}."


def spans_text(spans: Sequence[tuple[int, int]]) -> str:
    """'3, 8-11'."""
    parts = [f"{first}" if first == last else f"{first}-{last}" for first, last in spans[:_MOST_SPANS]]
    return ", ".join([*parts, *(["..."] if len(spans) > _MOST_SPANS else [])])


def card_memory(text: str, overhead: int | None = None) -> CardMemory:
    """Return a card by name, or of any size; raise before a file is read if the overhead leaves no room on it."""
    known = card_named(text)
    if overhead is None:
        overhead = OVERHEAD_BYTES if known.is_only_memory else overhead_on(known.name)
    card = CardMemory(known.memory_bytes, overhead, known.name)
    check_room(card)
    return card


def card_sentence(answer: OnCard) -> str:
    # A card that is known by its size alone has it for a name.
    size = bytes_text(answer.card.total_bytes)
    where = f"On {answer.card.name}" if answer.card.name.endswith(size) else f"On {answer.card.name} ({size})"
    if answer.first is None:
        many = len(answer.replayed)
        by_replay = f", {counted(many, 'rank')} by replay" if many else ""
        return f"{where} all ranks fit{by_replay}."
    if not answer.runs_out:
        why = f"rank {answer.first} reserves {bytes_text(answer.lacks_bytes)} more than usable"
        if not answer.lacks_bytes:
            why = "their files do not say how much they reserve"
            if answer.cut_short:
                ran_out = f"{_rank_names(answer.cut_short)} ran out of memory in the recording"
                why = f"{ran_out}, so later needs are unknown"
        return f"{where} {_rank_names(answer.close)} may not fit: {why}."
    step = "" if answer.first_step is None else f", {answer.first_step.words}"
    rank = f"{where} rank {answer.first} runs out of memory first"
    would = f"{counted(len(answer.runs_out), 'rank')} would run out."
    if answer.first in answer.replayed:
        return f"{rank} by replay{step}; {would}"
    return f"{rank}{step}, {bytes_text(answer.lacks_bytes)} short; {would}"


def _rank_names(numbers: list[int] | tuple[int, ...]) -> str:
    """'Rank 3', 'ranks 3 and 5', '12 ranks'."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > _FEW:
        return f"{count_text(len(numbers))} ranks"
    return f"ranks {and_list(list(map(str, numbers)))}"


TOP_SITES = 10


def ranks_json(job: RankSummary, card: OnCard | None = None) -> dict[str, Any]:
    group_of = {number: i for i, group in enumerate(job.groups) for number in group.ranks}
    return {
        "headline": ranks_headline(job, card).as_json(),
        "peak": {"rank": job.highest.number, "bytes": job.highest.row.peak_bytes},
        "groups": [
            {
                "ranks": list(group.ranks),
                **named_fields(group, "peak_bytes", "median_rank", "least_bytes", "most_bytes"),
            }
            for group in job.groups
        ],
        "outliers": [
            {
                **named_fields(one, "rank", "delta_bytes", "against"),
                "because": _deltas_json(one.because, "site"),
                "categories": _deltas_json(one.categories, "category"),
            }
            for one in job.outliers
        ],
        "imbalance": {
            **named_fields(job.imbalance, "bytes", "highest", "lowest"),
            "categories": _deltas_json(job.imbalance.categories, "category"),
            "sites": _deltas_json(job.imbalance.sites, "site"),
        },
        "card": None if card is None else _card_json(card),
        "failed": [named_fields(one, "place", "reason") for one in job.failed],
        "missing": [{"first": first, "last": last} for first, last in job.missing],
        "ranks": [_rank_json(rank, group_of[rank.number]) for rank in job.ranks],
    }


def _deltas_json(rows: Iterable[NamedDelta], name: str) -> list[dict[str, Any]]:
    return [{name: row.name, "delta_bytes": row.delta_bytes} for row in rows]


def _card_json(answer: OnCard) -> dict[str, Any]:
    step = answer.first_step
    return {
        "name": answer.card.name,
        "card_bytes": answer.card.total_bytes,
        "overhead_bytes": answer.card.overhead_bytes,
        "replayed": list(answer.replayed),
        "first": None if answer.first is None else {"rank": answer.first, "step": step and step.number},
        "lacks_bytes": answer.lacks_bytes,
        "runs_out": list(answer.runs_out),
        "close": list(answer.close),
        "fits": list(answer.fits),
    }


def _rank_json(rank: Rank, group: int) -> dict[str, Any]:
    row = rank.row
    sites = row.sites[:TOP_SITES]
    return {
        "rank": rank.number,
        "place": row.place,
        "mesh": dict(mesh_of(rank)),
        "origin": row.origin,
        "device": int(row.device) if row.device.isdigit() else row.device,
        "events": row.event_count,
        "history": row.history,
        **named_fields(row, "start_bytes", "peak_bytes", "peak_event", "end_bytes"),
        **named_fields(row, "reserved_peak_bytes", "reserved_end_bytes"),
        "reserved_is_known": is_reserved_known(row.peak_bytes, row.reserved_peak_bytes),
        "group": group,
        "categories": [
            {"category": part.kind, "bytes": part.bytes, "probable_bytes": part.probable_bytes}
            for part in row.categories
        ],
        "sites": [{"site": site.label, "bytes": site.bytes} for site in sites],
        "other_sites_bytes": row.peak_bytes - sum(site.bytes for site in sites),
        "oom": [
            {
                **named_fields(one, "event", "requested_bytes", "live_bytes", "reserved_bytes"),
                "site": one.site or None,
            }
            for one in row.ran_out
        ],
        "oom_count": row.ran_out_count,
        "steps": [{"step": part.number, "peak_bytes": peak} for part, peak in row.curve.peaks],
    }


def jobs_headline(changes: JobChanges, names: Sequence[str]) -> Headline:
    """`names` of the two jobs, the baseline first."""
    tops = [highest(rank for rank in job.ranks if rank.number in changes.total.ranks) for job in changes.jobs]
    before, after = (rank.row.peak_bytes for rank in tops)
    where = f"rank {tops[1].number}" + (f", before rank {tops[0].number}" if tops[0].number != tops[1].number else "")
    answer = f"Both jobs peak at {bytes_text(after)} at most ({where})."
    if before != after:
        how = f"{bytes_text(abs(after - before))} {'higher' if after > before else 'lower'}"
        answer = f"{names[1]} peaks {how} than {names[0]}: {bytes_text(after)} at most ({where})."
    up, down = (sum(sign * change.delta_bytes > 0 for change in changes.ranks) for sign in (1, -1))
    same = len(changes.ranks) - up - down
    parts = [(up, "higher"), (down, "lower"), (same, "the same")]
    counts = ", ".join(f"{count_text(many)} {how}" for many, how in parts if many)
    sentences = [f"Of {counted(len(changes.ranks), 'rank')} in both: {counts}."]
    if delta := changes.total.delta_bytes:
        sentences.append(f"Together they hold {delta_text(delta)}{cause_words(changes.total)}.")
    if changes.ran_out():
        ran_out = _rank_names(changes.ran_out())
        sentences.append(f"In {names[1]} {ran_out} ran out of memory; peaks exclude the request that failed.")
    for side, name in enumerate(names):
        if alone := changes.alone(side):
            sentences.append(f"Only in {name}: {ranks_text(alone)}.")
        if many := len(changes.jobs[side].failed):
            sentences.append(f"{counted(many, 'file')} of {name} {'was' if many == 1 else 'were'} skipped.")
    return Headline(answer, " ".join(sentences))


def ranks_text(numbers: Sequence[int]) -> str:
    """Return 'rank 3', or 'ranks 0-2, 5'."""
    return f"rank{'' if len(numbers) == 1 else 's'} {spans_text(consecutive_spans(numbers))}"


def jobs_json(changes: JobChanges, names: Sequence[str], by: str, top: int | None) -> dict[str, Any]:
    """`by` is "site" or "category"."""
    sides = [
        {
            "job": name,
            "ranks": len(job.ranks),
            "total_bytes": total,
            "highest": {"rank": job.highest.number, "bytes": job.highest.row.peak_bytes},
            "alone": list(changes.alone(side)),
            "ran_out": [rank.number for rank in job.ran_out],
            "failed": [named_fields(one, "place", "reason") for one in job.failed],
        }
        for side, (name, job, total) in enumerate(zip(names, changes.jobs, changes.total.peaks, strict=True))
    ]
    return {
        "headline": jobs_headline(changes, names).as_json(),
        "a": sides[0],
        "b": sides[1],
        "by": by,
        **_change_json(changes.total, by, top),
        "groups": [{"ranks": list(one.ranks), **_change_json(one, by, top)} for one in changes.groups],
        "ranks": [{"rank": one.ranks[0], **_change_json(one, by, top)} for one in changes.ranks],
    }


def _change_json(change: RankChange, by: str, top: int | None) -> dict[str, Any]:
    rows, rest = change.rows(by, top)
    return {
        "a_bytes": change.peaks[0],
        "b_bytes": change.peaks[1],
        "delta_bytes": change.delta_bytes,
        "rows": _deltas_json(rows, by),
        "rest_bytes": rest,
    }
