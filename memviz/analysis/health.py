"""Notes on what a trace lacks or contradicts, with remedies, to read before trusting its figures.

Notes of the file's reader are in `Trace.notes` and not repeated here. Where the file does not show which of two
causes applies, both are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from memviz.analysis.lifetimes import BEFORE, delayed_frees, lifetimes, matched
from memviz.analysis.segments import TileKind, fragmentation_at, fragmentation_of, segments_at
from memviz.analysis.timeline import has_reserved, timeline
from memviz.trace.intern import distinct, is_among
from memviz.trace.memviz_labels import HOLDERS_CUT_FACT
from memviz.trace.model import NO_STACK, Action, DeviceTrace, Note, Trace, driver_free
from memviz.trace.profile import is_profiled
from memviz.trace.reserved import LARGE_SEGMENT
from memviz.units import bytes_text, count_text, counted, percent_text

History = Literal["complete", "late", "none"]

_RECORD = (
    "Call torch.cuda.memory._record_memory_history(max_entries=1_000_000) before the model is built "
    "and torch.cuda.memory._dump_snapshot('trace.pickle') after the work."
)
_LEFT_OUT = "Events were left out (skip_actions), or the file is damaged."
_NOTICEABLE = 0.01
"""Share of a peak below which a note would be noise."""
_MUCH = 0.2
"""Share of the reserved bytes that may hold nothing before it is worth a note."""
_WORTH_A_NOTE = 64 << 20
"""One or two segments are always partly free."""
_MOST_POOLS = 5
_LONGEST_NAME = 200


def history(device: DeviceTrace) -> History:
    """complete: nothing was live or reserved before the first event. late: something was. none: no events."""
    if not len(device.events):
        return "none"
    bytes_over_time = timeline(device)
    return "late" if bytes_over_time.live[0] > 0 or bytes_over_time.reserved[0] > 0 else "complete"


def health(trace: Trace) -> tuple[Note, ...]:
    """Notes on the whole trace first, then device by device."""
    notes = list(_on_trace(trace))
    for device in trace.devices:
        where = f"Device {device.name}. " if len(trace.devices) > 1 else ""
        for about in _CONCERNS:
            notes += (
                Note(note.code, where + note.text, note.remedy, note.level, device.name)
                for note in about(trace, device)
            )
    return tuple(notes)


_PROFILED = (
    "A torch profiler trace: sizes are those of blocks (rounded up to 512 bytes on a GPU). It has no streams, segments "
    "or purposes of tensors. Only GPU profiles have reserved memory. The segments shown are placeholders, so a replay "
    "cannot be checked against them."
)
_PROFILE_REPLAYED = (
    "The replay of a torch profiler trace: sizes are those of blocks (rounded up to 512 bytes on a GPU). It has no "
    "streams or purposes of tensors. Segments and addresses come from the allocator model and cannot be checked "
    "against the recording."
)


def _on_trace(trace: Trace) -> Iterator[Note]:
    if is_profiled(trace):
        remedy = "For all of it record a snapshot: torch.cuda.memory._record_memory_history(), or `memviz record`."
        text = _PROFILE_REPLAYED if trace.about.origin == "replayed" else _PROFILED
        yield Note("profiler_trace", text, remedy, "warning")
    profile_path = trace.about.facts.get("profile", "")
    if profile_path:
        text = f"A profile of the same run was written beside it: {profile_path[:_LONGEST_NAME]}."
        yield Note("profile_beside", text, "Open both: Compare shows them side by side, on one clock.")
    cut = trace.about.facts.get(HOLDERS_CUT_FACT, "")
    if cut.isascii() and cut.isdecimal():
        moments = counted(int(cut[:9]), "moment")
        text = f"The search for holders timed out at {moments}: some holders may be missing there."
        yield Note("holders_cut", text, "Mark fewer moments, or keep fewer objects alive.", "warning")
    if trace.event_count and not len(trace.stacks):
        text = "No stacks were recorded, so call sites are unknown."
        yield Note("no_stacks", text, f'Record with context="all" and stacks="all". {_RECORD}', "warning")
    text = (
        "A snapshot covers PyTorch's allocator only. The CUDA context, NCCL, libraries that allocate on their own and "
        "other programs use the device too."
    )
    yield Note("unseen_memory", text, "Compare with nvidia-smi to see their share.")


def _no_history(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    if history(device) != "none":
        return
    state = f"{bytes_text(timeline(device).end_bytes)} live in {counted(len(device.segments), 'segment')}"
    if trace.event_count:
        yield Note("no_events", f"No events were recorded here; the final state is {state}.")
    else:
        text = f"The file has no history: only the final state is known, {state}."
        yield Note("no_history", text, _RECORD, "warning")


def _late_history(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    if history(device) != "late":
        return
    before, reserved = timeline(device).start_bytes, int(timeline(device).reserved[0])
    if before:
        count = int((lifetimes(device).start == BEFORE).sum())
        text = (
            f"{bytes_text(before)} ({counted(count, 'allocation')}) were allocated before recording started. They are "
            "counted, without time or stack."
        )
    else:
        text = (
            f"{bytes_text(reserved)} were reserved but not live before recording started: cached from earlier work, or "
            "the events of segments were skipped (skip_actions)."
        )
    cause, remedy = _why_late(trace, device)
    yield Note("late_history", f"{text} {cause}", remedy, "warning" if before else "info")


def _why_late(trace: Trace, device: DeviceTrace) -> tuple[str, str]:
    """Return the cause as far as the file shows it, and the matching remedy."""
    if is_profiled(trace):
        return "The profile began after the program.", "Profile from the first step on, or record a snapshot."
    count, action = len(device.events), device.events.action
    larger = "Record with a larger max_entries, or record fewer steps."
    if count == 1:
        return "The history is a single event, as with enabled='state' or max_entries=1.", _RECORD
    if trace.settings.get("trace_alloc_overflowed") is True:
        return "The ring buffer overflowed and older events were overwritten.", larger
    if count == trace.settings.get("trace_alloc_max_entries") or (count >= 1000 and count % 1000 == 0):
        return f"It has exactly {count_text(count)} events: most likely a full ring buffer (max_entries).", larger
    if action[0] == Action.FREE_COMPLETED and (action == Action.FREE_REQUESTED).any():
        return "It begins in the middle of a free, as after an overflow of the ring buffer.", larger
    return "Either recording began late, or a ring buffer (max_entries) overflowed; the file does not say.", _RECORD


def _bytes_without_stack(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    if not len(trace.stacks):
        return
    lives, peak = lifetimes(device), timeline(device)
    bare = lives.live_after(peak.peak_event) & (lives.stack == NO_STACK)
    recorded = int(lives.size[bare & (lives.start > BEFORE)].sum())
    earlier = int(lives.size[bare & (lives.start == BEFORE)].sum())
    least = peak.peak_bytes * _NOTICEABLE
    if recorded > least:
        text = f"{_share_text(recorded, peak.peak_bytes)} live at the peak were recorded without a stack."
        remedy = (
            'Record with context="all" and stacks="all". With stacks="python" the backward pass has none: it runs on a '
            "thread without Python frames."
        )
        yield Note("bytes_without_stack", text, remedy, "warning")
    if earlier > least:
        when = " at the peak were allocated before recording started and" if len(device.events) else ""
        text = f"{_share_text(earlier, peak.peak_bytes)} live{when} have no stack."
        yield Note("earlier_bytes_without_stack", text, "Start recording earlier, before the model is built.")


def _share_text(part: int, total: int) -> str:
    return f"{bytes_text(part)} of {bytes_text(total)} ({percent_text(part, total)})"


def _expandable(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    if _maps_pages(device):
        text = "Expandable segments are in use: they grow and shrink by pages, so the number of segments says little."
        yield Note("expandable_segments", text)


def _maps_pages(device: DeviceTrace) -> bool:
    action = device.events.action
    mapped = (action == Action.SEGMENT_MAP) | (action == Action.SEGMENT_UNMAP)
    return bool(device.segments.is_expandable.any() or mapped.any())


def _private_pools(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    segments = device.segments
    numbers = distinct(segments.pool[segments.pool != 0]).tolist()
    if not numbers:
        return
    pool_sizes = sorted(
        ((int(segments.size[segments.pool == number].sum()), number) for number in numbers), reverse=True
    )
    labels = [f"{trace.pools[number]} {bytes_text(size)}" for size, number in pool_sizes[:_MOST_POOLS]]
    more = f" and {count_text(len(pool_sizes) - _MOST_POOLS)} more" if len(pool_sizes) > _MOST_POOLS else ""
    share = _share_text(sum(size for size, _ in pool_sizes), int(segments.size.sum()))
    text = f"Private pools (CUDA graphs, MemPool) hold {share} reserved at the end: {', '.join(labels)}{more}."
    yield Note("private_pools", text, "Allocations outside a pool cannot use its free memory.")


def _pending_frees(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    lives, peak, delayed = lifetimes(device), timeline(device), delayed_frees(device)
    if not delayed.any():
        return
    count, total, at_end = int(delayed.sum()), int(lives.size[delayed].sum()), int(peak.waiting[-1])
    delayed &= lives.live_after(peak.peak_event) & (lives.free_requested <= peak.peak_event)
    at_peak = int(lives.size[delayed].sum())
    if len(device.events):
        text = (
            f"{counted(count, 'free')} ({bytes_text(total)}) waited for another stream (record_stream): "
            f"{bytes_text(at_peak)} were waiting at the peak, {bytes_text(at_end)} at the end."
        )
    else:
        text = f"{counted(count, 'free')} ({bytes_text(total)}) still waited for another stream (record_stream)."
    remedy = (
        "Make the streams wait for each other before the tensors are deleted, so that their memory is freed at once."
    )
    yield Note("pending_frees", text, remedy, "warning" if at_peak > peak.peak_bytes * _NOTICEABLE else "info")


def _out_of_memory(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    ooms = np.flatnonzero(device.events.action == Action.OOM)
    if not len(ooms):
        return
    first = int(ooms[0])
    requested, free = int(device.events.size[first]), driver_free(device.events, first)
    moment = segments_at(trace, device, first)
    figures = fragmentation_of(moment, int(timeline(device).reserved[first + 1]))
    unused = figures.reserved - figures.live - figures.waiting
    times = "once" if len(ooms) == 1 else f"{count_text(len(ooms))} times; the first time"
    had = "free device memory is not known" if free is None else f"{bytes_text(free)} were free on the device"
    text = f"It ran out of memory {times}: {bytes_text(requested)} requested, {had}"
    if figures.outside or figures.unknown or not figures.reserved:
        yield Note("out_of_memory", f"{text}; reserved memory is not known.", level="warning")
        return
    text += f", and of {bytes_text(figures.reserved)} reserved {bytes_text(unused)} held no live tensor."
    if free is None:
        remedy = ""
    elif free >= requested + LARGE_SEGMENT:
        remedy = "The device had free memory: most likely a limit was set (torch.cuda.set_per_process_memory_fraction)."
    elif unused + free < requested:
        remedy = "No allocator setting would have helped: less memory must be live at that moment."
    elif _maps_pages(device) or trace.settings.get("expandable_segments") is True:
        remedy = "Enough memory was free, but in other streams, pools or half-used pages."
    elif int(moment.tiles.size[moment.tiles.kind == TileKind.FREE].max(initial=0)) >= requested:
        remedy = "A free block was large enough, but in another stream or pool, where the request could not use it."
    else:
        remedy = (
            "Enough memory was free, but not in one piece: try PYTORCH_ALLOC_CONF=expandable_segments:True "
            "(PYTORCH_CUDA_ALLOC_CONF before torch 2.9)."
        )
    yield Note("out_of_memory", text, remedy, "warning")


def _fragmentation(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    figures = fragmentation_at(trace, device, timeline(device).peak_event)
    unused = figures.cached + figures.rounding
    if figures.outside or unused < max(_WORTH_A_NOTE, figures.reserved * _MUCH):
        return
    text = (
        f"At the peak of live bytes {_share_text(unused, figures.reserved)} reserved held no tensor: "
        f"{bytes_text(figures.free_segments)} in free segments, {bytes_text(figures.free_remainders)} in free parts of "
        f"used segments, {bytes_text(figures.free_pages)} in free pages, {bytes_text(figures.rounding)} by rounding."
    )
    remedy = "empty_cache() returns free segments and whole free pages, nothing else."
    if figures.free_remainders > figures.reserved * _MUCH and not _maps_pages(device):
        remedy += " Against free parts of used segments try expandable_segments:True."
    yield Note("fragmentation", text, remedy)


def _released_memory(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    action, size = device.events.action, device.events.size
    index = np.flatnonzero((action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP))
    if not len(index):
        return
    ends = index[np.append(np.diff(index) > 1, True)]
    # Releases for a new segment: the allocator frees cached segments, then reserves at once.
    following = action[ends[ends + 1 < len(action)] + 1]
    forced = int(is_among(following, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM)).sum())
    text = (
        f"{bytes_text(int(size[index].sum()))} were released to the device ({counted(len(ends), 'time')}) by "
        f"empty_cache() or by the allocator itself; {count_text(forced)} of these just before it requested new memory."
    )
    remedy = "Those were most likely close to OOM (or garbage_collection_threshold); each one synchronizes the device."
    yield Note("memory_given_back", text, remedy if forced else "", "warning" if forced else "info")


def _contradictions(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    faults = matched(device).faults
    contradictions = [
        (faults.stray_frees, "free", "of blocks that were free already"),
        (faults.implied_frees, "allocation", "of an address that was not free"),
        (faults.lost_blocks, "allocation", f"({bytes_text(faults.lost_bytes)}) never freed, but missing at the end"),
    ]
    if faults:
        listed = ", ".join(f"{counted(count, noun)} {what}" for count, noun, what in contradictions if count)
        text = f"The events and the final state contradict each other: {listed}."
        yield Note("contradictions", text, _LEFT_OUT, "warning")


def _unplaced(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    bytes_over_time = timeline(device)
    if is_profiled(trace):
        return
    if not len(device.segments) and (bytes_over_time.end_bytes or not has_reserved(device)):
        reserved = "memory reserved before recording started" if has_reserved(device) else "reserved bytes"
        text = f"The file has no segments, so {reserved} and fragmentation are not known."
        yield Note("no_segments", text, _RECORD, "warning")
        return
    figures = fragmentation_at(trace, device, bytes_over_time.peak_event)
    if figures.outside or figures.unknown:
        placed = f"{bytes_text(figures.unknown)} reserved cannot be placed"
        if figures.unknown < 0:
            placed = f"its segments come to {bytes_text(-figures.unknown)} more than its events reserve"
        text = f"at the peak {bytes_text(figures.outside)} live are in no known segment, and {placed}."
        yield Note("segments_do_not_fit", f"The segments contradict the events: {text}", _LEFT_OUT, "warning")


def _times(trace: Trace, device: DeviceTrace) -> Iterator[Note]:
    times = device.events.time_us
    times = times if times.all() else times[times != 0]
    if not device.is_timed:
        yield Note("no_times", "A predicted device has no clock: only the order of events is known.")
    elif len(device.events) and not len(times):
        yield Note("no_times", "The events have no times (torch before 2.2): only their order is known.")
    back = int(np.count_nonzero(times[1:] < times[:-1]))
    if back:
        text = f"The clock went backwards {counted(back, 'time')}; events are shown in recorded order."
        yield Note("times_out_of_order", text)


# Ordered by how much they affect the other notes.
_CONCERNS: tuple[Callable[[Trace, DeviceTrace], Iterator[Note]], ...] = (
    _no_history,
    _late_history,
    _contradictions,
    _unplaced,
    _out_of_memory,
    _bytes_without_stack,
    _fragmentation,
    _released_memory,
    _pending_frees,
    _private_pools,
    _expandable,
    _times,
)
