"""The four seeds as examples of one click: what the form then says. Their published tables stand in `reproduce`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STORIES: Mapping[str, Mapping[str, Any]] = {
    "split-feed-forward": {
        "workload": "feed_forward",
        "w:activation": "*",
        "o:split_feed_forward": True,
        "o:split_feed_forward:splits": "4",
    },
    "checkpointing": {
        "workload": "ltx_video",
        "w:mode": "training",
        # Newer releases fuse RMSNorm, and the baseline then fits on a card of 24 GiB.
        "torch": "2.6",
        "o:checkpointing": True,
        "o:checkpointing:every": "4, 2, 1",
    },
    "flat-gradients": {
        "workload": "transformer_block",
        "o:flat_gradients": True,
        "o:flat_gradients:how": "plain, list_then_cat, flat",
    },
    "layerwise-casting": {
        "workload": "flux",
        "w:mode": "inference",
        "o:layerwise_casting": True,
        "o:layerwise_casting:granularity": "leaf, block, model",
    },
}


def story_fields(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The form as the story wants it; where it runs stays as it was chosen."""
    kept = {key: fields[key] for key in ("on", "card", "memory", "numerics") if key in fields}
    return {**kept, **STORIES.get(name, {})}
