"""ZeroRedundancyOptimizer: each rank holds the states of its assigned weights."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.predictor.group.ranks import as_rank, held, layers

WIDTH, COUNT, WORLD = 256, 6, 4
LAYER = WIDTH * WIDTH * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_states_at_rest_are_of_a_ranks_own_weights() -> None:
    # To import it warns.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    owned = []
    for rank in range(WORLD):
        with as_rank(rank, WORLD) as device:
            model = DistributedDataParallel(layers(WIDTH, COUNT).to("cuda"))
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, foreach=False)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(16, WIDTH, device="cuda")).sum().backward()
                optimizer.step()
            # Weights, gradients and buckets of all.
            states = held() - 3 * COUNT * LAYER
            owned.append(states // (2 * LAYER))
            assert states % (2 * LAYER) == 0
            assert device.layout.unlike == [[0, 1], [2, 3]]
    assert owned == [2, 2, 1, 1] and sum(owned) == COUNT
