"""What the commands print, held to the series and tables: every figure that stands in a line of words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memviz.analysis.comparing.changes import changes
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.health import health, history
from memviz.analysis.overview import overview
from memviz.analysis.peak import out_of_memory, peak
from memviz.analysis.timeline import timeline
from memviz.results.summary import trace_headline
from memviz.trace.model import DeviceTrace, Trace
from memviz.units import percent_text
from tests.results.claims import COUNT, SHARE, SIZE, check_count, check_english, check_size

_HISTORY = {"complete": "complete from", "late": "started late", "none": "none"}


def _matched(pattern: str, text: str) -> re.Match[str]:
    found = re.fullmatch(pattern, text)
    assert found, f"no law knows this line: {text!r}"
    return found


def check_summary(trace: Trace, printed: str) -> None:
    for note in (*trace.notes, *health(trace)):
        printed = printed.replace(note.text, "")
    check_english(printed)
    for device in trace.devices:
        assert str(trace_headline(overview(trace, device))) in printed, "the headline"
    blocks = re.split(r"\n(?=Device )", printed)[-len(trace.devices) :]
    for device, block in zip(trace.devices, blocks, strict=True):
        _check_block(trace, device, block.partition("\n\n")[0].rstrip("\n").split("\n"))


def _check_block(trace: Trace, device: DeviceTrace, lines: Sequence[str]) -> None:
    line = timeline(device)
    head = _matched(rf"Device (\w+): ({COUNT}) events?, history (.+)", lines[0])
    assert head[1] == device.name and head[3].startswith(_HISTORY[history(device)])
    check_count(head[2], len(device.events), "events")
    live = _matched(
        rf"  live      ({SIZE}) at the peak, (?:at event ({COUNT})|(before the first event)|which is .+)", lines[1]
    )
    check_size(live[1], line.peak_bytes, "the peak")
    if live[2]:
        check_count(live[2], line.peak_event, "the peak's event")
    else:
        assert line.peak_event < 0 and bool(live[3]) == bool(len(device.events))
    ends = _matched(rf" +({SIZE}) at the start, ({SIZE}) at the end", lines[2])
    check_size(ends[1], line.start_bytes, "the start")
    check_size(ends[2], line.end_bytes, "the end")
    reserved = _matched(rf"  reserved  (?:not known|({SIZE}) at its peak, ({SIZE}) at the end)", lines[3])
    if reserved[1] is None:
        assert line.peak_bytes > 0 == line.reserved_peak_bytes, "what is live lies in what is reserved"
    else:
        check_size(reserved[1], line.reserved_peak_bytes, "the reserved peak")
        check_size(reserved[2], int(line.reserved[-1]), "the reserved end")
    for each, said in zip(out_of_memory(trace, device), lines[4:], strict=True):
        free = rf"(?:({SIZE}) free on the device|what was free on the device is not known)"
        oom = _matched(rf"  out of memory at event ({COUNT}): ({SIZE}) asked, {free}", said)
        check_count(oom[1], each.then.event, "the failure's event")
        check_size(oom[2], each.asked_bytes, "asked")
        if each.device_free_bytes is None:
            assert oom[3] is None
        else:
            check_size(oom[3], each.device_free_bytes, "free")


def check_peak(trace: Trace, device: DeviceTrace, printed: str) -> None:
    lines, found = printed.split("\n"), peak(trace, device, "site")
    head = _matched(
        rf"Device (\w+), peak (?:after event ({COUNT})|before the first event|at the end, all that is known): "
        rf"({SIZE}) live(?:, ({SIZE}) of it waiting to be freed)?, (?:reserved not known|({SIZE}) reserved)",
        lines[0],
    )
    assert head[1] == device.name
    check_count(head[2] or "-1", found.event, "the peak's event")
    check_size(head[3], found.live_bytes, "live")
    check_size(head[4] or "0 B", found.waiting_bytes, "waiting")
    if head[5] is None:
        assert found.live_bytes > 0 == found.reserved_bytes
    else:
        check_size(head[5], found.reserved_bytes, "reserved")
    for group, row in zip(found.live.groups, lines[3:], strict=False):
        cells = _matched(rf" *({SIZE}) +({SHARE}) +({COUNT})  (.*)", row)
        check_size(cells[1], group.bytes, group.label)
        assert cells[2] == percent_text(group.bytes, found.live_bytes)
        check_count(cells[3], group.count, "blocks")
        assert cells[4] == group.label.rstrip()


def check_diff(sides: Sequence[Pair], by: str, printed: str) -> None:
    lines = printed.split("\n")[2:]
    peaks = [timeline(device).peak_bytes for _, device in sides]
    for number, (trace, device) in enumerate(sides):
        said = _matched(
            rf"(\w)  (.+?)(?:, device (\w+))?: ({SIZE}) at the peak"
            rf"(?:, (\+?{SIZE})(?: \(−?{SHARE}\))?)?; (?:reserved not known|({SIZE}) reserved at most)",
            lines[number],
        )
        assert (said[1], said[2]) == ("ABCDEFGH"[number], trace.about.source)
        assert said[3] == (device.name if len(trace.devices) > 1 else None)
        check_size(said[4], peaks[number], "the peak")
        if number:
            check_size(said[5].removeprefix("+"), peaks[number] - peaks[0], "the change")
        if said[6] is None:
            assert peaks[number] > 0 == timeline(device).reserved_peak_bytes
        else:
            check_size(said[6], timeline(device).reserved_peak_bytes, "reserved")
    _check_rows(sides, by, lines[len(sides) + 2 :])


def _check_rows(sides: Sequence[Pair], by: str, lines: Sequence[str]) -> None:
    found = changes(sides, by)
    for row, said in zip(found.rows, lines, strict=False):
        sizes = re.findall(rf"\+?{SIZE}(?=  )", said)[: 2 * len(sides) - 1]
        figures = [*row.bytes, *(row.delta(other) for other in range(1, len(sides)))]
        for words, size in zip(sizes, figures, strict=True):
            check_size(words.removeprefix("+"), size, row.thing.name)
        assert said.endswith(row.thing.name.rstrip())
