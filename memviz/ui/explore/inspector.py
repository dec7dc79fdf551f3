"""The column at the side: one pinned allocation with its stack and source lines, or the moment in figures.

Source lines are read only from a Python file inside the folder that MEMVIZ_SOURCE_ROOT names, or inside those of a
trace that was opened where the page was started or that this server ran: an uploaded trace may name any path, and the
page may be open to strangers. The lines are the present ones, which may not be what ran.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from textwrap import dedent

from memviz.analysis.allocations import Allocation, BlockKnown, Span
from memviz.analysis.lifetimes import BEFORE
from memviz.analysis.peak import EventState, EventSummary
from memviz.analysis.purpose.reasons import Certainty
from memviz.text import Html, allocations, cut, exact, joined, tag, when
from memviz.trace.model import DEFAULT_POOL, NO_STACK, Phase, Trace
from memviz.trace.profile import is_profiled
from memviz.ui.html.elements import button, link
from memviz.ui.html.labels import FrameWords, frame_text, swatch
from memviz.units import bytes_text, count_text, counted, duration_text

SOURCES_SETTING = "MEMVIZ_SOURCE_ROOT"
_MOST_SOURCE_BYTES = 4 << 20
_LONGEST_LINE = 300
_NEIGHBOURS = 2
"""Lines shown before and after one."""
SourceLines = tuple[tuple[int, str], ...]
FindSource = Callable[[str, int], SourceLines]
"""From a path and a line to that line and its neighbours."""


def no_source(path: str, line: int) -> SourceLines:
    return ()


def source_lines(
    filename: str, line: int, folders: tuple[str, ...], environment: Mapping[str, str] = os.environ
) -> SourceLines:
    """Return a line and its neighbours with their numbers, if the file is in one of `folders` or the setting's."""
    inside = (_inside(filename, folder) for folder in (*folders, environment.get(SOURCES_SETTING, "")))
    path = next(filter(None, inside), None)
    if path is None or line < 1:
        return ()
    first = max(line - _NEIGHBOURS, 1)
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        text = "".join(f"{each.rstrip()[:_LONGEST_LINE]}\n" for each in islice(file, first - 1, line + _NEIGHBOURS))
        numbered = tuple(enumerate(dedent(text).split("\n")[:-1], first))
        return numbered if any(number == line for number, _ in numbered) else ()
    return ()


def _inside(filename: str, root: str) -> Path | None:
    if not root or not filename.endswith(".py") or "\0" in filename:
        return None
    with suppress(OSError, RuntimeError):
        folder = Path(root).resolve(strict=True)
        path = (folder / filename).resolve(strict=True)
        if path.is_relative_to(folder) and path.is_file() and path.stat().st_size <= _MOST_SOURCE_BYTES:
            return path
    return None


MOST_FRAMES = 400
_LONGEST_TEXT = 600
_NO_CONTEXT = ("", "N/A")
"""Values that torch writes for code that is not compiled."""


def allocation_html(trace: Trace, allocation: Allocation, source: FindSource = no_source) -> Html:
    unpin = link(joined("Unpin ", tag("kbd", "Esc")), data_mv_pin=allocation.row)
    # Seen on a narrow screen only, where this is a sheet at the bottom.
    handle = button("", None, "mv-handle", data_mv_sheet=True, aria_label="Taller or smaller")
    where, place = allocation.site, allocation.site.rpartition(" ")[0]
    if allocation.stack != NO_STACK:
        where = f"in {cut(place if ':' in place else allocation.site, 80)}"
    size = tag("b", bytes_text(allocation.requested_bytes), title=exact(allocation.requested_bytes))
    has_forward = allocation.forward_stack != NO_STACK
    alike = ""
    if allocation.alike > 1:
        words = f"{count_text(allocation.alike)} like this one"
        light = button(words, None, "mv-quiet", data_keep="", title="Same stack and size. Click to highlight them.")
        row = tag("li", light, data_light_by="like", data_light_group=str(allocation.row))
        alike = tag("ul", row, class_="mv-alike")
    return tag(
        "section",
        handle,
        tag("h2", "Pinned allocation", class_="mvt-hidden"),
        tag("div", tag("p", size, f" {where}", class_="mv-figure"), unpin, class_="mv-aside-head"),
        alike,
        _facts(_allocation_facts(allocation, is_profiled(trace))),
        stack_html(trace, allocation.stack, "Stack", source),
        stack_html(trace, allocation.forward_stack, "Where its forward was called", source) if has_forward else "",
        class_="mv-pinned",
    )


def _allocation_facts(allocation: Allocation, of_profile: bool) -> Iterable[tuple[str, object]]:
    """A profile has one size of each, and neither pools nor streams."""
    if not of_profile:
        is_rounded = not allocation.block_bytes % 512 or allocation.block_known is BlockKnown.ROUNDED
        text = "rounded to 512" if is_rounded and allocation.block_bytes != allocation.requested_bytes else ""
        if allocation.block_bytes != allocation.rounded_bytes:
            text = "with a remainder too small to split"
            text += "" if allocation.block_known is BlockKnown.RECORDED else ", as the layout around it shows"
        # Of one size alone the heading speaks.
        if allocation.requested_bytes != allocation.block_bytes:
            yield "Requested", exact(allocation.requested_bytes)
            yield "Allocated", joined(exact(allocation.block_bytes), _secondary(text))
    else:
        yield "Bytes", joined(exact(allocation.requested_bytes), _secondary("as the profiler counts them"))
    category = allocation.category.label
    probably = "probably " if allocation.certainty is Certainty.PROBABLE else ""
    yield "Category", joined(swatch(category), f" {probably}{category}", _secondary(allocation.reason))
    if allocation.operator:
        yield "Operator", tag("span", cut(allocation.operator), class_="mv-code")
    yield "Lifetime", _lifetime(allocation.span)
    if not of_profile:
        # Of a default pool its size tells which one.
        private = "" if allocation.pool == DEFAULT_POOL else "private {}, {}".format(*allocation.pool)
        if pool := " · ".join(filter(None, (private, f"stream {allocation.stream}" * bool(allocation.stream)))):
            yield "Pool", pool
    if allocation.module:
        yield "Module", tag("span", cut(allocation.module), class_="mv-code")
    if (held := allocation.held_by) is not None:
        stored = f"stored in {cut(held.place)}, " if held.place else ""
        noted = _secondary(f"{stored}{held.kind.label}, noted after event {count_text(held.event - 1)}")
        chain = cut(", ".join(filter(None, (held.chain, held.growth))), _LONGEST_TEXT)
        yield "Held by", joined(tag("span", chain, class_="mv-code"), noted)
    if allocation.phase is not Phase.UNKNOWN:
        yield "Phase", allocation.phase.name.lower()
    if allocation.metadata:
        yield "Metadata", tag("span", cut(allocation.metadata, _LONGEST_TEXT), class_="mv-code")
    if allocation.compile_context not in _NO_CONTEXT:
        yield "Compiled", tag("span", cut(allocation.compile_context, _LONGEST_TEXT), class_="mv-code")


def _lifetime(span: Span) -> Html:
    def event_link(event: int) -> Html:
        return link(count_text(event), data_mv_at=event, title="Go to this event")

    begin = event_link(span.start) if span.start > BEFORE else "before the first event"
    end = event_link(span.end) if span.end < span.never else "the end"
    text = joined("event " if span.start > BEFORE else "", begin, " → ", end)
    notes = []
    if span.microseconds is not None and span.never:
        notes.append(f"{'' if span.is_complete else 'at least '}{duration_text(span.microseconds)}")
    if BEFORE < span.free_requested < span.end - 1:
        notes.append(f"free requested at event {count_text(span.free_requested)}")
    return joined(text, _secondary(", ".join(notes)))


def stack_html(trace: Trace, stack: int, title: str, source: FindSource = no_source) -> Html:
    """Innermost first; what lies between a person's own frames is folded."""
    numbers = trace.stacks.of(stack).tolist()
    if not numbers:
        text = "No stack was recorded for it." if stack == NO_STACK else "Its stack was recorded empty."
        return tag("p", text, class_="mv-soft")
    frames = [frame_text(trace, frame) for frame in numbers[:MOST_FRAMES]]
    copied = "\n".join(cut(f"{frame.function} {frame.path}", _LONGEST_TEXT) for frame in frames)
    parts: list[Html] = []
    for is_own, run in groupby(zip(frames, numbers, strict=False), key=lambda pair: pair[0].is_own):
        if is_own:
            parts += [_own_frame(trace, frame, number, source) for frame, number in run]
            continue
        folded = []
        for frame, _ in run:
            place = tag("span", cut(frame.place, 80), class_="mv-soft")
            folded.append(tag("div", cut(frame.function, 120), " ", place, title=cut(frame.path, 300)))
        parts.append(tag("details", tag("summary", counted(len(folded), "library frame")), *folded))
    if len(numbers) > MOST_FRAMES:
        rest = f"{count_text(len(numbers) - MOST_FRAMES)} outer frames are not shown"
        parts.append(tag("div", rest, class_="mv-soft"))
    return tag("section", tag("h3", title, " ", link("Copy", data_mv_copy=copied)), *parts, class_="mv-stack")


def _own_frame(trace: Trace, words: FrameWords, frame: int, source: FindSource) -> Html:
    table = trace.stacks.frames
    place = int(table.line[frame])
    lines = [
        tag("div", f"{number} {text}", aria_current="true" if number == place else None)
        for number, text in source(trace.strings[table.filename[frame]], place)
    ]
    shown = tag("div", *lines, class_="mv-source", title="Current file on this machine") if lines else ""
    line = joined(tag("b", cut(words.function, 80)), " ", tag("span", cut(words.place, 80), class_="mv-soft"))
    return tag("div", line, shown, class_="mv-frame", title=cut(words.path, _LONGEST_TEXT))


def moment_html(moment: EventState, *, of_range: bool = False, is_still: bool = False) -> Html:
    title = when(moment.event, is_still=is_still).capitalize() + (", the range’s peak" if of_range else "")
    circumstances = [allocations(moment.count)]
    if moment.microseconds and moment.event > BEFORE:
        circumstances.append(f"{duration_text(moment.microseconds)} after the first event")
    if moment.annotation:
        circumstances.append(f"in {cut(moment.annotation, 80)}")
    rows = [_allocation_and_free(event, is_now=event.event == moment.event) for event in moment.around]
    around = tag("section", tag("h3", "Events around"), tag("ol", *rows, class_="mv-around"), class_="mv-stack")
    failed = ""
    if moment.failed is not None:
        size, free = moment.failed.requested_bytes, moment.failed.device_free_bytes
        device = " Free memory of the device is not known."
        if free is not None:
            device = f" The device had {bytes_text(free)} free for all processes."
        failed = tag("p", tag("b", f"✗ {bytes_text(size)} did not fit.", title=exact(size)), device, class_="mv-oom")
    return tag(
        "section",
        tag("div", tag("h2", title), class_="mv-aside-head"),
        failed,
        tag("p", tag("b", bytes_text(_live(moment))), " live", class_="mv-figure"),
        tag("p", ", ".join(circumstances), class_="mv-soft"),
        _facts(_moment_facts(moment)),
        around if moment.around else "",
        class_="mv-instant",
    )


def _live(moment: EventState) -> int:
    return moment.bytes.live + moment.bytes.waiting + moment.bytes.outside


def _moment_facts(moment: EventState) -> Iterable[tuple[str, object]]:
    """Reserved is the sum of the rows above it, to the byte, except for allocations that were not placed."""
    parts = moment.bytes
    yield "Live", exact(_live(moment))
    if parts.waiting:
        yield "· waiting", joined(exact(parts.waiting), _secondary("freed, but another stream may still use it"))
    if not moment.is_reserved_known:
        yield "Reserved", "not in the file"
        return
    if parts.outside:
        yield "· not placed", joined(exact(parts.outside), _secondary("in no known segment"))
    yield "Rounding", joined(exact(parts.rounding), _secondary("beyond the request"))
    yield "Cached", joined(exact(parts.cached), _secondary("reserved and free"))
    kinds = (
        ("· segments", parts.free_segments, "whole; empty_cache() returns them"),
        ("· remainders", parts.free_remainders, "of segments in use"),
        ("· pages", parts.free_pages, "of expandable segments"),
    )
    for name, size, text in kinds:
        if size:
            yield name, joined(exact(size), _secondary(text))
    if parts.unknown:
        yield "Unknown", joined(exact(parts.unknown), _secondary("beyond the known segments"))
    yield "Reserved", exact(parts.reserved)
    yield "Largest free", joined(exact(moment.largest_free), _secondary("in one piece"))


_FREES = ("free", "free_requested", "free_completed")


def _allocation_and_free(event: EventSummary, *, is_now: bool) -> Html:
    number = link(count_text(event.event), data_mv_at=event.event)
    size = bytes_text(event.bytes) if event.bytes else ""
    text = f" {event.action.replace('_', ' ')} {size} "
    # The event list shows where a freed block was allocated; this is where it was freed.
    where = f"freed in {cut(event.site, 60)}" if event.site and event.action in _FREES else cut(event.site, 60)
    return tag("li", number, text, tag("span", where, class_="mv-soft"), aria_current="true" if is_now else None)


def _facts(rows: Iterable[tuple[str, object]]) -> Html:
    return tag("dl", *(piece for name, value in rows for piece in (tag("dt", name), tag("dd", value))), class_="mv-dl")


def _secondary(text: str) -> Html:
    return joined(" ", tag("span", text, class_="mv-soft")) if text else Html("")
