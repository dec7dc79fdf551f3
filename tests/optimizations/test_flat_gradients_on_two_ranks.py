"""Two real processes over gloo, started once: the sums under DistributedDataParallel, and what is refused there."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from optimizations.flat_gradients import FlatGradients
from tests import forked
from tests.optimizations.two_ranks import RANKS, WRAPPED

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    program = str(Path(__file__).with_name("two_ranks.py"))
    ranks = [_started(program, rank, folder) for rank in range(RANKS)]
    try:
        # A rank that fails leaves the other waiting for it.
        while any(each.poll() is None for each in ranks) and not any(each.poll() for each in ranks):
            time.sleep(0.05)
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    assert [each.returncode for each in ranks] == [0] * RANKS, (folder / "0.log").read_text()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def _started(program: str, rank: int, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{rank}.log").open("wb") as log:
        return forked.start([program, str(rank), str(folder)], of=forked.with_torch, stdout=log, stderr=log)


@pytest.mark.slow
def test_the_sum_is_the_mean_of_the_ranks_plain_sums_to_the_bit(found):
    for each in found:
        cases = each["is_the_mean_of_plain_sums"]
        assert len(cases) == len(WRAPPED) * 2 * 3 * 2
        assert [case for case, same in cases.items() if not same] == []


@pytest.mark.slow
def test_training_under_the_wrapper_goes_on_as_without_flat_gradients(found):
    """Buffers are sent around when the wrapper would have, and weights are the same to the bit."""
    for each in found:
        assert set(map(tuple, each["trains_as_the_wrapper_alone"].values())) == {()}


@pytest.mark.slow
def test_undone_the_wrapper_reduces_by_itself_again(found):
    for each in found:
        assert set(each["undone_the_wrapper_reduces_as_ever"].values()) == {True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("inside the wrapper", "apply FlatGradients to the wrapper"),
        ("around the wrapper", "apply FlatGradients to that wrapper"),
        ("a hook", "has a communication hook"),
        ("a built-in hook", "has a communication hook"),
        ("the last under no_sync", "this rank's alone: leave no_sync for the last"),
        ("static_graph", "a static graph, whose first step it must reduce itself"),
        ("a graph that becomes static", "a static graph"),
        ("join", "unlike numbers of batches"),
    ],
)
def test_what_the_wrapper_does_otherwise_is_refused(found, case, words):
    assert all(words in each["refused"][case] for each in found)
    assert all(each["refused"]["and then goes on"] is True for each in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("fully_shard", "sharded or replicated by FSDP or replicate"),
        ("a shard", "weight is a shard of a parameter"),
        ("fully_shard afterwards, the model", "sharded or replicated by FSDP"),
        ("fully_shard afterwards, a part", "under FSDP leave this out"),
        ("replicate", "sharded or replicated by FSDP or replicate"),
        ("replicate afterwards", "sharded or replicated by FSDP or replicate"),
    ],
)
def test_what_is_sharded_is_refused_before_a_gradient_is_lost(found, case, words):
    assert all(words in each["refused_under_fsdp"][case] for each in found)


def test_fsdp_1_is_refused_by_its_name_and_by_its_parameters():
    """It needs an accelerator, so it stands here by what it leaves on a model."""

    class FullyShardedDataParallel(nn.Linear):
        pass

    with pytest.raises(ValueError, match="in FSDP 1 by MixedPrecision"):
        FlatGradients().apply(nn.Sequential(FullyShardedDataParallel(2, 2)))
    flattened = nn.Linear(2, 2)
    flattened.weight._fsdp_flattened = True
    with pytest.raises(ValueError, match="weight is a shard of a parameter"):
        FlatGradients().apply(flattened)


def test_parameters_replaced_in_the_middle_of_a_step_are_told_and_the_next_step_is_whole():
    model = nn.Linear(4, 4)
    FlatGradients(micro_batches=2).apply(model)
    model(torch.ones(1, 4)).sum().backward()
    model.weight = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(RuntimeError, match="Parameters were replaced"):
        model(torch.ones(1, 4)).sum().backward()
    model.zero_grad()
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((4, 4), 2.0))
