"""What summing the gradients of micro-batches costs in reserved memory, three ways."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from memviz.runner.output_check.compare import adamw
from memviz.runner.output_check.runs import Step as Repeatable
from memviz.runner.predict.device import PretendedDevice
from memviz.runner.published.table import ON_A_GPU, RELEASE, Row, Seed, Tell, card, gib
from memviz.runner.step import Step
from memviz.runner.workloads.transformer_block import TransformerBlock
from optimizations.flat_gradients import FlatGradients

_CASES = (
    ("one cat a micro-batch (baseline)", "plain", 15.1),
    ("a list, then one cat", "list_then_cat", 17.4),
    ("one flat buffer", "flat", 15.1),
)
_LOSS = 10.8708400726318359
_STEPS = 5
_OTHER_LOSS = "a small model of ours: what is compared is that both ways give the same to the last digit"
_OTHER_MODEL = "another model: its size was not published, so only the pattern can be compared"


def _rows(tell: Tell) -> Iterator[Row]:
    found: dict[str, tuple[int, int]] = {}
    for case, how, published in _CASES:
        tell(case)
        found[how] = _reserved(how)
        yield Row(case, "reserved GiB", published, gib(found[how][0]), _OTHER_MODEL, same_model=False)
    less = 100 * (found["flat"][0] / found["list_then_cat"][0] - 1)
    yield Row("one flat buffer against the list", "% reserved more", -13.2, less, _OTHER_MODEL, same_model=False)
    base, parameters = found["plain"]
    for case, how, _ in _CASES[1:]:
        more = (found[how][0] - base) / parameters
        yield Row(case, "bytes a parameter more reserved than the baseline", None, more)
    tell("losses")
    for case, how in ((_CASES[0][0], "plain"), (_CASES[2][0], "flat")):
        yield Row(case, "average loss", _LOSS, _average_loss(how), _OTHER_LOSS, same_model=False)
    yield Row(_CASES[0][0], "TFLOP/s", 382.0, None, ON_A_GPU)
    yield Row(_CASES[2][0], "TFLOP/s", 440.0, None, ON_A_GPU)


def _average_loss(how: str) -> float:
    """Of five steps on real numbers, as published."""
    twin = TransformerBlock().small()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(twin.seed)
        model = twin.build()
    inputs = [twin.inputs(torch.device("cpu"), number) for number in range(twin.micro_batches)]
    FlatGradients(how=how, micro_batches=len(inputs)).apply(model)
    losses = Repeatable(inputs, True, twin.loss).losses(model, _STEPS, adamw, None)
    return sum(losses) / len(losses)


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
