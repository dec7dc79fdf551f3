"""The segment map at a moment: data for the browser, its figures, and a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.cache import cached_on
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.lifetimes import clock, has_times, lifetimes
from memviz.analysis.segments import Fragmentation, SegmentsAt, TileKind, fragmentation_at, segments_at
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import has_reserved, timeline
from memviz.figures.colouring import cached_colouring, pixel_palette
from memviz.figures.packed_timeline import PackedTimeline, as_sent, pack
from memviz.text import Html, exact, joined, plain, tag, when
from memviz.trace.model import DEFAULT_POOL, DeviceTrace, Ints8, Segments, Trace, address_text
from memviz.trace.profile import is_profiled
from memviz.ui.html.elements import number
from memviz.ui.html.elements import table as html_table
from memviz.units import bytes_text, count_text, counted, percent_text

MOST_ROWS = 200
"""Limit of the table's rows. The rest is one row, so that the sums stay complete."""
MOST_GROUPS = 40

_PARTS = {
    "live": "live",
    "waiting": "waiting for another stream",
    "rounding": "rounding",
    "free_remainders": "free, in segments in use",
    "free_segments": "free, whole segments",
    "free_pages": "free, mapped pages",
    "unknown": "in unknown segments",
}
_ALWAYS = ("live", "rounding", "free_remainders", "free_segments")
"""Shown at zero too, so that the row stays still while the moment moves."""


def moment_of(trace: Trace, device: DeviceTrace, request: dict[str, Any]) -> dict[str, Any]:
    """Answer a map's request {at, colour, table}."""
    wanted = request.get("at")
    event = min(max(wanted if isinstance(wanted, int) else -1, -1), len(device.events) - 1)
    moment = segments_at(trace, device, event)
    drawing = as_sent(packed_map(trace, device, moment, meaning=str(request.get("colour") or "category")))
    if not has_reserved(device):
        text = tag("p", "The file has no segments, so reserved memory is not known.", class_="mv-soft")
        return {"title": f"{when(event)} · no segments in the file", "figures": text, "table": "", **drawing}
    parts = fragmentation_at(trace, device, event)
    held = f"{bytes_text(parts.reserved)} reserved, {bytes_text(parts.cached)} free inside"
    return {
        "title": f"{when(event)} · {counted(len(moment.segments), 'segment')} · {held}",
        "figures": joined(free_space_html(moment), fragmentation_html(parts)),
        "table": table_html(trace, moment) if request.get("table") else "",
        **drawing,
    }


def free_space_html(moment: SegmentsAt) -> Html:
    """Return what an allocation could use without a new segment."""
    tiles = moment.tiles
    free = tiles.kind == TileKind.FREE
    sizes = tiles.size[free]
    largest, whole = int(sizes.max(initial=0)), np.count_nonzero(sizes == moment.segments.size[tiles.segment[free]])
    facts = (
        ("largest free piece", bytes_text(largest), exact(largest)),
        ("free pieces", count_text(len(sizes)), None),
        ("whole segments free", count_text(int(whole)), "empty_cache() returns them"),
    )
    spans = [tag("span", f"{name} ", tag("b", text), title=more) for name, text, more in facts]
    return tag("p", *spans, class_="mv-facts")


def segment_groups(trace: Trace, segments: Segments) -> tuple[list[list[str]], Ints8]:
    """Name and size of each group of interchangeable segments (one pool, one stream), and each segment's group.

    They are in one order at all moments of a trace.
    """
    keys = np.column_stack([segments.pool, segments.stream, segments.is_expandable])
    distinct, codes = np.unique(keys.reshape(-1, 3), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    sizes, counts = sum_by(codes, segments.size, len(distinct)), np.bincount(codes, minlength=len(distinct))
    names_stream = len(np.unique(distinct[:, 1])) > 1
    largest = np.sort(np.argsort(-sizes, kind="stable")[:MOST_GROUPS])
    groups = []
    for code in largest.tolist():
        how_many = counted(int(counts[code]), "mapped range" if distinct[code, 2] else "segment")
        name = _group_name(trace, distinct[code], names_stream=names_stream)
        groups.append([name, f"{how_many}, {bytes_text(int(sizes[code]))}"])
    rest = np.setdiff1d(np.arange(len(distinct)), largest)
    place = np.full(len(distinct), len(groups))
    place[largest] = np.arange(len(largest))
    if len(rest):
        name = f"{count_text(len(rest))} smaller groups of other pools and streams"
        groups.append([name, f"{counted(int(counts[rest].sum()), 'segment')}, {bytes_text(int(sizes[rest].sum()))}"])
    return groups, place[codes]


def _group_name(trace: Trace, key: Ints8, *, names_stream: bool) -> str:
    pool, stream, is_expandable = key.tolist()
    first, second = trace.pools[pool]
    text = ["default pool" if (first, second) == DEFAULT_POOL else f"private pool {first}, {second}"]
    if names_stream:
        text.append(f"stream {trace.streams[stream]}")
    if is_expandable:
        text.append("expandable")
    return " · ".join(text)


def packed_map(trace: Trace, device: DeviceTrace, moment: SegmentsAt, *, meaning: str = "category") -> PackedTimeline:
    """Segments by address, then tiles by address: a tile belongs to the segment that its place adds up to."""
    segments, tiles = moment.segments, moment.tiles
    groups, group_of = segment_groups(trace, segments)
    # The timeline's own colours, cached because scrubbing needs them at every moment.
    colours = cached_colouring(trace, device, meaning)

    def palettes() -> dict[str, list[int]]:
        return {mode: pixel_palette(colours, dark=mode == "dark").reshape(-1).tolist() for mode in ("light", "dark")}

    held = tiles.row >= 0
    row = np.where(held, tiles.row, 0)
    table = sites(trace)
    site_codes, code = np.unique(table.of_stack[lifetimes(device).stack[tiles.row[held]]], return_inverse=True)
    # Of free memory any site does.
    site = np.zeros(len(row), dtype=np.int64)
    site[held] = code
    probable = {}
    if colours.probable is not None:
        probable = {"probable": (held & _take_or_zero(colours.probable, row)).astype(np.uint8)}
    columns = {
        **_halves("segment_size", segments.size),
        **_halves("segment_address", segments.address),
        "segment_group": group_of.astype(np.uint8),
        "segment_flags": (segments.is_large + 2 * segments.is_expandable).astype(np.uint8),
        "segment_tiles": np.bincount(tiles.segment, minlength=len(segments)).astype(np.uint32),
        **_halves("size", tiles.size),
        **_halves("requested", tiles.requested),
        "kind": tiles.kind,
        "row": (tiles.row + 1).astype(np.uint32),
        "group": np.where(held, _take_or_zero(colours.group, row), 0).astype(np.uint8),
        **probable,
        "start": np.where(held, _take_or_zero(lifetimes(device).start, row) + 1, 0).astype(np.uint32),
        "site": site.astype(np.uint32),
        **_ages(device, moment),
    }
    return pack(
        columns,
        at=moment.event,
        # A profile's segments are placeholders, until a replay makes some.
        is_placed=has_reserved(device) and (trace.about.origin == "replayed" or not is_profiled(trace)),
        most_reserved=timeline(device).reserved_peak_bytes,
        groups=groups,
        sites=[plain(table.sites[number].label) for number in site_codes.tolist()],
        meanings=[plain(label) for label in colours.labels],
        palettes=cached_on(trace, (pixel_palette, device.name, colours.meaning), palettes),
    )


def _ages(device: DeviceTrace, moment: SegmentsAt) -> dict[str, npt.NDArray[Any]]:
    """Microseconds since each allocation; absent where the file has no times."""
    if not has_times(device) or moment.event < 0:
        return {}
    times, rows = clock(device), moment.tiles.row
    start = np.where(rows >= 0, _take_or_zero(lifetimes(device).start, np.maximum(rows, 0)), -1)
    return _halves("age", np.where(start >= 0, times[moment.event] - times[np.maximum(start, 0)], 0))


def _take_or_zero(values: npt.NDArray[Any], rows: Ints8) -> npt.NDArray[Any]:
    """`values[rows]`; where nothing was ever allocated any value does, but there must be one."""
    return values[rows] if len(values) else np.zeros(len(rows), dtype=np.int64)


def _halves(name: str, values: Ints8) -> dict[str, npt.NDArray[Any]]:
    """Browsers have no 64-bit integers to unpack into."""
    return {
        f"{name}_low": (values & 0xFFFFFFFF).astype(np.uint32),
        f"{name}_high": (values >> 32 & 0xFFFFFFFF).astype(np.uint32),
    }


def fragmentation_html(parts: Fragmentation) -> Html:
    """One bar and one sum: the parts add up to what is reserved, to the byte."""
    bar, terms = [], []
    for part, words in _PARTS.items():
        size, look = getattr(parts, part), f"mvs-part mvs-{part.replace('_', '-')}"
        if not size and part not in _ALWAYS:
            continue
        title = f"{words}: {exact(size)}, {percent_text(size, parts.reserved)} of reserved memory"
        if size > 0:
            bar.append(tag("i", class_=look, style=f"flex-grow:{size}", title=title))
        terms.append(tag("span", tag("i", class_=look), f"{words} ", tag("b", bytes_text(size)), title=title))
    total = tag("span", "reserved ", tag("b", bytes_text(parts.reserved)), " =", title=exact(parts.reserved))
    outside = f"{bytes_text(parts.outside)} live are in no known segment at this moment, and not in these sums."
    return joined(
        tag("div", *bar, class_="mvs-whole", aria_hidden="true"),
        tag("p", total, *terms, class_="mvs-terms"),
        tag("p", outside, class_="mv-soft") if parts.outside else "",
    )


_HEAD = ("Segment", "Pool", "Blocks", "Live", "Rounding", "Free", "Largest free", "Size")
_LARGEST = 4
"""Index of the figure that is a maximum; all others are sums."""


def table_html(trace: Trace, moment: SegmentsAt, most: int = MOST_ROWS) -> Html:
    """Return segments by size. In each row live, rounding and free add up to it; in the last, to reserved bytes."""
    segments = moment.segments
    figures = _by_segment(moment)
    groups, group_of = segment_groups(trace, segments)
    order = np.argsort(-segments.size, kind="stable")
    rows = []
    for i in order[:most].tolist():
        address = tag("td", address_text(int(segments.address[i])), class_="mv-code")
        pool = f"{groups[group_of[i]][0]}, {'large' if segments.is_large[i] else 'small'}"
        rows.append(_table_row(address, pool, figures[i]))
    rest = order[most:]
    if len(rest):
        name = f"{count_text(len(rest))} smaller segments"
        rows.append(_table_row(tag("td", name), "", _together(figures[rest])))
    total = _table_row(tag("td", f"all {count_text(len(segments))}"), "", _together(figures), to_the_byte=True)
    return html_table(((name, "mv-number" if i > 1 else None) for i, name in enumerate(_HEAD)), rows, foot=[total])


def _by_segment(moment: SegmentsAt) -> Ints8:
    """Per segment, in the table's order: blocks, live (waiting included), rounding, free, largest free piece, size."""
    tiles, count = moment.tiles, len(moment.segments)
    free = tiles.kind == TileKind.FREE
    largest = np.zeros(count, dtype=np.int64)
    np.maximum.at(largest, tiles.segment[free], tiles.size[free])
    return np.column_stack(
        [
            np.bincount(tiles.segment[~free], minlength=count),
            sum_by(tiles.segment, tiles.requested, count),
            sum_by(tiles.segment[~free], (tiles.size - tiles.requested)[~free], count),
            sum_by(tiles.segment[free], tiles.size[free], count),
            largest,
            moment.segments.size,
        ]
    )


def _together(figures: Ints8) -> Ints8:
    sums = figures.sum(axis=0)
    sums[_LARGEST] = figures[:, _LARGEST].max(initial=0)
    return np.asarray(sums, dtype=np.int64)


def _table_row(name: Html, pool: str, figures: Ints8, *, to_the_byte: bool = False) -> Html:
    blocks, *sizes = figures.tolist()
    text = exact if to_the_byte else bytes_text
    cells = [number(text(size), title=exact(size)) for size in sizes]
    return tag("tr", name, tag("td", pool), number(count_text(blocks)), *cells)


def moment_in_replay(trace: Trace, device: DeviceTrace, request: dict[str, Any]) -> dict[str, Any]:
    """Without the event: each replay counts its own, and the page names the recorded one."""
    answer = moment_of(trace, device, request)
    return {**answer, "title": answer["title"].partition(" · ")[2]}


def map_value(device: DeviceTrace, key: str, *, at: int, pin: int = -1, colour: str = "category") -> dict[str, object]:
    """Return the map's value; it requests the rest by itself."""
    return {"key": key, "events": len(device.events), "at": at, "pin": pin, "colour": colour}
