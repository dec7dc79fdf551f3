"""What is live at a moment as plain values: what `--json` writes, and the page's own interface for programs returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memviz.analysis.live import live_rows
from memviz.analysis.peak import LiveSet
from memviz.analysis.purpose.dominant import dominant_by_group
from memviz.analysis.purpose.told import told
from memviz.analysis.summary import device_number
from memviz.trace.model import DeviceTrace, Trace
from memviz.trace.reserved_bytes import is_reserved_known

if TYPE_CHECKING:
    from memviz.analysis.find import FindResult

_MOST_OF_STACKS = 64 << 20
"""Characters in one answer. Few frames with long names, in many orders, would become gigabytes of text."""
_FRAME = 50


def live_json(trace: Trace, device: DeviceTrace, live: LiveSet, total: str) -> dict[str, Any]:
    """The smaller groups come without their stacks where those of the larger ones fill the answer already."""
    stacks = _stacks_that_fit(trace, [group.stack for group in live.live.groups if group.stack is not None])
    rows = live_rows(device, live.event)
    mostly = dominant_by_group(trace, device, rows, live.live.by)
    left_out = sum(group.stack is not None and group.stack not in stacks for group in live.live.groups)
    return {
        "device": device_number(device),
        "event": live.event,
        "time_us": live.time_us,
        total: live.live_bytes,
        "waiting_bytes": live.waiting_bytes,
        "reserved_bytes": live.reserved_bytes,
        "reserved_is_known": is_reserved_known(live.live_bytes, live.reserved_bytes),
        "by": live.live.by,
        "rows": [
            {
                "site" if live.live.by == "site" else "key": group.label,
                "bytes": group.bytes,
                "count": group.count,
                "purpose": mostly[group.key].kind,
                "purpose_bytes": mostly[group.key].bytes,
                "certainty": mostly[group.key].certainty.word,
                "reason": mostly[group.key].reason,
                **(
                    {"stack": frames_json(trace, group.stack)}
                    if group.stack is not None and group.stack in stacks
                    else {}
                ),
            }
            for group in live.live.groups
        ],
        "rest_bytes": live.live.rest_bytes,
        "rest_count": live.live.rest_count,
        "purposes": [
            {
                "purpose": purpose.kind,
                "certainty": purpose.certainty.word,
                "reason": purpose.reason,
                "bytes": purpose.bytes,
                "count": purpose.count,
            }
            for purpose in told(trace, device, rows)
        ],
        **({"stacks_left_out": left_out} if left_out else {}),
    }


def found_json(device: DeviceTrace, result: FindResult, top: int | None = None) -> dict[str, Any]:
    """The rows and the rest add up."""
    shown, rest = result.sites[:top], result.sites[len(result.sites[:top]) :]
    return {
        "device": device_number(device),
        "event": result.event,
        "count": result.count,
        "live_bytes": result.live_bytes,
        "live_count": result.live_count,
        "rows": [
            {
                "site": site.label,
                "live_bytes": site.live_bytes,
                "live_count": site.live_count,
                "all_bytes": site.bytes,
                "all_count": site.count,
            }
            for site in shown
        ],
        "rest_sites": len(rest),
        "rest_live_bytes": sum(site.live_bytes for site in rest),
        "rest_count": sum(site.count for site in rest),
    }


def _stacks_that_fit(trace: Trace, stacks: Sequence[int]) -> set[int]:
    """From the first on, each as often as it is named."""
    frames, strings = trace.stacks.frames, trace.strings
    fit: set[int] = set()
    left = _MOST_OF_STACKS
    for stack in stacks:
        used = trace.stacks.of(stack)
        left -= sum(len(strings[frames.name[i]]) + len(strings[frames.filename[i]]) + _FRAME for i in used)
        if left < 0:
            break
        fit.add(stack)
    return fit


def frames_json(trace: Trace, stack: int) -> list[dict[str, Any]]:
    """Innermost frame first, as torch has it."""
    frames, strings = trace.stacks.frames, trace.strings
    return [
        {"name": strings[frames.name[i]], "filename": strings[frames.filename[i]], "line": int(frames.line[i])}
        for i in trace.stacks.of(stack)
    ]
