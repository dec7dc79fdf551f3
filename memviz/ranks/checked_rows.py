"""Rows of a table that anybody may have written: plain values, each looked at before anything is told from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from memviz.ranks.reduce_rank import MOST_SITES
from memviz.ranks.row import Curve, FailedFile, KindBytes, RankRanOut, RankRow, Reduced, SiteBytes, StepPart
from memviz.ranks.step_parts import MOST_COLUMNS, MOST_PARTS

MOST_ROWS = 16_384
_LARGEST = 1 << 60
_LONGEST = 4_096
_MOST_KINDS, _MOST_RAN_OUT, _MOST_NUMBER = 64, 16, 10**9


class NoRow(ValueError):
    """With what is wrong, in words."""


def checked_rows(values: Iterable[Any]) -> list[Reduced]:
    """What a row says of a rank must hold together, as it does where it is written. They are taken one by one.

    Raises:
        NoRow: It is no such table.
    """
    try:
        rows = [_row(row) for row in islice(values, MOST_ROWS + 1)]
    except (KeyError, TypeError, AttributeError):
        raise NoRow("its rows are not those of ranks") from None
    if len(rows) > MOST_ROWS:
        raise NoRow(f"it has more than {MOST_ROWS:,} rows")
    return rows


def _row(row: dict[str, Any]) -> Reduced:
    if row["failed"] is not None:
        return FailedFile(_text(row["place"]), _text(row["failed"]), _text(row["etag"]), _whole(row["file_bytes"]))
    made = RankRow(
        place=_text(row["place"]),
        etag=_text(row["etag"]),
        file_bytes=_whole(row["file_bytes"]),
        said_rank=None if row["said_rank"] is None else _whole(row["said_rank"], _MOST_NUMBER),
        said_mesh=_text(row["said_mesh"]),
        origin=_text(row["origin"]),
        device=_text(row["device"]),
        device_count=_whole(row["device_count"]),
        event_count=_whole(row["event_count"]),
        history=_text(row["history"]),
        start_bytes=_whole(row["start_bytes"]),
        peak_bytes=_whole(row["peak_bytes"]),
        peak_event=_whole(row["peak_event"], least=-1),
        end_bytes=_whole(row["end_bytes"]),
        reserved_peak_bytes=_whole(row["reserved_peak_bytes"]),
        reserved_end_bytes=_whole(row["reserved_end_bytes"]),
        categories=tuple(map(_category, _few(row, "categories"))),
        sites=tuple(
            SiteBytes(_text(one["key"]), _text(one["label"]), _whole(one["bytes"])) for one in _few(row, "sites")
        ),
        other_sites_bytes=_whole(row["other_sites_bytes"]),
        ran_out=tuple(map(_ran_out, _few(row, "ran_out"))),
        ran_out_count=_whole(row["ran_out_count"]),
        curve=_curve(row),
    )
    return _adding_up(made)


_MOST_OF = {"categories": _MOST_KINDS, "sites": MOST_SITES, "ran_out": _MOST_RAN_OUT, "parts": MOST_PARTS}


def _few(row: dict[str, Any], name: str) -> Sequence[dict[str, Any]]:
    values = row[name]
    if type(values) is not list or len(values) > _MOST_OF[name]:
        raise NoRow(f"a rank has more {name} than are written")
    return values


def _category(one: dict[str, Any]) -> KindBytes:
    size = _whole(one["bytes"])
    return KindBytes(_text(one["kind"]), size, _whole(one["probable_bytes"], size))


def _ran_out(one: dict[str, Any]) -> RankRanOut:
    return RankRanOut(
        event=_whole(one["event"], least=-1),
        requested_bytes=_whole(one["requested_bytes"]),
        live_bytes=_whole(one["live_bytes"]),
        reserved_bytes=_whole(one["reserved_bytes"]),
        site=_text(one["site"]),
    )


def _curve(row: dict[str, Any]) -> Curve:
    parts = tuple(
        StepPart(
            _whole(part["number"], _MOST_NUMBER, least=-1), _text(part["name"]),
            _whole(part["first_event"], least=-1), _whole(part["last_event"], least=-1),
        )
        for part in _few(row, "parts")
    )  # fmt: skip
    columns, live = _whole(row["columns"], MOST_COLUMNS), row["live"]
    if type(live) is not list or not parts or not columns or len(live) != columns * len(parts):
        raise NoRow("a rank's curve is not as long as its steps say")
    return Curve(parts, columns, tuple(map(_whole, live)))


def _adding_up(row: RankRow) -> RankRow:
    sums = (sum(one.bytes for one in row.categories), sum(one.bytes for one in row.sites) + row.other_sites_bytes)
    if any(total != row.peak_bytes for total in sums) or max(row.curve.live) != row.peak_bytes:
        raise NoRow("a rank's bytes do not add up to its peak")
    return row


def _whole(value: Any, most: int = _LARGEST, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise NoRow("a number in it is none that is written")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _LONGEST:
        raise NoRow("a text in it is none that is written")
    return value
