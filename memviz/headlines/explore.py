"""Headlines of a trace: its peak or how it ran out of memory, what is live at an event, and how segments are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memviz.analysis.as_json import summary
from memviz.analysis.callstacks.sites import Site
from memviz.analysis.overview import Overview, overview
from memviz.analysis.peak import FailedRequest, LiveSet
from memviz.analysis.purpose.categories import categories
from memviz.analysis.segments import SegmentsAt, TileKind
from memviz.analysis.which_device import Which
from memviz.headlines.headline import Headline, headline_json
from memviz.headlines.names import device_name, kind_name, of_device, short
from memviz.trace.model import DeviceTrace, Trace
from memviz.units import bytes_text, count_text, counted, percent_text


def explore(overview: Overview) -> Headline:
    said = _said(overview)
    return said.as_estimate(overview.limit_of_start) if overview.is_estimate else said


def _said(overview: Overview) -> Headline:
    if overview.ran_out is not None:
        return _ran_out(overview, overview.ran_out)
    if not overview.event_count:
        return _only_the_end(overview)
    made_of = ""
    if overview.most_of_it is not None:
        share = percent_text(overview.most_of_it.bytes, overview.peak_bytes)
        sure = "probably " if overview.most_of_it.is_probable else ""
        made_of = f", and {share} of it is {sure}{kind_name(overview.most_of_it.category)}"
    elif overview.largest_site:
        share = percent_text(overview.largest_site_bytes, overview.peak_bytes)
        made_of = f", and {share} of it was made by {short(overview.largest_site)}"
    answer = f"The peak{of_device(overview.device)} is {bytes_text(overview.peak_bytes)}{made_of}."
    return Headline(answer, f"{_kept(overview)}{_when(overview)}")


def _kept(overview: Overview) -> str:
    """Who keeps most of the activations, where a few places do."""
    most = overview.most_of_it
    keeps = most.kept_by if most is not None else None
    if most is None or keeps is None:
        return ""
    layers = f", in {most.layers}" if most.layers else ""
    share = percent_text(keeps.bytes, overview.peak_bytes)
    return f"{share} is kept by {_places(keeps.places)}{layers}. "


def _places(places: tuple[Site, ...]) -> str:
    """'model.py:78, :22 and loss.py:5': a file's name stands once for lines that follow one another."""
    words: list[str] = []
    before = ""
    for site in places:
        name, _, line = site.label.removesuffix(f" {site.function}").rpartition(":")
        words.append(f":{line}" if site.path == before else short(f"{name}:{line}"))
        before = site.path
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _ran_out(overview: Overview, failed: FailedRequest) -> Headline:
    who = device_name(overview.device) if overview.device.is_one_of_several else "it"
    site = f" in {failed.site}" if failed.site else ""
    times = "" if overview.failed_count == 1 else f" {counted(overview.failed_count, 'time')}, at last when"
    joint = ":" if overview.failed_count == 1 else ""
    answer = f"{who} ran out of memory{joint}{times} {bytes_text(failed.requested_bytes)} were asked for{site}."
    reason = f"{bytes_text(failed.live_bytes)} were live"
    if failed.reserved_bytes >= failed.live_bytes:
        reason += f", and {bytes_text(failed.reserved_bytes - failed.live_bytes)} reserved and not live"
    return Headline(f"{answer[0].upper()}{answer[1:]}", f"{reason}.")


def _only_the_end(overview: Overview) -> Headline:
    where = f" on {device_name(overview.device)}" if overview.device.is_one_of_several else ""
    why = "The file holds no history, only the state at its end."
    if overview.trace_has_events:
        why = "Nothing happened there while the history was recorded; this is its state at the end."
    return Headline(f"{bytes_text(overview.peak_bytes)} are live{where}.", why)


def _when(overview: Overview) -> str:
    if overview.peak_event < 0:
        return "It was there before the first event."
    step = f"in {overview.step}, " if overview.step else ""
    last = overview.event_count - 1
    if overview.peak_event == last:
        return f"It comes {step}at event {count_text(last)}, the {'last' if last else 'only one'}."
    return f"It comes {step}at event {count_text(overview.peak_event)}; the last is event {count_text(last)}."


def live_then(live: LiveSet, which: Which, event_count: int) -> Headline:
    """`event_count` is the device's: without a history the only moment is the end."""
    where = f"{_device_words(which)}{_moment_words(live.event, event_count)}"
    answer = f"{bytes_text(live.live_bytes)} are live{where}{_largest_groups(live)}."
    if live.reserved_bytes < live.live_bytes:
        # The file says less of its segments than of its tensors.
        return Headline(answer)
    return Headline(answer, f"{bytes_text(live.reserved_bytes)} are reserved then.")


def segments_then(found: SegmentsAt, which: Which, event_count: int, *, is_known: bool) -> Headline:
    """`is_known`: the recording tells what was reserved."""
    reserved, segments = found.reserved_bytes, counted(len(found.segments), "segment")
    where = f"{_device_words(which)}{_moment_words(found.event, event_count)}"
    if not is_known:
        return Headline(f"What is reserved{where} is not in the file.")
    if not reserved:
        return Headline(f"Nothing is reserved{where}.")
    free = int(found.tiles.size[found.tiles.kind == TileKind.FREE].sum())
    share = f"{bytes_text(free)} ({percent_text(free, reserved)})"
    return Headline(
        f"{bytes_text(reserved)} are reserved in {segments}{where}.",
        f"Blocks take {bytes_text(reserved - free)} of it, and {share} is free.",
    )


def _device_words(which: Which) -> str:
    return f" on {device_name(which)}" if which.is_one_of_several else ""


def _moment_words(event: int, event_count: int) -> str:
    if not event_count:
        return " at the end"
    return f" after event {count_text(event)}" if event >= 0 else " before the first event"


def _largest_groups(live: LiveSet) -> str:
    """The largest group, as far as its name says something."""
    if not live.live.groups:
        return ""
    first = live.live.groups[0]
    name = kind_name(first.label) if live.live.by == "category" else first.label
    return f", {percent_text(first.bytes, live.live_bytes)} of it {_JOINTS.get(live.live.by, 'in')} {short(name)}"


_JOINTS = {"site": "at", "line": "at", "stack": "at", "category": "in", "size": "of"}


def summary_json(
    trace: Trace, devices: Sequence[DeviceTrace] | None = None, *, findings: bool = True
) -> dict[str, Any]:
    """Return the summary of these devices, or of all, each with its headline, and with its findings if requested."""
    chosen = trace.devices if devices is None else tuple(devices)
    for device in chosen:
        # First, while little else is held: finding purposes takes more memory than anything here, and gives it back.
        categories(trace, device)
    summed = summary(trace, chosen)
    for row, device in zip(summed["devices"], chosen, strict=True):
        row["headline"] = headline_json(explore(overview(trace, device)))
        if findings:
            row["findings"] = _findings(trace, device)
    return summed


def _findings(trace: Trace, device: DeviceTrace) -> Any:
    # Every kind of finding is a module of its own; a summary for people shows none.
    from memviz.analysis.findings.ranking import findings_json

    return findings_json(trace, device)["findings"]
