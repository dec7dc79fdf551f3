"""List everything that can be run as plain values: for `--list`, and as a program for the page's form.

The page's first visit shows `listing.json`, since PyTorch takes seconds to import. Write it with
`python -m memviz.runner.listing --write`; a test compares it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from memviz.predictor.accuracy import is_like_recorded
from memviz.predictor.cards import CARD_KINDS
from memviz.runner.request import knobs_of
from memviz.runner.workloads import WORKLOADS
from memviz.runner.workloads.own import program_rows
from memviz.runner.workloads.transformers_model import ConfiguredModel
from optimizations import GROUPS, OPTIMIZATIONS


def listing(programs: Sequence[str] = ()) -> dict[str, Any]:
    """Return workloads, optimizations and cards; the functions of the owner's `programs` come before the presets."""
    shown = [(kind, group) for group, kinds in GROUPS.items() for kind in kinds]
    groups = {kind: (place, group) for place, (kind, group) in enumerate(shown)}
    return {
        "workloads": [
            *(row for file in programs for row in program_rows(file)),
            *(_workload_row(kind) for kind in WORKLOADS),
            _workload_row(ConfiguredModel),
        ],
        "optimizations": [
            {
                **_row(kind),
                "needs": kind.needs,
                "only_on": getattr(kind, "only_on", ""),
                "claim": kind().claim,
                "not_with": dict(kind.not_with),
                "needs_optimizer": getattr(kind, "needs_optimizer", False),
                "needs_cache": getattr(kind, "needs_cache", False),
                "group": groups[kind][1],
                # The place in the form.
                "offered": groups[kind][0],
            }
            for kind in OPTIMIZATIONS
        ],
        "cards": [
            # Unproven: no recording is of a card with the same figures that PyTorch's rules look at.
            {"name": card.name, "memory_bytes": card.memory_bytes, "kind": kind, "unproven": not is_like_recorded(card)}
            for kind, cards in CARD_KINDS.items()
            for card in cards
        ],
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _workload_row(kind: Any) -> dict[str, Any]:
    return {**_row(kind), "published": [asdict(model) for model in kind.published], "holds": kind.holds}


def _row(kind: Any) -> dict[str, Any]:
    knobs = [asdict(knob) for knob in knobs_of(kind)]
    return {"name": kind.name, "title": kind.title, "sentence": kind.sentence, "knobs": knobs}


def _write() -> None:
    # One line a row, so that a change of one is seen as one.
    parts = [f"{json.dumps(name)}: {_lines(rows)}" for name, rows in {**listing(), "device": None}.items()]
    Path(__file__).with_suffix(".json").write_text("{{\n{}\n}}\n".format(",\n".join(parts)), encoding="utf-8")


def _lines(rows: Any) -> str:
    return "[\n{}\n]".format(",\n".join(map(json.dumps, rows))) if isinstance(rows, list) else json.dumps(rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        _write()
    else:
        json.dump(listing(sys.argv[1:]), sys.stdout)
