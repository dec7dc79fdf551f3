"""Traces with known purposes: every workload, predicted in training and inference, each in its own process."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memviz.trace.load import load_trace
from tests.purposes.stripped import Known, without_labels

_LIMIT_S = 600
TRAINED = ("feed_forward", "ltx_video", "flux", "cogvideox", "gpt2", "llama")
_CHECKPOINTING = ("--with", "checkpointing")


@dataclass(frozen=True)
class Made:
    name: str
    arguments: tuple[str, ...]


def orders() -> Iterator[Made]:
    for workload in TRAINED:
        training = (workload, "--set", "mode=training")
        yield Made(f"{workload} inference", (workload, "--set", "mode=inference"))
        yield Made(f"{workload} training", training)
        yield Made(f"{workload} AdamW", (*training, "--optimizer", "adamw"))
    for workload in ("gpt2", "llama"):
        yield Made(f"{workload} with cache", (workload, "--set", "mode=inference", "--set", "cache=true"))
    yield Made("gpt2 SGD", ("gpt2", "--optimizer", "sgd"))
    yield Made("gpt2 AdamW in a loop", ("gpt2", "--optimizer", "adamw-for-loop"))
    yield Made("llama fused AdamW", ("llama", "--optimizer", "adamw-fused"))
    yield Made("gpt2 micro-batches", ("gpt2", "--optimizer", "adamw", "--set", "micro_batches=2"))
    yield Made("gpt2 checkpointed", ("gpt2", "--optimizer", "adamw", *_CHECKPOINTING))
    yield Made("ltx_video checkpointed", ("ltx_video", *_CHECKPOINTING))
    yield Made("transformer_block", ("transformer_block",))
    yield Made("transformer_block AdamW", ("transformer_block", "--optimizer", "adamw"))


def predicted(made: Made, folder: Path) -> Known:
    """Predict once, and read the file in the folder from then on."""
    path = folder / f"{made.name.replace(' ', '-')}.pickle"
    if not path.exists():
        command = [sys.executable, "-m", "memviz", "run", *made.arguments, "--on", "predict", "--no-numerics"]
        subprocess.run([*command, "--steps", "2", "-o", str(path)], check=True, capture_output=True, timeout=_LIMIT_S)
    trace = load_trace(path)
    return without_labels(made.name, trace, trace.devices[0])
