"""Makes the sample traces again: `python -m sample_traces.make [FOLDER]`.

No GPU and no PyTorch run. `training` says what a small one allocates, memviz's own model of PyTorch's
allocator says where it lies, and `recorder` writes it down as a snapshot. So they are synthetic, and say so.
"""

from __future__ import annotations

import base64
import gzip
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memviz.allocator.device import OutOfMemory
from sample_traces.recorder import Label, Recorder
from sample_traces.training import train
from sample_traces.transformer import Shape

MiB = 1 << 20
SEED = 20261120
START_US = 1_795_168_800_000_000
SMALL = Shape()


@dataclass(frozen=True)
class Sample:
    name: str
    about: str
    shapes: Sequence[Shape]
    checkpointed: bool = False
    keep_last: int | None = None
    """What a ring buffer of this many entries would still hold."""
    memory: int | None = None
    """What the process can have of the device."""


SAMPLES = (
    Sample("training", "three steps, no activation checkpointing", [SMALL] * 3),
    Sample("training-checkpointed", "the same three steps, every block checkpointed", [SMALL] * 3, checkpointed=True),
    Sample("late-start", "five steps, of which the last 4,600 entries are left", [SMALL] * 5, keep_last=4600),
    Sample(
        "out-of-memory",
        "batches of changing length on a small device, until one does not fit",
        [replace(SMALL, sequence=length) for length in (384, 512, 448, 576)],
        memory=2400 * MiB,
    ),
)


def snapshot(sample: Sample) -> dict[str, Any]:
    run = Recorder(memory=sample.memory, seed=SEED, start_us=START_US)
    with suppress(OutOfMemory):
        train(run, sample.shapes, checkpointed=sample.checkpointed)
    first = max(len(run.events) - sample.keep_last, 0) if sample.keep_last else 0
    return {
        "segments": run.segments,
        "device_traces": [run.events[first:]],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "roundup_power2_divisions": {str(1 << slot): 0 for slot in range(16)},
        },
        "external_annotations": run.annotations,
        "memviz": _own_labels(sample, run.labels[first:], run.block_labels),
    }


def _own_labels(sample: Sample, events: Sequence[Label], blocks: Sequence[Label]) -> dict[str, Any]:
    modules = sorted({"", *(label.module for label in (*events, *blocks))})
    facts = {
        "synthetic": "Made by sample_traces/make.py. No GPU and no PyTorch ran.",
        "what": f"A small GPT in float32 with AdamW: {sample.about}.",
        "again": "python -m sample_traces.make",
    }
    device = {"kind": "gpu", "device": 0, "events": _columns(events, modules), "blocks": _columns(blocks, modules)}
    return {
        "version": 1,
        "about": {"origin": "predicted", "on": "", "facts": facts},
        "modules": modules,
        "devices": [device],
    }


def _columns(rows: Sequence[Label], modules: list[str]) -> dict[str, str]:
    number = {module: place for place, module in enumerate(modules)}
    columns = {
        "category": bytes(row.category for row in rows),
        "module": b"".join(number[row.module].to_bytes(4, "little") for row in rows),
        "phase": bytes(row.phase for row in rows),
    }
    return {name: base64.b64encode(column).decode() for name, column in columns.items()}


def write(sample: Sample, folder: Path) -> Path:
    path = folder / f"{sample.name}.pickle.gz"
    # Without the time of writing, so that the same trace is the same file.
    path.write_bytes(gzip.compress(pickle.dumps(snapshot(sample), protocol=4), mtime=0))
    return path


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for each in SAMPLES:
        write(each, target)
