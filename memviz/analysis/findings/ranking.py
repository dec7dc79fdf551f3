"""All findings of a device, ranked by bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from memviz.analysis.cache import cached_on
from memviz.analysis.findings.copies import duplicated_weights, wider_copies
from memviz.analysis.findings.finding import Facts, Finding, FindingKind
from memviz.analysis.findings.peak import activations, large_temporary, out_of_memory, spike
from memviz.analysis.findings.reserved import pinned_segments, private_pools, waiting_frees
from memviz.analysis.findings.retention import gradients_in_forward, growing, kept_too_long
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Trace

_DETECTORS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
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
    return cached_on(trace, (findings, device), lambda: _ranked(Facts(trace, device)))


def finding_named(trace: Trace, device: DeviceTrace, key: str) -> Finding:
    for finding in findings(trace, device):
        if finding.key == key:
            return finding
    raise UsageError(f"There is no finding {key[:40]!r} in this trace.")


def _ranked(facts: Facts) -> tuple[Finding, ...]:
    # Where only the state at the end is known, that is all there is to look at.
    looks = _DETECTORS if facts.count else (private_pools,)
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
