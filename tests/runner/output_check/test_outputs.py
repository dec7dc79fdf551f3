"""Where the outputs of a run are compared: on the device that it was measured on, whichever that is."""

from __future__ import annotations

import pytest
import torch

from memviz.runner.measure.accelerator import Accelerator
from memviz.runner.output_check import outputs
from memviz.runner.output_check.runs import forked, random_state, set_random_state


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_outputs_are_compared_on_the_device_that_was_measured(monkeypatch, kind):
    monkeypatch.setattr(outputs, "find_accelerator", lambda: Accelerator(kind, None))
    assert outputs.place_of("measured").type == kind
    assert outputs.place_of("predicted").type == "cpu"


def test_a_device_with_a_generator_of_its_own_is_forked_and_set_whatever_it_is_called(monkeypatch):
    """`torch.xpu` as torch names it; the generator behind it is that of the tests."""
    states = [torch.tensor([1])]

    class Xpu:
        get_rng_state = staticmethod(lambda _device=None: states[-1])
        set_rng_state = staticmethod(lambda state, _device=None: states.append(state))
        device_count = staticmethod(lambda: 1)

    monkeypatch.setattr(torch, "xpu", Xpu)
    device = torch.device("xpu", 0)
    before = random_state(device)
    with forked(device):
        set_random_state([before[0], torch.tensor([2])], device)
        assert states[-1].tolist() == [2]
    assert states[-1].tolist() == [1]
