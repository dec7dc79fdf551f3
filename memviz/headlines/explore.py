"""What a device's history comes to: its peak and what most of that is, or how it ran out of memory."""

from __future__ import annotations

from memviz.analysis.callstacks.sites import Site
from memviz.analysis.overview import FailedRequest, Overview
from memviz.headlines.headline import Headline
from memviz.headlines.names import device_name, kind_name, of_device, short
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
    times = "" if failed.times == 1 else f" {counted(failed.times, 'time')}, at last when"
    joint = ":" if failed.times == 1 else ""
    answer = f"{who} ran out of memory{joint}{times} {bytes_text(failed.asked_bytes)} were asked for{site}."
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
