"""What summing the gradients of micro-batches costs in reserved memory, three ways."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from memviz.runner.pretend.device import PretendedDevice
from memviz.runner.reproduce.table import RELEASE, Row, Seed, Tell, card, gib
from memviz.runner.step import Step
from memviz.runner.workloads.transformer_block import TransformerBlock
from optimizations.flat_gradients import FlatGradients

_CASES = (
    ("one cat a micro-batch (baseline)", "plain", 15.1),
    ("a list, then one cat", "list_then_cat", 17.4),
    ("one flat buffer", "flat", 15.1),
)
_OTHER_MODEL = "another model: its size was not published, so only the pattern can be compared"


def _rows(tell: Tell) -> Iterator[Row]:
    found: dict[str, tuple[int, int]] = {}
    for case, how, published in _CASES:
        tell(case)
        found[how] = _reserved(how)
        yield Row(case, "reserved GiB", published, gib(found[how][0]), _OTHER_MODEL)
    base, parameters = found["plain"]
    for case, how, _ in _CASES[1:]:
        more = (found[how][0] - base) / parameters
        yield Row(case, "bytes a parameter more reserved than the baseline", None, more)


def _reserved(how: str) -> tuple[int, int]:
    workload = TransformerBlock()
    with torch.device("meta"):
        model = workload.build()
    count = sum(each.numel() for each in model.parameters())
    with PretendedDevice(card(), release=RELEASE) as device:
        device.place(model)
        FlatGradients(how=how, micro_batches=workload.micro_batches).apply(model)
        device.empty_cache()
        device.reset_peak()
        Step(workload, device, model, device.inputs(workload), None)()
        return device.peak_reserved_bytes, count


SEED = Seed(
    "flat-gradients",
    "Gradients of micro-batches added up in one flat fp32 buffer",
    "fairscale pull request 1186",
    "One step of four micro-batches on one rank. What is reserved: the doubled gradients are live only for a moment.",
    _rows,
)
