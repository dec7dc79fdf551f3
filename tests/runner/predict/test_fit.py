"""Whether a run fits on a card."""

from __future__ import annotations

import torch

from memviz.runner.predict.cards import card_named
from memviz.runner.predict.device import PretendedDevice
from memviz.runner.predict.fit import fit_on

GiB = 1 << 30


def test_what_a_card_keeps_for_itself_is_set_aside_by_kind() -> None:
    found = {}
    for name in ("A100 40GB", "RTX 4090"):
        card = card_named(name)
        with PretendedDevice(card) as device:
            # A GiB less than the whole card: it fits beside 512 MiB, and not beside the context of an A100.
            held = torch.empty(card.memory_bytes - GiB, dtype=torch.uint8, device="cuda")
            found[name] = fit_on(device.finish(), card, device.highest_reserved_bytes)
            del held
    assert [each.fits for each in found.values()] == [False, True]
    assert [each.overhead_bytes for each in found.values()] == [1792 << 20, 512 << 20]
    for name, each in found.items():
        assert each.usable_bytes + each.overhead_bytes == card_named(name).memory_bytes
