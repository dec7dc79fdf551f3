"""Fit of a predicted run on a card."""

import pytest
import torch

from memviz.errors import MemvizError
from memviz.predictor.accuracy import fit_on
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.runner.execute import predict
from memviz.runner.plan import plan_of
from memviz.runner.request import Request

GiB = 1 << 30


def test_what_a_card_keeps_for_itself_is_set_aside_by_kind() -> None:
    found = {}
    for name in ("A100 40GB", "RTX 4090"):
        card = card_named(name)
        with PredictedDevice(card) as device:
            # A GiB less than the whole card: it fits with a context of 512 MiB, and not with that of an A100.
            held = torch.empty(card.memory_bytes - GiB, dtype=torch.uint8, device="cuda")
            found[name] = fit_on(device.finish(), card, device.highest_bytes().reserved)
            del held
    assert [each.fits for each in found.values()] == [False, True]
    assert [each.overhead_bytes for each in found.values()] == [1792 << 20, 512 << 20]
    for name, each in found.items():
        assert each.usable_bytes + each.overhead_bytes == card_named(name).memory_bytes


def test_what_is_reserved_on_a_card_is_after_the_cache_was_released() -> None:
    card = card_named("RTX 4090")
    with PredictedDevice(card) as device:
        for gibibytes in (12, 13):
            torch.empty(gibibytes * GiB, dtype=torch.uint8, device="cuda")
        # Both are cached without a limit; on the card the first is given back for the second.
        fit = fit_on(device.finish(), card, device.highest_bytes().reserved)
    assert (fit.fits, fit.peak_reserved_bytes) == (True, 13 * GiB)
    assert fit.too_much_bytes == 25 * GiB - fit.usable_bytes


@pytest.mark.slow
def test_a_choice_of_kernels_ends_with_its_run() -> None:
    """Many predictions share one process, and none may affect the next."""
    settings = {"layers": "1", "narrow": "4", "sequence": "256"}

    def peak(*optimizations: tuple[str, dict[str, str]], card: str = "RTX 4090") -> int:
        request = Request("gpt2", settings, optimizations, card=card)
        return predict(plan_of(request), lambda phase: None).run.peak_requested_bytes

    before = peak()
    math = peak(("attention_backend", {"backend": "math"}))
    assert math > before
    assert peak() == before
    with pytest.raises(MemvizError, match="No enabled attention kernel"):
        peak(("attention_backend", {"backend": "flash"}), card="T4")
    assert peak() == before
    assert torch.backends.cuda.math_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.slow
def test_segments_are_ordered_as_the_platforms_driver_does_and_the_interval_covers_both() -> None:
    """An H200 under Linux reserved 12,988 MiB."""
    peaks = {}
    for platform, other in (("linux", "Windows and WSL"), ("wsl", "Linux")):
        lists = (("flat_gradients", {"how": "list_then_cat"}),)
        request = Request("transformer_block", {}, lists, card="H200", torch="2.11", platform=platform, numerics=False)
        run = predict(plan_of(request), lambda phase: None).run
        assert run.expected_error is not None
        peaks[platform] = run.peak_reserved_bytes
        least, most = run.expected_error.reserved_interval(run.peak_reserved_bytes)
        there = run.peak_reserved_bytes + run.expected_error.elsewhere_bytes
        assert least < there < most
        assert run.expected_error.elsewhere == other
        peaks[other] = there
    assert peaks["linux"] == peaks["Linux"] == 12_988 << 20
    assert peaks["wsl"] == peaks["Windows and WSL"] == 10_166 << 20
