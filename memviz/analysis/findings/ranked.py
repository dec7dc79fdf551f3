"""All that was found in a device's history, ranked by bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from memviz.analysis.cache import kept
from memviz.analysis.findings.activations import activations
from memviz.analysis.findings.duplicated_weights import duplicated_weights
from memviz.analysis.findings.facts import Facts
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.findings.gradients_in_forward import gradients_in_forward
from memviz.analysis.findings.growing import growing
from memviz.analysis.findings.kept_too_long import kept_too_long
from memviz.analysis.findings.large_temporary import large_temporary
from memviz.analysis.findings.out_of_memory import out_of_memory
from memviz.analysis.findings.pinned_segments import pinned_segments
from memviz.analysis.findings.private_pools import private_pools
from memviz.analysis.findings.spike import spike
from memviz.analysis.findings.waiting_frees import waiting_frees
from memviz.analysis.findings.wider_copies import wider_copies
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Trace

_LOOKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    out_of_memory,
    activations,
    kept_too_long,
    growing,
    spike,
    pinned_segments,
    duplicated_weights,
    gradients_in_forward,
    wider_copies,
    large_temporary,
    private_pools,
    waiting_frees,
)


def findings(trace: Trace, device: DeviceTrace) -> tuple[Finding, ...]:
    """Findings by bytes, largest first, after those of a failed request."""
    return kept(trace, (findings, device), lambda: _ranked(Facts(trace, device)))


def finding_named(trace: Trace, device: DeviceTrace, key: str) -> Finding:
    for finding in findings(trace, device):
        if finding.key == key:
            return finding
    raise UsageError(f"There is no finding {key[:40]!r} in this trace.")


def _ranked(facts: Facts) -> tuple[Finding, ...]:
    # Where only the state at the end is known, that is all there is to look at.
    looks = _LOOKS if facts.count else (private_pools,)
    seen = [finding for look in looks for finding in look(facts)]
    ranked = sorted(
        seen,
        key=lambda finding: (
            finding.kind is not FindingKind.OUT_OF_MEMORY,
            -finding.bytes,
            finding.kind,
            finding.site,
            finding.event,
        ),
    )
    numbers: Counter[str] = Counter()
    numbered = []
    for finding in ranked:
        numbers[finding.kind] += 1
        numbered.append(replace(finding, number=numbers[finding.kind]))
    return tuple(numbered)
