"""Generators of the card, their seeds and states."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100


def test_seeds_are_kept_wherever_they_are_said() -> None:
    with PredictedDevice(A100):
        torch.cuda.manual_seed(7)
        assert torch.cuda.initial_seed() == torch.cuda.default_generators[0].initial_seed() == 7
        torch.cuda.manual_seed_all(8)
        assert torch.cuda.initial_seed() == 8
        torch.manual_seed(9)
        assert torch.cuda.initial_seed() == torch.initial_seed() == 9
        torch.cuda.seed()
        assert torch.cuda.initial_seed() != 9


def test_states_come_back() -> None:
    with PredictedDevice(A100) as device:
        torch.cuda.manual_seed(5)
        state = torch.cuda.get_rng_state()
        assert (state.device.type, state.dtype, state.numel()) == ("cpu", torch.uint8, 16)
        with torch.random.fork_rng(devices=[0]):
            torch.cuda.manual_seed(6)
        assert torch.cuda.initial_seed() == 5
        torch.cuda.manual_seed(6)
        torch.cuda.set_rng_state_all([state])
        assert torch.cuda.initial_seed() == 5 and torch.equal(torch.cuda.get_rng_state("cuda:0"), state)
        with pytest.raises(RuntimeError, match="wrong size"):
            torch.cuda.set_rng_state(state[:3])
        assert device.peak_allocated_bytes == 0


def test_a_generator_draws_on_its_own_device() -> None:
    with PredictedDevice(A100) as device:
        ours, hosts = torch.Generator(device="cuda").manual_seed(3), torch.Generator().manual_seed(3)
        assert ours.device == torch.device("cuda", 0) and hosts.device == torch.device("cpu")
        assert isinstance(ours, torch.Generator) and isinstance(hosts, torch.Generator)
        made = [
            torch.randn(128, device="cuda", generator=ours),
            torch.randint(0, 5, (64,), device="cuda", generator=ours),
            torch.randperm(64, device="cuda", generator=ours),
            torch.empty(128, device="cuda").normal_(generator=ours),
        ]
        assert device.allocated_bytes == 4 * 512 and {each.device.type for each in made} == {"cuda"}
        assert "values unknown" in repr(made[0])
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            torch.randn(3, device="cuda", generator=hosts)
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
            torch.randint(0, 5, (3,), generator=ours)
        twin = pickle.loads(pickle.dumps(ours))
        assert twin.initial_seed() == copy.copy(ours).initial_seed() == 3


def test_a_generator_of_the_card_shuffles_data_in_their_order_and_that_is_said() -> None:
    with PredictedDevice(A100) as device:
        torch.set_default_device("cuda")
        data = TensorDataset(torch.arange(32))
        loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator(device="cuda"))
        seen = [batch.tolist() for (batch,) in loader]
        assert all(batch.is_cuda for (batch,) in loader)
    assert sum(seen, []) == list(range(32))
    assert [said for said in device.unseen() if "keep their order" in said]


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_weights_may_be_drawn_within_bounds(where: str) -> None:
    with PredictedDevice(A100):
        weight = torch.empty(1024, 1024, device=where)
        assert nn.init.trunc_normal_(weight, std=0.02) is weight


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_keeps_the_state_of_the_card(reentrant: bool) -> None:
    seeds = []

    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seeds.append(torch.cuda.initial_seed())
            torch.cuda.manual_seed(2)
            return nn.functional.dropout(x, 0.5)

    with PredictedDevice(A100):
        torch.cuda.manual_seed(1)
        x = torch.zeros(8, 64, device="cuda", requires_grad=True)
        checkpoint(Asks(), x, use_reentrant=reentrant).sum().backward()
    assert seeds == [1, 1]
