"""Published examples: form fields for each, and its published table next to ours, computed once for everybody."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memviz.runner.jobs.worker_process import rows_of
from memviz.text import Html, tag
from memviz.ui.html.elements import button, number, table


def _fields(
    workload: str, settings: Mapping[str, str], optimizations: Mapping[str, Mapping[str, str]], **options: str
) -> dict[str, Any]:
    """Return the form's fields; no optimizer is chosen, unless one of the `options` is."""
    fields: dict[str, Any] = {"workload": workload, **{f"w:{name}": text for name, text in settings.items()}}
    fields |= {"optimizer": "none", **options}
    for name, knobs in optimizations.items():
        fields |= {f"o:{name}": True, **{f"o:{name}:{knob}": text for knob, text in knobs.items()}}
    return fields


_TRAINING, _INFERENCE, _BLOCKS = {"mode": "training"}, {"mode": "inference"}, {"granularity": "block"}
_IN_BLOCKS: Mapping[str, Mapping[str, str]] = {"checkpointing": {}, "chunked_cross_entropy": {}}
_ADAMW = {"card": "NVIDIA GeForce RTX 4090", "optimizer": "adamw"}
STORIES: Mapping[str, Mapping[str, Any]] = {
    "split-feed-forward": _fields("feed_forward", {"activation": "*"}, {"split_feed_forward": {"splits": "4"}}),
    # Newer releases fuse RMSNorm, and the baseline then fits on a card of 24 GiB.
    "checkpointing": _fields("ltx_video", _TRAINING, {"checkpointing": {"every": "4, 2, 1"}}, torch="2.6"),
    "flat-gradients": _fields("transformer_block", {}, {"flat_gradients": {"how": "plain, list_then_cat, flat"}}),
    "layerwise-casting": _fields("flux", _INFERENCE, {"layerwise_casting": {"granularity": "leaf, block, model"}}),
    "flux-12-gb": _fields("flux_pipeline", {}, {"weight_offload": _BLOCKS}, card="NVIDIA GeForce RTX 3060"),
    # By parts the UNet's weights come at once, and 8 GB are close then.
    "sdxl-8-gb": _fields(
        "sdxl_pipeline", {"tile": "512"}, {"weight_offload": _BLOCKS, "vae_tiling": {}}, card="NVIDIA GeForce RTX 4060"
    ),
    "llama-8b-lora": _fields(
        "llama", {"size": "8b", "sequence": "4096", **_TRAINING}, {"lora": {}, **_IN_BLOCKS}, **_ADAMW
    ),
    "llama-1b": _fields("llama", {"size": "1b", "batch": "8", "sequence": "2048", **_TRAINING}, _IN_BLOCKS, **_ADAMW),
}
PUBLISHED = ("split-feed-forward", "checkpointing", "flat-gradients", "layerwise-casting")
"""Stories with a published table."""


STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "activations": {"workload": "gpt2", "w:mode": "training", "o:checkpointing": True},
    "wider_copies": {"workload": "gpt2", "w:mode": "training", "o:chunked_cross_entropy": True},
    "large_temporary": {"workload": "gpt2", "w:mode": "training", "o:chunked_cross_entropy": True},
    "duplicated_weights": {"workload": "flux", "w:mode": "inference", "o:layerwise_casting": True},
}
"""Example model by kind of finding, on which the fix has an effect; a snapshot does not name its own model."""


def stand_in_fields(finding: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """`finding` is a kind, as in `FindingKind`; the card stays as it was chosen."""
    return {**_stored_fields(fields), **STAND_INS.get(finding, {})}


def story_fields(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The form with the fields of a story; without a card of its own it keeps the chosen one."""
    return {**_stored_fields(fields), **STORIES.get(name, {})}


def _stored_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: fields[key] for key in ("card", "memory", "numerics") if key in fields}


class PublishedTables:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[str, list[dict[str, Any]]] = {}
        self._computing: dict[str, threading.Lock] = {}

    def rows(self, seed: str) -> Iterator[tuple[list[dict[str, Any]], bool]]:
        """Yield the rows computed so far, and whether they are all. Concurrent callers wait for the first."""
        with self._lock:
            computing = self._computing.setdefault(seed, threading.Lock())
        with computing:
            rows = self._done.get(seed)
            if rows is None:
                rows = []
                for row in rows_of(seed):
                    rows.append(row)
                    yield list(rows), False
                self._done[seed] = rows
        yield list(rows), True


def published_table_html(
    story: str, rows: Sequence[Mapping[str, Any]] | None, *, waiting: bool = False, fault: str = ""
) -> Html:
    """`rows` is None before they are requested."""
    if story not in PUBLISHED:
        return Html("")
    title = tag("h2", "Published table and predictions", class_="mv-h2")
    if not rows and not waiting and not fault:
        text = "Published figures of this example, predicted again. This takes some seconds."
        return tag("section", title, tag("p", text, class_="mv-soft"), button("Compute it", "table"))
    body = []
    for row in rows or ():
        change = row["difference_percent"]
        texts = ["–" if row[key] is None else f"{row[key]:.3f}" for key in ("published", "ours")]
        numbers = map(number, (*texts, "" if change is None else f"{change:+.2f} %"))
        note = tag("td", row["note"], class_="mv-soft")
        body.append(tag("tr", tag("td", row["case"]), tag("td", row["figure"]), *numbers, note))
    status = tag("p", fault, class_="mv-fault", role="alert") if fault else Html("")
    if waiting:
        status = tag("p", f"Computing the next figure, {len(body)} done …", class_="mv-phase", role="status")
    return tag("section", title, table(_TABLE_HEADS, body) if body else "", status)


_FIGURES = ("Published", "Ours", "Difference")
_TABLE_HEADS = (("Case", None), ("Figure", None), *((name, "mv-number") for name in _FIGURES), ("", None))
