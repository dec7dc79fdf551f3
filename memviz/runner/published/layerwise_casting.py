"""What Flux takes with its weights stored in fp8 and cast up layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from memviz.runner.output_check.difference import differences
from memviz.runner.output_check.flatten import flatten
from memviz.runner.predict.device import PretendedDevice
from memviz.runner.published.table import RELEASE, Row, Seed, Tell, card, gib
from memviz.runner.step import Step
from memviz.runner.workloads.flux import Flux
from optimizations.layerwise_casting import LayerwiseCasting

_PICTURES = "published as pictures alone; a small twin of Flux, real numbers on this processor"
_BEFORE = "published in 9177; 10347, which goes on from it, gives pictures and no figures"
_OURS = "not published; the review of the pull request predicted it"


def _rows(tell: Tell) -> Iterator[Row]:
    cases = (
        ("weights in bf16", None, 22.743, _BEFORE),
        ("fp8, leaf by leaf, nothing skipped", LayerwiseCasting(skip=""), 11.697, _BEFORE),
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
    tell("the outputs")
    for storage in ("float8_e4m3fn", "float8_e5m2"):
        for granularity in ("model", "block", "leaf"):
            casting = LayerwiseCasting(storage=storage, skip="", granularity=granularity)
            yield Row(f"{storage}, {granularity} by {granularity}", "relative L2", None, _apart(casting), _PICTURES)


def _apart(casting: LayerwiseCasting) -> float:
    """Outputs of a small twin on real numbers, against the same without casting."""
    twin = Flux().small()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(twin.seed)
        model, inputs = twin.build(), twin.inputs(torch.device("cpu"))
        whole = flatten(model(**inputs))
        casting.apply(model)
        found = differences(whole, flatten(model(**inputs)))
    return max(each.relative_l2 for each in found.values())


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
