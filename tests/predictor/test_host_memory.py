"""Host memory of predicted programs, summed by hand: pinned in blocks of a power of two, pageable to the byte."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import memviz
from memviz.predictor.host import HostPeak
from optimizations.weight_offload import WeightOffload
from tests.traces import MiB

MB = 10**6


def layers(count: int) -> nn.Sequential:
    """4 MiB of weights each."""
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(count)))


def predicted(body: Any, **more: Any) -> HostPeak:
    with memviz.predicting(**more) as done:
        kept = body()
    del kept
    assert done.estimate is not None
    return done.estimate.host


def test_pinned_tensors_take_blocks_of_a_power_of_two() -> None:
    def body() -> Any:
        return [torch.empty(3 * MB, dtype=torch.uint8, pin_memory=True) for _ in range(2)]

    assert predicted(body) == HostPeak(0, 2 * 4 * MiB)


def test_torch_keeps_pinned_blocks_for_the_next_of_their_size() -> None:
    def body() -> Any:
        for _ in range(3):
            torch.empty(3 * MB, dtype=torch.uint8, pin_memory=True)
        return torch.empty(5 * MB, dtype=torch.uint8, pin_memory=True)

    assert predicted(body) == HostPeak(0, (4 + 8) * MiB)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [("pinned_max_round_threshold_mb:2", 2 * 3 * MB), ("pinned_max_cached_size_mb:2", 3 * MB)],
)
def test_settings_bound_what_is_rounded_and_kept(settings: str, kept: int) -> None:
    def body() -> Any:
        torch.empty(3 * MB, dtype=torch.uint8, pin_memory=True)
        first = torch.empty(3 * MB, dtype=torch.uint8, pin_memory=True)
        del first
        return torch.empty(3 * MB + 1, dtype=torch.uint8, pin_memory=True)

    assert predicted(body, settings=settings).bytes == kept + 1


def test_results_that_a_list_keeps_on_the_host_add_up() -> None:
    def body() -> Any:
        kept = [torch.ones(MiB, device="cuda").cpu() for _ in range(5)]
        views = [one[:10].view(2, 5) for one in kept]
        del kept[:2]
        return kept, views

    assert predicted(body) == HostPeak(5 * 4 * MiB, 0)


def test_a_model_leaves_the_host_as_it_moves_to_the_card() -> None:
    def body() -> Any:
        first = layers(3).cuda()
        second = layers(1)
        return first, second

    assert predicted(body) == HostPeak(3 * 4 * MiB, 0)


def test_states_of_an_optimizer_of_host_weights_are_on_the_host() -> None:
    def body() -> Any:
        model = layers(2)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        return optimizer

    # Weights, gradients and two moments; a counter for each weight, and the step's temporaries of one weight.
    held = 4 * 2 * 4 * MiB + 2 * 4
    assert held < predicted(body).pageable_bytes <= held + 3 * 4 * MiB


def test_weights_that_are_offloaded_are_pinned() -> None:
    def body() -> Any:
        model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(3))).cuda()
        WeightOffload("leaf").apply(model)
        with torch.no_grad():
            model(torch.ones(1, 1000, device="cuda"))
        return model

    # Blocks of 4 MiB for weights of 4 MB, more than the weights took before they moved to the card.
    assert predicted(body) == HostPeak(0, 3 * 4 * MiB)


def test_weights_that_wait_on_the_host_are_pinned_one_after_the_other() -> None:
    def body() -> Any:
        model = layers(3)
        WeightOffload("leaf", onload_device="cuda").apply(model)
        return model

    # The last of them is there twice.
    assert predicted(body) == HostPeak(4 * MiB, 3 * 4 * MiB)


def test_a_loader_with_pinned_memory_pins_its_batches() -> None:
    def body() -> Any:
        rows = torch.zeros(4, 3 * MB, dtype=torch.uint8)
        kept = [batch for (batch,) in DataLoader(TensorDataset(rows), batch_size=2, pin_memory=True)]
        return rows, kept

    peak = predicted(body)
    assert peak.pinned_bytes == 2 * 8 * MiB
    # The rows, and the batch that is pinned, which is stacked from copies of its rows.
    assert 12 * MB <= peak.pageable_bytes <= 12 * MB + 12 * MB


def test_a_checkpoint_that_is_loaded_counts_beside_the_model(tmp_path: Path) -> None:
    torch.save(layers(2).state_dict(), tmp_path / "model.pt")

    def body() -> Any:
        model = layers(2)
        model.load_state_dict(torch.load(tmp_path / "model.pt", map_location="cpu"))
        return model

    assert predicted(body) == HostPeak(2 * 2 * 4 * MiB, 0)


def test_equal_processes_share_a_machine() -> None:
    peak = HostPeak(3 * MiB, MiB)
    assert peak.fits(None, 8) is None
    assert peak.fits(32 * MiB, 8) is True and peak.fits(32 * MiB - 1, 8) is False
