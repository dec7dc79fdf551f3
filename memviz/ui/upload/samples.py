"""The samples that the page offers: questions that our own sample traces answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_INSTALLED = Path(__file__).parents[2] / "sample_traces"
SAMPLES = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[3] / "sample_traces"
"""In a wheel they lie within memviz, in a checkout beside it."""


@dataclass(frozen=True)
class OfferedSample:
    name: str
    title: str
    text: str
    files: tuple[str, ...]
    tab: str


OFFERED_SAMPLES = (
    OfferedSample(
        "training",
        "What is the peak made of?",
        "Three training steps of a small GPT, recorded from the first byte.",
        ("training.pickle.gz",),
        "explore",
    ),
    OfferedSample(
        "checkpointing",
        "What does checkpointing save?",
        "The same steps without and with activation checkpointing, on one scale.",
        ("training.pickle.gz", "training-checkpointed.pickle.gz"),
        "compare",
    ),
    OfferedSample(
        "out-of-memory",
        "Why did it run out of memory?",
        "144 MiB did not fit, although more than that was reserved and free.",
        ("out-of-memory.pickle.gz",),
        "what-if",
    ),
    OfferedSample(
        "late-start",
        "What if recording started late?",
        "What was live before the first event is still counted.",
        ("late-start.pickle.gz",),
        "explore",
    ),
)


def sample_named(name: str) -> OfferedSample | None:
    return next((sample for sample in OFFERED_SAMPLES if sample.name == name), None)
