"""What a trace holds as plain values, with the sentence that the page says of each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memviz.analysis.overview import overview
from memviz.analysis.purpose.categories import categories
from memviz.analysis.summary import summary
from memviz.headlines.explore import explore
from memviz.headlines.headline import headline_json
from memviz.trace.model import DeviceTrace, Trace


def summary_json(
    trace: Trace, devices: Sequence[DeviceTrace] | None = None, *, findings: bool = True
) -> dict[str, Any]:
    """Of these devices, or of all; each with its headline, and with its findings where somebody wants them."""
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
    from memviz.analysis.findings.as_json import findings_json

    return findings_json(trace, device)["findings"]
