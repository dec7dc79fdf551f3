"""The last request that failed: what is missing, what most of the live bytes are, and what makes it fit."""

from __future__ import annotations

from collections.abc import Iterator

from memviz.analysis.callstacks.sites import sites
from memviz.analysis.findings.facts import Facts, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.live import live_rows
from memviz.analysis.purpose.kinds import KINDS, SAYS_NOTHING, kinds
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.sums import sum_by
from memviz.trace.model import Category, Ints8, driver_free
from memviz.units import bytes_text, count_text, percent_text

_REMEDIES = {
    Category.PARAMETER: "Store the weights in fewer bits, or use CPU offload.",
    Category.GRADIENT: "Run the optimizer step in the backward pass, or use CPU offload.",
    Category.OPTIMIZER_STATE: "Use an 8-bit optimizer, or train adapters (LoRA).",
    Category.ACTIVATION: "Use gradient checkpointing, or a smaller batch or shorter inputs.",
    Category.TEMPORARY: "Compute in chunks, or take a smaller batch or shorter inputs.",
    Category.KV_CACHE: "Use a quantized or sliding-window KV cache, or shorter inputs.",
    Category.WEIGHT_COPIES: "Keep the copy in CPU memory or in half precision.",
    Category.AUTOCAST_WEIGHT_COPIES: "Load the weights in half precision, so that autocast makes no copies.",
}
_ANY = "Take a smaller batch or shorter inputs, or use CPU offload."


def out_of_memory(facts: Facts) -> Iterator[Finding]:
    failed = facts.failed_requests
    if not len(failed):
        return
    event = int(failed[-1])
    rows = live_rows(facts.device, event)
    asked, live = int(facts.device.events.size[event]), int(facts.line.live[event + 1])
    unused = max(int(facts.line.reserved[event + 1]) - live, 0)
    free = driver_free(facts.device.events, event)
    missing = asked - unused - (free or 0)
    on_device = "" if free is None else f" and {bytes_text(free)} free on the device"
    times = f" (the last of {count_text(len(failed))})" if len(failed) > 1 else ""
    site = site_name(sites(facts.trace).of(int(facts.device.events.stack[event])))
    most, largest, words = _largest(facts, rows)
    yield Finding(
        FindingKind.OUT_OF_MEMORY,
        max(missing, 0) or asked,
        f"Out of memory at event {count_text(event)}{times}: {bytes_text(asked)} requested"
        f"{f' by {site}' if site else ''}, with {bytes_text(live)} live, {bytes_text(unused)} reserved but unused"
        f"{on_device}. {_missing(missing, asked, live, free)}{words}",
        _remedy(missing, most, asked),
        largest,
        event,
        site_name(facts.largest_site(largest)) if len(largest) else "",
        facts.certainty(largest) if len(largest) else Certainty.SURE,
    )


def _missing(missing: int, asked: int, live: int, free: int | None) -> str:
    if missing <= 0:
        return f"Enough is free, but no piece of {bytes_text(asked)}."
    if missing > live:
        return f"The request alone is {bytes_text(missing - live)} larger than all that the process could have."
    # Blocks are rounded up and fragmented, and the driver may have had some that the file does not say.
    bound = "At least" if free is not None else "Up to"
    return f"{bound} {bytes_text(missing)} less makes it fit."


def _largest(facts: Facts, rows: Ints8) -> tuple[Category | None, Ints8, str]:
    """The largest category that is known among these rows, its rows, and a sentence of it."""
    size, kind = facts.rows.size[rows], kinds(facts.trace, facts.device, rows)
    sums = sum_by(kind, size, len(KINDS))
    if not sums.any():
        return None, rows, ""
    code = int(sums.argmax())
    largest = rows[kind == code]
    site = facts.largest_site(largest)
    of_site = next(part for other, part in facts.by_site(largest) if other == site)
    is_mostly = 2 * int(facts.rows.size[of_site].sum()) > int(sums[code]) and site_name(site)
    mostly = f", mostly made by {site_name(site)}" if is_mostly else ""
    share = f"{bytes_text(int(sums[code]))} ({percent_text(int(sums[code]), int(size.sum()))} of what is live){mostly}"
    if KINDS[code] in SAYS_NOTHING:
        return None, largest, f" Largest category: {KINDS[code]}, {share}."
    probably = "probably " if facts.certainty(largest) is Certainty.PROBABLE else ""
    return Category(code), largest, f" Largest category: {probably}{KINDS[code]}, {share}."


def _remedy(missing: int, most: Category | None, asked: int) -> str:
    if missing <= 0:
        return f"Set expandable_segments:True, or free {bytes_text(asked)} in one piece before it."
    return _REMEDIES.get(most, _ANY) if most is not None else _ANY
