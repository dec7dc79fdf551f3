"""Memory in private pools, as CUDA graphs keep them: nothing outside can use what is free there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.facts import Facts, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.reserved.reserved_ranges import segments_then
from memviz.analysis.reserved.segments import TileKind, segments_at
from memviz.trace.model import DEFAULT_POOL
from memviz.units import bytes_text, count_text

_MUCH = 0.01
"""Of what is reserved."""


def private_pools(facts: Facts) -> Iterator[Finding]:
    """At the end, where graphs that are kept have their pools."""
    trace, device, event = facts.trace, facts.device, facts.count - 1
    segments = segments_then(device, event, trace.settings)
    default = [number for number, pool in enumerate(trace.pools) if pool == DEFAULT_POOL]
    private = ~np.isin(segments.pool, default)
    reserved = int(segments.size[private].sum())
    if reserved < max(_MUCH * int(segments.size.sum()), 1):
        return
    tiles = segments_at(trace, device, event).tiles
    inside = private[tiles.segment] & (tiles.kind != TileKind.FREE)
    rows = np.sort(tiles.row[inside])
    live = int(tiles.requested[inside].sum())
    pools = len(np.unique(segments.pool[private]))
    where = "a private pool" if pools == 1 else f"{count_text(pools)} private pools"
    yield Finding(
        FindingKind.PRIVATE_POOLS,
        reserved,
        f"{bytes_text(reserved)} are reserved in {where} (CUDA graphs, MemPool) at the end, and {bytes_text(live)} of "
        "it are live; nothing outside can use the rest.",
        "Let graphs share a pool (torch.cuda.graph_pool_handle), and capture the largest one first.",
        rows,
        event,
        site_name(facts.largest_site(rows)) if len(rows) else "",
    )
