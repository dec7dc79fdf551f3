"""Reserved memory of an LTX-Video training step under four strategies of checkpointing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from memviz.runner.predict.device import PretendedDevice
from memviz.runner.published.table import ON_A_GPU, RELEASE, Row, Seed, Tell, card, gib
from memviz.runner.step import Step
from memviz.runner.workloads.ltx_video import LtxVideo
from optimizations.checkpointing import Checkpointing

_WARM_UP = 2
_STEPS = 3
"""More of them change nothing: the gradients are there after the first."""
_CASES = (
    ("none", None, 26.719),
    ("every block", 1, 9.316),
    ("every 2nd block", 2, 17.658),
    ("every 4th block", 4, 22.188),
)
_COLD = 26.664
"""Of `none` in the table before its correction, when no backward pass had come before it; the others stayed."""
_PER_SECOND = {
    "none": (1.680, 0.582),
    "every block": (1.358, 1.339),
    "every 2nd block": (1.539, 1.522),
    "every 4th block": (1.658, 1.630),
}
"""Steps in a second, and those of the table before its correction."""


def _rows(tell: Tell) -> Iterator[Row]:
    """One process from first to last, as published: gradients are kept from case to case."""
    workload = LtxVideo(mode="training")
    with torch.device("meta"):
        model = workload.build()
    with PretendedDevice(card(), release=RELEASE) as device:
        device.place(model)
        device.empty_cache()
        device.reset_peak()
        yield Row("weights", "reserved GiB", 4.025, gib(device.peak_reserved_bytes))
        step = Step(workload, device, model, device.inputs(workload), None)
        tell("none, before any backward pass")
        for _ in range(_WARM_UP):
            step()
        yield Row(
            "none, not warmed up", "reserved GiB", _COLD, gib(device.peak_reserved_bytes), "before its correction"
        )
        for case, every, published in _CASES:
            tell(case)
            device.empty_cache()
            device.reset_peak()
            undo = Checkpointing(every=every).apply(model) if every else None
            for _ in range(_STEPS):
                step()
            yield Row(case, "reserved GiB", published, gib(device.peak_reserved_bytes))
            if undo is not None:
                undo()
    for case, (corrected, before) in _PER_SECOND.items():
        yield Row(case, "steps a second", corrected, None, ON_A_GPU)
        yield Row(f"{case}, before its correction", "steps a second", before, None, ON_A_GPU)


SEED = Seed(
    "checkpointing",
    "Checkpointing with a strategy of one's own, LTX-Video, one training step",
    "diffusers pull request 10611",
    "Steps with gradients that are never cleared; the cache is emptied before each case. Reserved, not live, memory.",
    _rows,
)
