"""A predicted trace as rows that tests can compare whole."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from memviz.predictor.cards import KnownCard, card_named
from memviz.trace.model import Action, Category, Phase, Trace

A100 = card_named("A100 40GB")
"""Its cuBLAS workspace is 8.125 MiB."""
WORKSPACE = 8_519_680
H100: KnownCard = card_named("H100")


class Row(NamedTuple):
    operator: str
    size: int
    category: Category
    phase: Phase
    module: str


def allocations(trace: Trace) -> list[Row]:
    device = trace.devices[0]
    events, labels = device.events, device.event_labels
    assert labels is not None
    return [
        Row(
            next(names(trace, int(events.stack[at]))).removeprefix("at::_ops::").removesuffix("::call"),
            int(events.size[at]),
            Category(int(labels.category[at])),
            Phase(int(labels.phase[at])),
            trace.strings[labels.module[at]],
        )
        for at in np.flatnonzero(events.action == Action.ALLOC).tolist()
    ]


def names(trace: Trace, stack: int) -> Iterator[str]:
    for frame in trace.stacks.of(stack):
        yield trace.strings[trace.stacks.frames.name[frame]]


def sizes(trace: Trace) -> list[int]:
    events = trace.devices[0].events
    return events.size[events.action == Action.ALLOC].tolist()
