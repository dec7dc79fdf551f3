"""Findings of a device, ranked by bytes, and what fixes of them would save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memviz.analysis.devices import choose_device
from memviz.analysis.findings.finding import Finding
from memviz.analysis.findings.ranking import findings
from memviz.results.headline import device_number
from memviz.results.result import named_fields
from memviz.trace.model import Trace


@dataclass(frozen=True)
class Findings:
    trace: Trace = field(compare=False)
    device: str
    rows: tuple[Finding, ...]
    offers: Mapping[str, Sequence[Any]] = field(default_factory=dict, compare=False)
    """Estimated fixes by the finding's key; empty where none were estimated."""

    def as_json(self) -> dict[str, Any]:
        """Return the output of `findings --json`."""
        return {
            "device": device_number(choose_device(self.trace, self.device)),
            "findings": [
                {
                    "key": finding.key,
                    "kind": str(finding.kind),
                    **named_fields(finding, "bytes", "sentence", "remedy", "site"),
                    "certainty": finding.certainty.word,
                    "event": finding.event,
                    "allocations": len(finding.rows),
                    **({"holder": finding.holder, "line": finding.line} if finding.holder else {}),
                    **({"estimates": list(map(_offer_json, self.offers.get(finding.key, ())))} if self.offers else {}),
                }
                for finding in self.rows
            ],
        }


def findings_result(
    trace: Trace, device: str | None = None, offers: Mapping[str, Sequence[Any]] | None = None
) -> Findings:
    chosen = choose_device(trace, device)
    return Findings(trace, chosen.name, findings(trace, chosen), offers or {})


def _offer_json(offer: Any) -> dict[str, Any]:
    before, after = offer.estimate.before, offer.estimate.after
    return {
        "kind": str(offer.kind),
        "name": offer.name,
        "peak_live_bytes": [before.peak_requested_bytes, after.peak_requested_bytes],
        "peak_reserved_bytes": [before.peak_reserved_bytes, after.peak_reserved_bytes],
        "assumptions": list(offer.assumptions),
    }
