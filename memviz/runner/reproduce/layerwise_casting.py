"""What Flux takes with its weights stored in fp8 and cast up layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from memviz.runner.pretend.device import PretendedDevice
from memviz.runner.reproduce.table import RELEASE, Row, Seed, Tell, card, gib
from memviz.runner.step import Step
from memviz.runner.workloads.flux import Flux
from optimizations.layerwise_casting import LayerwiseCasting

_OURS = "not published; the review of the pull request predicted it"


def _rows(tell: Tell) -> Iterator[Row]:
    cases = (
        ("weights in bf16", None, 22.743, ""),
        ("fp8, leaf by leaf, nothing skipped", LayerwiseCasting(skip=""), 11.697, ""),
        (
            "fp8, leaf by leaf, norms and projections skipped",
            LayerwiseCasting(),
            None,
            "the default of diffusers today",
        ),
        ("fp8, block by block", LayerwiseCasting(skip="", granularity="block"), None, ""),
        ("fp8, the model as a whole", LayerwiseCasting(skip="", granularity="model"), None, _OURS),
    )
    for case, casting, published, note in cases:
        tell(case)
        yield Row(case, "allocated GiB", published, gib(_allocated(casting)), note)


def _allocated(casting: LayerwiseCasting | None) -> int:
    workload = Flux()
    with torch.device("meta"):
        model = workload.build()
    with PretendedDevice(card(), release=RELEASE) as device:
        device.place(model)
        if casting is not None:
            casting.apply(model)
        device.empty_cache()
        device.reset_peak()
        Step(workload, device, model, device.inputs(workload), None)()
        return device.peak_allocated_bytes


SEED = Seed(
    "layerwise-casting",
    "Weights stored in fp8 and cast up layer by layer, Flux",
    "diffusers pull requests 10347 and 9177",
    "One forward pass of the transformer alone, after the weights were cast.",
    _rows,
)
