"""DistributedDataParallel: a rank's memory at rest, computed by hand."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from memviz.predictor.estimate import estimate_of
from tests.predictor.group.ranks import as_rank, held, layers

WIDTH, COUNT = 1024, 8
WEIGHTS = COUNT * WIDTH * WIDTH * 4


@pytest.mark.parametrize("as_views", [False, True])
def test_at_rest_are_weights_gradients_buckets_and_states(as_views: bool) -> None:
    with as_rank(1, 4) as device:
        model = layers(WIDTH, COUNT).to("cuda")
        wrapped = DistributedDataParallel(model, device_ids=[1], gradient_as_bucket_view=as_views)
        optimizer = torch.optim.AdamW(wrapped.parameters(), foreach=False)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(torch.randn(16, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
        # Gradients are views of their buckets, or separate from them.
        assert held() == (4 if as_views else 5) * WEIGHTS
        at_peak = estimate_of(device, device.finish()).by_category()
        assert at_peak["parameter"] == WEIGHTS and at_peak["optimizer_state"] == 2 * WEIGHTS
        assert at_peak["gradient"] == (1 if as_views else 2) * WEIGHTS


def test_without_synchronization_gradients_are_not_reduced() -> None:
    with as_rank(0, 2):
        model = DistributedDataParallel(layers(WIDTH, 1).to("cuda"))
        with model.no_sync():
            model(torch.randn(16, WIDTH, device="cuda")).sum().backward()
        assert held() == 3 * WIDTH * WIDTH * 4


def test_buffers_and_unused_weights_do_not_stop_it() -> None:
    with as_rank(0, 2):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)).to("cuda")
        model.unused = torch.nn.Linear(8, 8, device="cuda")
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        for _ in range(2):
            wrapped.module[:2](torch.randn(4, 8, device="cuda"))
            wrapped(torch.randn(4, 8, device="cuda"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_model_is_divided_by_its_buckets(whole: bool) -> None:
    with as_rank(0, 4, compiles=True) as device, torch._dynamo.config.patch(optimize_ddp=not whole):
        model = torch.compile(layers(WIDTH, COUNT).to("cuda"))
        wrapped = DistributedDataParallel(model, bucket_cap_mb=8)
        for _ in range(2):
            wrapped(torch.randn(16, WIDTH, device="cuda")).sum().backward()
        with torch.no_grad():
            assert wrapped(torch.randn(16, WIDTH, device="cuda")).shape == (16, WIDTH)
    assert any("buckets of DDP" in sentence for sentence in device.unseen()) != whole


# ZeroRedundancyOptimizer: each rank holds the states of its assigned weights.


NARROW, LAYERS, WORLD = 256, 6, 4
LAYER = NARROW * NARROW * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_states_at_rest_are_of_a_ranks_own_weights() -> None:
    # To import it warns.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    owned = []
    for rank in range(WORLD):
        with as_rank(rank, WORLD) as device:
            model = DistributedDataParallel(layers(NARROW, LAYERS).to("cuda"))
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, foreach=False)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(16, NARROW, device="cuda")).sum().backward()
                optimizer.step()
            # Weights, gradients and buckets of all.
            states = held() - 3 * LAYERS * LAYER
            owned.append(states // (2 * LAYER))
            assert states % (2 * LAYER) == 0
            assert device.layout.unlike == [[0, 1], [2, 3]]
    assert owned == [2, 2, 1, 1] and sum(owned) == LAYERS
