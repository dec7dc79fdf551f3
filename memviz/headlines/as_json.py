"""Results as plain values with the sentence that the page says of them: for `--json` and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memviz.allocator.as_json import replay_json
from memviz.allocator.question import ReplayAnswer
from memviz.analysis.as_json import diff_json
from memviz.analysis.comparing.changes import Changes, telling
from memviz.analysis.comparing.match_allocations import Pair
from memviz.analysis.comparing.setting_differences import setting_differences
from memviz.analysis.findings.as_json import findings_json
from memviz.analysis.overview import overview
from memviz.analysis.summary import device_number, summary
from memviz.headlines.compare import compare
from memviz.headlines.explore import explore
from memviz.headlines.headline import Headline
from memviz.headlines.what_if import what_if
from memviz.trace.model import DeviceTrace, Trace


def summary_json(trace: Trace, devices: Sequence[DeviceTrace] | None = None) -> dict[str, Any]:
    """Of these devices, or of all; each with its headline and its findings."""
    chosen = trace.devices if devices is None else tuple(devices)
    summed = summary(trace, chosen)
    for row, device in zip(summed["devices"], chosen, strict=True):
        row["headline"] = headline_json(explore(overview(trace, device)))
        row["findings"] = findings_json(trace, device)["findings"]
    return summed


def compared_json(sides: Sequence[Pair], comparison: Changes, top: int | None = None) -> dict[str, Any]:
    headline = compare(telling(sides))
    settings = setting_differences([trace for trace, _ in sides])
    return {"headline": headline_json(headline), **diff_json(comparison, settings, top=top)}


def replayed_json(answer: ReplayAnswer) -> dict[str, Any]:
    said = str(what_if(answer.found, answer.searched))
    return {"device": device_number(answer.device), **replay_json(answer.found, answer.searched, said)}


def headline_json(headline: Headline) -> dict[str, str]:
    return {"answer": headline.answer, "reason": headline.reason}
