"""All findings of a device, ranked by bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from memviz.analysis.cache import cached
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


@cached
def findings(trace: Trace, device: DeviceTrace) -> tuple[Finding, ...]:
    """Findings by bytes, largest first, after those of a failed request."""
    facts = Facts(trace, device)
    # Without events only the final state is known.
    detectors = _DETECTORS if facts.count else (private_pools,)
    ranked = sorted(
        (finding for detect in detectors for finding in detect(facts)),
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


def finding_by_key(trace: Trace, device: DeviceTrace, key: str) -> Finding:
    for finding in findings(trace, device):
        if finding.key == key:
            return finding
    raise UsageError(f"There is no finding {key[:40]!r} in this trace.")
