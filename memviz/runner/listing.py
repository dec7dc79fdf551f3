"""What there is to run, as plain values: for `--list`, and for the page's form as a program of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch

from memviz.runner.knobs import described
from memviz.runner.predict.cards import CARDS
from memviz.runner.workloads import WORKLOADS
from optimizations import OPTIMIZATIONS


def listing() -> dict[str, Any]:
    return {
        "workloads": [_row(each) for each in WORKLOADS],
        "optimizations": [
            {**_row(each), "needs": each.needs, "claim": each().claim, "not_with": dict(each.not_with)}
            for each in OPTIMIZATIONS
        ],
        "cards": [{"name": each.name, "memory_bytes": each.memory_bytes} for each in CARDS],
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _row(kind: Any) -> dict[str, Any]:
    knobs = [asdict(each) for each in described(kind)]
    return {"name": kind.name, "title": kind.title, "sentence": kind.sentence, "knobs": knobs}


if __name__ == "__main__":
    json.dump(listing(), sys.stdout)
