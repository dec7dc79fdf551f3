"""All findings of a device, ranked by bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.findings.copies import duplicated_weights, wider_copies
from memviz.analysis.findings.finding import Facts, Finding, FindingKind
from memviz.analysis.findings.peak import activations, large_temporary, out_of_memory, spike
from memviz.analysis.findings.reserved import host_memory, pinned_segments, private_pools, waiting_frees
from memviz.analysis.findings.retention import gradients_in_forward, growing, held, kept_too_long
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Trace

_DETECTORS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    out_of_memory,
    activations,
    kept_too_long,
    growing,
    held,
    spike,
    pinned_segments,
    duplicated_weights,
    gradients_in_forward,
    wider_copies,
    large_temporary,
    private_pools,
    waiting_frees,
    host_memory,
)


_OF_HOLDERS = (
    FindingKind.KEPT_BY_LIST,
    FindingKind.KEPT_BY_GRAPH,
    FindingKind.KEPT_BY_EXCEPTION,
    FindingKind.WAITS_FOR_COLLECTION,
)


@cached
def findings(trace: Trace, device: DeviceTrace) -> tuple[Finding, ...]:
    """Findings by bytes, largest first, after those of a failed request."""
    facts = Facts(trace, device)
    # Without events only the final state is known.
    detectors = _DETECTORS if facts.count else (private_pools,)
    ranked = sorted(
        _without_repeated(facts, [finding for detect in detectors for finding in detect(facts)]),
        key=lambda finding: (
            finding.kind is not FindingKind.OUT_OF_MEMORY,
            # Those of the host come last: a card is mostly the smaller of the two.
            finding.kind.startswith("host_"),
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


def _without_repeated(facts: Facts, found: list[Finding]) -> list[Finding]:
    """Drop what a finding with the name of the holder says about at least half of the same bytes."""
    rows = np.unique(np.concatenate([np.zeros(0, np.int64), *(one.rows for one in found if one.kind in _OF_HOLDERS)]))
    sizes = facts.rows.size

    def is_repeated(finding: Finding) -> bool:
        shared = finding.rows[np.isin(finding.rows, rows)]
        is_vague = finding.kind in (FindingKind.GROWING, FindingKind.KEPT_TOO_LONG)
        return is_vague and 2 * int(sizes[shared].sum()) >= int(sizes[finding.rows].sum())

    return [finding for finding in found if not is_repeated(finding)]


def finding_by_key(trace: Trace, device: DeviceTrace, key: str) -> Finding:
    for finding in findings(trace, device):
        if finding.key == key:
            return finding
    raise UsageError(f"This trace has no finding {key[:40]!r}.")
