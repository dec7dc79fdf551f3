"""Seeds build their models by themselves, many of them; this has each drawn on the card, as a measured run does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn

from memviz.runner.measure.accelerator import Accelerator
from memviz.runner.workloads.init_weights import drawn_on
from memviz.runner.workloads.model import FromConfiguration


@contextmanager
def all_drawn_on(accelerator: Accelerator) -> Iterator[None]:
    build = FromConfiguration.build

    def build_there(workload: FromConfiguration) -> nn.Module:
        return drawn_on(accelerator, partial(build, workload))

    FromConfiguration.build = build_there  # type: ignore[method-assign]
    try:
        yield
    finally:
        FromConfiguration.build = build  # type: ignore[method-assign]
