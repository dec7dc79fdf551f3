"""A real card in the place of the predicted one, for programs that were written for that."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memviz.runner.measure.accelerator import Accelerator
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.workloads.workload import scale_weights


def on_the_card(accelerator: Accelerator) -> Any:
    """Called as `PredictedDevice` is; the card and the release are those that are there."""

    class OnTheCard(CudaDevice):
        def __init__(self, _card: object, *, release: object = None) -> None:
            super().__init__(accelerator=accelerator, record=False)

        def place(self, model: nn.Module) -> nn.Module:
            give_numbers(model)
            return super().place(model)

    return OnTheCard


def give_numbers(model: nn.Module) -> None:
    """Modules that were made without data get some, in host memory."""
    with torch.no_grad():
        for module in model.modules():
            own = list(module.parameters(recurse=False))
            if any(each.is_meta for each in own):
                module.to_empty(device="cpu", recurse=False)
                for parameter in module.parameters(recurse=False):
                    parameter.zero_()
                scale_weights(module)
