"""The published tables that memviz grew from, each computed anew, in the order of `memviz reproduce`."""

from __future__ import annotations

from memviz.runner.published import tables
from memviz.runner.published.tables import Seed

SEEDS: tuple[Seed, ...] = (
    tables.SPLIT_FEED_FORWARD,
    tables.CHECKPOINTING,
    tables.FLAT_GRADIENTS,
    tables.LAYERWISE_CASTING,
)
