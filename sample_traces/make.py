"""Makes the sample traces again: `python -m sample_traces.make [FOLDER]`.

No GPU is needed: memviz's predictor runs `train.py` on tensors without data and puts each of its allocations to the
model of PyTorch's allocator. Two things it does not do, and are done to its trace: a ring buffer that forgets, and a
device that is too small.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from memviz.allocator.replayer import CardMemory, Replayer
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Trace
from memviz.trace.strip import strip_paths
from memviz.trace.write import write_pickle
from memviz.units import bytes_text
from sample_traces.train import train

MiB = 1 << 20
CARD = card_named("A10")
RELEASE = (2, 13)
"""PyTorch release whose kernel choices are predicted, regardless of the installed one."""


@dataclass(frozen=True)
class Recipe:
    name: str
    about: str
    lengths: Sequence[int]
    """Sequence length of each step."""
    checkpointed: bool = False
    keep_last: int | None = None
    """Keep the last entries only, as a ring buffer of this size."""
    memory: int | None = None
    """Memory limit of the process in bytes."""


SAMPLES = (
    Recipe("training", "three steps, no activation checkpointing", [512] * 3),
    Recipe("training-checkpointed", "the same three steps, every block checkpointed", [512] * 3, checkpointed=True),
    Recipe("late-start", "five steps, of which the last 5,088 entries are left", [512] * 5, keep_last=5088),
    Recipe(
        "out-of-memory",
        "batches of changing length in 2,400 MiB, until one does not fit",
        [384, 512, 448, 576],
        memory=2400 * MiB,
    ),
)


def trace_of(sample: Recipe) -> Trace:
    facts = {  # The stacks of the samples hold line numbers of this file: lines that join or split change them.
        "what": f"A small GPT in float32 with AdamW: {sample.about}.",
        "again": "python -m sample_traces.make",
    }
    with PredictedDevice(CARD, release=RELEASE, platform="wsl") as device:
        trace = train(sample.lengths, device.finish, checkpointed=sample.checkpointed, step_range=device.phase)
    trace = replace(trace, about=replace(trace.about, facts={**trace.about.facts, **facts}))
    if sample.memory is not None:  # The predictor's own memory has no end.
        trace = _until_memory_ran_out(trace, sample.memory)
    if sample.keep_last is not None:
        trace = _last_entries(trace, sample.keep_last)
    return strip_paths(replace(trace, devices=(replace(trace.devices[0], host=None),)))  # The host holds little.


def _until_memory_ran_out(trace: Trace, memory: int) -> Trace:
    about = replace(trace.about, facts={**trace.about.facts, "memory": f"{bytes_text(memory)} for the process"})
    return replace(Replayer(trace).replay(card=CardMemory(memory, 0)).trace, about=about)


def _last_entries(trace: Trace, count: int) -> Trace:
    device = trace.devices[0]
    last: dict[str, Any] = {"events": _last_rows(device.events, count)}
    if device.event_labels is not None:
        last["event_labels"] = _last_rows(device.event_labels, count)
    return replace(trace, devices=(replace(device, **last),))


def _last_rows(columns: Any, count: int) -> Any:
    return replace(columns, **{name: column[-count:] for name, column in columns.columns()})


def write(sample: Recipe, folder: Path) -> Path:
    path = folder / f"{sample.name}.pickle.gz"
    packed = BytesIO()
    write_pickle(trace_of(sample), packed)
    # Without the time of writing, so that the same trace is the same file.
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return path


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for sample in SAMPLES:
        write(sample, target)
