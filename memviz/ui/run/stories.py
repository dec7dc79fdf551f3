"""What the form says after one click: the four seeds as examples, and a model that stands in for a recorded one.

The published tables of the seeds stand in `reproduce`.
"""

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


STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "activations": {"workload": "gpt2", "w:mode": "training", "o:checkpointing": True},
    "wider_copies": {"workload": "gpt2", "w:mode": "training", "o:chunked_cross_entropy": True},
    "large_temporary": {"workload": "gpt2", "w:mode": "training", "o:chunked_cross_entropy": True},
    "duplicated_weights": {"workload": "flux", "w:mode": "inference", "o:layerwise_casting": True},
}
"""By kind of finding: a model on which the optimization against it has an effect. A snapshot does not name its own."""


def stand_in_fields(finding: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """`finding` is a kind, as in `FindingKind`; where it runs stays as it was chosen."""
    return {**_kept(fields), **STAND_INS.get(finding, {})}


def story_fields(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The form as the story wants it; where it runs stays as it was chosen."""
    return {**_kept(fields), **STORIES.get(name, {})}


def _kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: fields[key] for key in ("on", "card", "memory", "numerics") if key in fields}
