"""What a device's history comes to: its peak and what most of that is, or how it ran out of memory."""

from __future__ import annotations

from memviz.analysis.overview import FailedRequest, Overview
from memviz.headlines.headline import Headline
from memviz.headlines.names import counted, device_name, kind_name, of_device
from memviz.units import bytes_text, count_text, percent_text


def explore(found: Overview) -> Headline:
    if found.ran_out is not None:
        return _ran_out(found, found.ran_out)
    if not found.event_count:
        return _only_the_end(found)
    made_of = ""
    if found.most_of_it is not None:
        share = percent_text(found.most_of_it.bytes, found.peak_bytes)
        made_of = f", and {share} of it is {kind_name(found.most_of_it.category)}"
    return Headline(f"The peak{of_device(found.device)} is {bytes_text(found.peak_bytes)}{made_of}.", _when(found))


def _ran_out(found: Overview, failed: FailedRequest) -> Headline:
    who = device_name(found.device) if found.device.is_one_of_several else "it"
    site = f" in {failed.site}" if failed.site else ""
    times = "" if failed.times == 1 else f" {counted(failed.times, 'time')}, at last when"
    joint = ":" if failed.times == 1 else ""
    answer = f"{who} ran out of memory{joint}{times} {bytes_text(failed.asked_bytes)} were asked for{site}."
    reason = f"{bytes_text(failed.live_bytes)} were live"
    if failed.reserved_bytes >= failed.live_bytes:
        reason += f", and {bytes_text(failed.reserved_bytes - failed.live_bytes)} reserved and not live"
    return Headline(f"{answer[0].upper()}{answer[1:]}", f"{reason}.")


def _only_the_end(found: Overview) -> Headline:
    where = f" on {device_name(found.device)}" if found.device.is_one_of_several else ""
    why = "The file holds no history, only the state at its end."
    if found.trace_has_events:
        why = "Nothing happened there while the history was recorded; this is its state at the end."
    return Headline(f"{bytes_text(found.peak_bytes)} are live{where}.", why)


def _when(found: Overview) -> str:
    if found.peak_event < 0:
        return "It was there before the first event."
    step = f"in {found.step}, " if found.step else ""
    last = found.event_count - 1
    if found.peak_event == last:
        return f"It comes {step}at event {count_text(last)}, the {'last' if last else 'only one'}."
    return f"It comes {step}at event {count_text(found.peak_event)}; the last is event {count_text(last)}."
