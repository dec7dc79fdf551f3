"""Which few places keep most of what a forward keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.callstacks.sites import Site, SiteKind, sites
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.analysis.sums import sum_by
from memviz.trace.model import Category, DeviceTrace, Ints8, Trace

_MOST_PLACES = 3
_ENOUGH = 0.5
"""Of the activations: places that make less of them together are no answer."""


@dataclass(frozen=True, eq=False)
class KeptBy:
    places: tuple[Site, ...]
    """By bytes, the largest first."""
    bytes: int
    """All that they hold of activations at this moment."""
    rows: Ints8
    """Of `lifetimes`."""


def kept_by(trace: Trace, device: DeviceTrace, rows: Ints8, rule: SiteRule = DEFAULT_RULE) -> KeptBy | None:
    """Of the activations among these rows of `lifetimes`. None where no few places hold most of them."""
    rows = rows[categories(trace, device).category[rows] == Category.ACTIVATION]
    all_rows, table = lifetimes(device), sites(trace, rule)
    sites_held, place = np.unique(table.of_stack[all_rows.stack[rows]], return_inverse=True)
    if not len(rows):
        return None
    sums = sum_by(place, all_rows.size[rows], len(sites_held))
    order = np.argsort(-sums, kind="stable")
    needed = int(np.searchsorted(np.cumsum(sums[order]), _ENOUGH * sums.sum())) + 1
    chosen = [table.sites[sites_held[i]] for i in order[:needed].tolist()]
    if needed > _MOST_PLACES or any(site.kind not in (SiteKind.USER, SiteKind.LIBRARY) for site in chosen):
        return None
    return KeptBy(tuple(chosen), int(sums[order[:needed]].sum()), rows[np.isin(place, order[:needed])])
