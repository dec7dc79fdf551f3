"""JSON of `ranks --json`. Bytes are whole numbers; the rest of a cut list has a row of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memviz.ranks.card import OnCard
from memviz.ranks.numbers import Rank, mesh_of
from memviz.ranks.summary import NamedDelta, RankSummary
from memviz.trace.model import is_reserved_known

TOP_SITES = 10


def ranks_json(job: RankSummary, card: OnCard | None = None) -> dict[str, Any]:
    group_of = {number: i for i, group in enumerate(job.groups) for number in group.ranks}
    return {
        "peak": {"rank": job.highest.number, "bytes": job.highest.row.peak_bytes},
        "groups": [
            {
                "ranks": list(group.ranks),
                "peak_bytes": group.peak_bytes,
                "median_rank": group.median_rank,
                "least_bytes": group.least_bytes,
                "most_bytes": group.most_bytes,
            }
            for group in job.groups
        ],
        "outliers": [
            {
                "rank": one.rank,
                "delta_bytes": one.delta_bytes,
                "against": one.against,
                "because": _differences(one.because, "site"),
                "categories": _differences(one.categories, "category"),
            }
            for one in job.outliers
        ],
        "imbalance": {
            "bytes": job.imbalance.bytes,
            "highest": job.imbalance.highest,
            "lowest": job.imbalance.lowest,
            "categories": _differences(job.imbalance.categories, "category"),
            "sites": _differences(job.imbalance.sites, "site"),
        },
        "card": None if card is None else card_json(card),
        "failed": [{"place": one.place, "reason": one.reason} for one in job.failed],
        "missing": [{"first": first, "last": last} for first, last in job.missing],
        "ranks": [rank_json(rank, group_of[rank.number]) for rank in job.ranks],
    }


def _differences(rows: Iterable[NamedDelta], name: str) -> list[dict[str, Any]]:
    return [{name: row.name, "delta_bytes": row.delta_bytes} for row in rows]


def card_json(answer: OnCard) -> dict[str, Any]:
    return {
        "name": answer.card.name,
        "card_bytes": answer.card.total_bytes,
        "overhead_bytes": answer.card.overhead_bytes,
        "replayed": list(answer.replayed),
        "first": None if answer.first is None else {"rank": answer.first, "step": _step_number(answer)},
        "lacks_bytes": answer.lacks_bytes,
        "runs_out": list(answer.runs_out),
        "close": list(answer.close),
        "fits": list(answer.fits),
    }


def _step_number(answer: OnCard) -> int | None:
    return None if answer.first_step is None else answer.first_step.number


def rank_json(rank: Rank, group: int) -> dict[str, Any]:
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
        "start_bytes": row.start_bytes,
        "peak_bytes": row.peak_bytes,
        "peak_event": row.peak_event,
        "end_bytes": row.end_bytes,
        "reserved_peak_bytes": row.reserved_peak_bytes,
        "reserved_end_bytes": row.reserved_end_bytes,
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
                "event": one.event,
                "requested_bytes": one.requested_bytes,
                "live_bytes": one.live_bytes,
                "reserved_bytes": one.reserved_bytes,
                "site": one.site or None,
            }
            for one in row.ran_out
        ],
        "oom_count": row.ran_out_count,
        "steps": [{"step": part.number, "peak_bytes": peak} for part, peak in row.curve.highest],
    }
