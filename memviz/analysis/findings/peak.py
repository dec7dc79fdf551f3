"""Findings about the peak: a request that failed, saved activations, a spike, and a large temporary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.actions.layers import layers_holding
from memviz.analysis.actions.proposals import is_mixed
from memviz.analysis.findings.finding import Facts, Finding, FindingKind, origin_text, short_label, site_name
from memviz.analysis.findings.retention import last_holder
from memviz.analysis.lifetimes import live_rows
from memviz.analysis.peak import failed_requests
from memviz.analysis.purpose.activity import Activity, stack_signs
from memviz.analysis.purpose.categories import KINDS, SAYS_NOTHING, kinds
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.analysis.sums import sum_by
from memviz.trace.model import Action, Category, Ints8
from memviz.units import bytes_text, count_text, percent_text

# Out of memory: the last request that failed, the bytes that are missing, and the remedy.

_REMEDIES = {
    Category.PARAMETER: "Store the weights in fewer bits, or use CPU offload.",
    Category.GRADIENT: "Run the optimizer step in the backward pass, or use CPU offload.",
    Category.OPTIMIZER_STATE: "Use an 8-bit optimizer, or train adapters (LoRA).",
    Category.ACTIVATION: "Use gradient checkpointing, or a smaller batch or shorter inputs.",
    Category.TEMPORARY: "Compute in chunks, or use a smaller batch or shorter inputs.",
    Category.KV_CACHE: "Use a quantized or sliding-window KV cache, or shorter inputs.",
    Category.WEIGHT_COPIES: "Keep the copy in CPU memory or in half precision.",
    Category.AUTOCAST_WEIGHT_COPIES: "Load the weights in half precision, so that autocast makes no copies.",
}
_ANY_REMEDY = "Use a smaller batch or shorter inputs, or CPU offload."


def out_of_memory(facts: Facts) -> Iterator[Finding]:
    count = len(facts.failed_events)
    if not count:
        return
    (failed,) = failed_requests(facts.trace, facts.device, slice(-1, None))
    event, requested, live, free = failed.event, failed.requested_bytes, failed.live_bytes, failed.device_free_bytes
    rows = live_rows(facts.device, event)
    unused = max(failed.reserved_bytes - live, 0)
    missing = requested - unused - (free or 0)
    on_device = "" if free is None else f" and {bytes_text(free)} free on the device"
    times = f" (the last of {count_text(count)})" if count > 1 else ""
    site = short_label(failed.site)
    most, largest, category_text = _largest_category(facts, rows)
    holder, line = last_holder(facts, largest)
    where = f" ({line})" if line else ""
    keeper = f" {holder} keeps most of it{where}." if holder else ""
    remedy = _ANY_REMEDY if most is None else _REMEDIES.get(most, _ANY_REMEDY)
    if missing <= 0:
        remedy = f"Set expandable_segments:True, or free {bytes_text(requested)} in one piece before it."
    yield Finding(
        FindingKind.OUT_OF_MEMORY,
        max(missing, 0) or requested,
        f"Out of memory at event {count_text(event)}{times}: {bytes_text(requested)} requested"
        f"{f' by {site}' if site else ''}, with {bytes_text(live)} live, {bytes_text(unused)} reserved but unused"
        f"{on_device}. {_missing_sentence(missing, requested, live, free)}{category_text}{keeper}",
        remedy,
        largest,
        event,
        site_name(facts.largest_site(largest)) if len(largest) else "",
        facts.certainty(largest) if len(largest) else Certainty.SURE,
        holder,
        line,
    )


def _missing_sentence(missing: int, requested: int, live: int, free: int | None) -> str:
    if missing <= 0:
        return f"Enough memory is free, but not {bytes_text(requested)} in one piece."
    if missing > live:
        return f"The request alone is {bytes_text(missing - live)} larger than all memory the process can get."
    # Blocks are rounded up and fragmented, and the driver may have had free memory that the file does not record.
    bound = "At least" if free is not None else "Up to"
    return f"{bound} {bytes_text(missing)} less must be in use for this request to fit."


def _largest_category(facts: Facts, rows: Ints8) -> tuple[Category | None, Ints8, str]:
    """The largest category that is known among these rows, its rows, and a sentence of it."""
    size, kind = facts.rows.size[rows], kinds(facts.trace, facts.device, rows)
    sums = sum_by(kind, size, len(KINDS))
    if not sums.any():
        return None, rows, ""
    code = int(sums.argmax())
    largest = rows[kind == code]
    site = facts.largest_site(largest)
    of_site = next(part for other, part in facts.by_site(largest) if other == site)
    is_main_site = 2 * int(facts.rows.size[of_site].sum()) > int(sums[code]) and site_name(site)
    site_text = f", mostly made by {site_name(site)}" if is_main_site else ""
    share = (
        f"{bytes_text(int(sums[code]))} ({percent_text(int(sums[code]), int(size.sum()))} of live memory){site_text}"
    )
    if KINDS[code] in SAYS_NOTHING:
        return None, largest, f" Largest category: {KINDS[code]}, {share}."
    probably = "probably " if facts.certainty(largest) is Certainty.PROBABLE else ""
    return Category(code), largest, f" Largest category: {probably}{KINDS[code]}, {share}."


# Activations saved for the backward at the peak. Remedies: gradient checkpointing and half precision.

_ACTIVATION_SHARE = 0.2
"""Least share of the peak."""
_SAVED = {True: "backward", False: "a backward after the end of the recording"}


def activations(facts: Facts) -> Iterator[Finding]:
    event = facts.line.peak_event
    if event < 0:
        return
    rows = live_rows(facts.device, event)
    rows = rows[facts.has_purpose(Category.ACTIVATION)[rows]]
    has_backward = any(span.doing == Activity.BACKWARD for span in facts.phases.spans)
    if not has_backward:
        # A recording that ends, or ran out of memory, before it. What a forward lets go by itself waits for nothing,
        # and what goes once a request has failed goes with the exception.
        failed = facts.failed_events[facts.failed_events >= event]
        rows = rows[facts.rows.end[rows] > (failed[0] if len(failed) else facts.count - 1)]
    size = int(facts.rows.size[rows].sum())
    if size < max(_ACTIVATION_SHARE * facts.line.peak_bytes, 1):
        return
    certainty = facts.certainty(rows)
    probably = "probably " if certainty is Certainty.PROBABLE else ""
    holding = layers_holding(facts, rows, event)
    layers = ""
    if holding is not None:
        layers = f", {bytes_text(int(facts.rows.size[holding.rows].sum()))} of it in {holding.description}"
    yield Finding(
        FindingKind.ACTIVATIONS,
        size,
        f"{bytes_text(size)} of the peak, {percent_text(size, facts.line.peak_bytes)}, are {probably}activations saved "
        f"for {_SAVED[has_backward]}{layers}.",
        _remedy_for_activations(facts, bool(layers)),
        rows,
        event,
        site_name(facts.largest_site(rows)),
        certainty,
    )


def _remedy_for_activations(facts: Facts, has_layers: bool) -> str:
    """Return the remedies that are not applied already."""
    remedies = []
    # Stacks show it of what was recorded, and the reason of what an estimate makes again.
    recomputes = stack_signs(facts.trace).recomputes[facts.rows.stack] | (facts.purposes.reason == Reason.RECOMPUTED)
    if has_layers or not recomputes.any():
        remedies.append("use gradient checkpointing")
    if not is_mixed(facts):
        remedies.append("use half precision")
    text = ", or ".join(remedies) or "use a smaller batch or shorter inputs"
    return f"{text[0].upper()}{text[1:]}."


# A spike that makes the allocator reserve memory which nothing needs afterwards.

_SPIKE_SHARE = 0.05
"""Least share of the reserved peak."""
_SPIKE_HEIGHT = 0.05
"""Share of the peak by which a spike must exceed everything after it."""
_SPIKE_RISE = 0.1
"""Share of the peak by which live bytes must rise again after a spike. A mere fall is no spike."""


def spike(facts: Facts) -> Iterator[Finding]:
    live, reserved = facts.line.live, facts.line.reserved
    top = int(live.argmax())
    later = np.maximum.accumulate(live[::-1])[::-1]
    rises = np.flatnonzero(later[top:] - live[top:] >= _SPIKE_RISE * live[top])
    if not len(rises):
        return
    # The first moment behind it after which live bytes never come as high again as they were there.
    valley = top + int(rises[0])
    needed = int(later[valley])
    if needed > (1 - _SPIKE_HEIGHT) * live[top]:
        return
    before, begin = np.flatnonzero(live[:top] <= needed), 0
    if len(before):
        # The moment before the segments of an alloc are reserved, which happens just before it.
        others = np.flatnonzero(facts.device.events.action[: before[-1]] < Action.SEGMENT_ALLOC)
        begin = int(others[-1]) + 1 if len(others) else 0
    unused = min(int(reserved[valley:].min()) - needed, int(reserved[top : valley + 1].max() - reserved[begin]))
    if unused < max(_SPIKE_SHARE * int(reserved.max()), 1) or not _shows_later_needs(facts, valley - 1):
        return
    # Live at the top, not before, and freed before live bytes rise again. Moments, not events.
    start, end = facts.rows.start, facts.rows.end
    rows = np.flatnonzero((start < top) & (end > top - 1) & (start >= begin) & (end < valley))
    if not len(rows):
        return
    site = site_name(facts.largest_site(rows))
    site_text = f", mostly {site}" if site else ""
    yield Finding(
        FindingKind.SPIKE,
        unused,
        f"A spike at event {count_text(top - 1)}{site_text} reserved {bytes_text(unused)} not used afterwards: "
        f"it reaches {bytes_text(int(live[top]))}, and at most {bytes_text(needed)} are live later.",
        "Make the spike smaller, or call torch.cuda.empty_cache() once after it.",
        rows,
        top - 1,
        site,
    )


def _shows_later_needs(facts: Facts, event: int) -> bool:
    """Return whether the trace goes on long enough to show later needs: a full step, or else half of all allocs."""
    doing = [(span.first, span.doing) for span in facts.phases.spans]
    behind = [at for at, what in doing if what == Activity.FORWARD and at > event]
    if doing and facts.phases.is_training:
        return bool(behind) and any(what == Activity.BACKWARD and at > behind[0] for at, what in doing)
    if doing:
        return bool(behind)
    allocs = facts.device.events.action == Action.ALLOC
    return 2 * int(np.count_nonzero(allocs[event + 1 :])) >= int(np.count_nonzero(allocs))


# A short-lived block without which the peak would be lower.

_MOMENT = 8
"""Most allocs and frees during its lifetime."""
_LARGE = 0.1
"""Least size, as a share of the peak."""
_LOWERS = 0.05
"""Share by which the peak must be lower without the block."""
_MOST_SITES = 3


def large_temporary(facts: Facts) -> Iterator[Finding]:
    line, rows, event = facts.line, facts.rows, facts.line.peak_event
    brief = _short_lived(facts)
    large = brief[rows.size[brief] >= max(_LARGE * line.peak_bytes, 1)]
    at_peak = large[rows.live_after(event)[large]]
    parts = [(site, part) for site, part in facts.by_site(large) if np.isin(part, at_peak).any()]
    for site, part in sorted(parts, key=lambda pair: -int(rows.size[pair[1]].max()))[:_MOST_SITES]:
        change = np.zeros(facts.count + 1, dtype=np.int64)
        change[rows.start[part] + 1] = rows.size[part]
        change[rows.end[part] + 1] -= rows.size[part]
        lower = line.peak_bytes - int((line.live - np.cumsum(change)).max())
        if lower < max(_LOWERS * line.peak_bytes, 1):
            continue
        # The same site may allocate larger ones at other times, without a peak.
        there = part[np.isin(part, at_peak)]
        largest, count = bytes_text(int(rows.size[there].max())), count_text(len(there))
        text = f"A temporary of {largest}{origin_text(site)} causes the peak: without it"
        if len(there) > 1:
            text = f"{count} temporaries of up to {largest}{origin_text(site)} cause the peak: without them"
        yield Finding(
            FindingKind.LARGE_TEMPORARY,
            lower,
            f"{text}, it would be {bytes_text(lower)} lower.",
            "Compute it in chunks, in place, or with a fused operator that does not materialize it.",
            part,
            event,
            site_name(site),
        )


def _short_lived(facts: Facts) -> Ints8:
    """Freed within few allocs and frees of its own alloc."""
    rows, action = facts.rows, facts.device.events.action
    # A free that no other stream delays is one thing, in two events.
    number = np.append(np.cumsum((action == Action.ALLOC) | (action == Action.FREE_REQUESTED)), 0)
    ended = (rows.start >= 0) & (rows.end < facts.count)
    freed = np.minimum(rows.free_requested, rows.end)
    ended &= ~facts.has_purpose(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.INPUT)
    return np.flatnonzero(ended & (number[np.minimum(freed, facts.count)] - number[rows.start] <= _MOMENT))
