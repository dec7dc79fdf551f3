"""Pinned memory of the host, as torch's own allocator for it takes blocks."""

from __future__ import annotations

import torch

from memviz.runner.predict.cards import card_named
from memviz.runner.predict.predicted_device import PredictedDevice


def test_blocks_are_powers_of_two_and_stay_for_others_of_their_size() -> None:
    with PredictedDevice(card_named("RTX 4090")) as device:
        assert device.pinned_host_bytes == 0
        first = torch.empty(3000, dtype=torch.uint8, pin_memory=True)
        assert device.pinned_host_bytes == 4096
        del first
        second = torch.empty(2100, dtype=torch.uint8).pin_memory()
        assert device.pinned_host_bytes == 4096
        third = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
        assert device.pinned_host_bytes == 2 * 4096
        del second, third
        fourth = torch.empty(4097, dtype=torch.uint8, pin_memory=True)
        assert fourth.is_pinned() and device.pinned_host_bytes == 2 * 4096 + 8192
