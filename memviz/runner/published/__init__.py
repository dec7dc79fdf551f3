"""The published tables that memviz grew from, each computed anew: one file a seed, one list of them."""

from __future__ import annotations

from memviz.runner.published import checkpointing, flat_gradients, layerwise_casting, split_feed_forward
from memviz.runner.published.table import Seed

SEEDS: tuple[Seed, ...] = (
    split_feed_forward.SEED,
    checkpointing.SEED,
    flat_gradients.SEED,
    layerwise_casting.SEED,
)
