"""Findings as plain values, for programs."""

from __future__ import annotations

from typing import Any

from memviz.analysis.findings.finding import Finding
from memviz.analysis.findings.ranked import findings
from memviz.analysis.summary import device_number
from memviz.trace.model import DeviceTrace, Trace


def findings_json(trace: Trace, device: DeviceTrace) -> dict[str, Any]:
    return {"device": device_number(device), "findings": [_finding(finding) for finding in findings(trace, device)]}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "key": finding.key,
        "kind": str(finding.kind),
        "bytes": finding.bytes,
        "sentence": finding.sentence,
        "remedy": finding.remedy,
        "site": finding.site,
        "certainty": finding.certainty.word,
        "event": finding.event,
        "allocations": len(finding.rows),
    }
