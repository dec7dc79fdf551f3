"""FSDP2: a rank's memory at rest, computed by hand, and the effect of its settings."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

from tests.predictor.group.ranks import as_rank, held, layers
from tests.predictor.rows import WORKSPACE

WIDTH, COUNT = 1024, 6
WEIGHTS = COUNT * WIDTH * WIDTH * 4


def sharded(model: nn.Sequential, **settings: Any) -> nn.Sequential:
    for layer in model:
        fully_shard(layer, **settings)
    fully_shard(model, **settings)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, width: int = WIDTH) -> None:
    model(torch.randn(16, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("rank", [0, 7])
def test_at_rest_is_one_part_of_weights_and_states(rank: int) -> None:
    with as_rank(rank, 8):
        model = sharded(layers(WIDTH, COUNT))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        assert held() == WEIGHTS // 8
        for _ in range(2):
            step(model, optimizer)
            assert held() == 3 * WEIGHTS // 8


@pytest.mark.slow
def test_what_cannot_be_parted_evenly_is_padded() -> None:
    """Ten rows among four: three, three, three and one; the weights are laid out as three everywhere."""
    for rank, rows in enumerate((3, 3, 3, 1)):
        with as_rank(rank, 4):
            model = sharded(nn.Sequential(nn.Linear(10, 10, bias=False)))
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            assert held() == 3 * 10 * 4
            step(model, optimizer, 10)
            assert held() == 3 * 10 * 4 + 2 * rows * 10 * 4


class Block(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(functional.gelu(super().forward(x)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_are_sharded_and_keep_less() -> None:
    kept = []
    for is_compiled in (False, True):
        with as_rank(0, 8, compiles=True) as device:
            model = nn.Sequential(*(Block(*layers(WIDTH, 1)) for _ in range(2))).to("cuda")
            for block in model if is_compiled else ():
                block.compile()
            sharded(model)
            for _ in range(2):
                out = model(torch.randn(4096, WIDTH, device="cuda"))
                kept.append(held())
                out.sum().backward()
                model.zero_grad()
                del out
                assert held() == 2 * WIDTH * WIDTH * 4 // 8
            assert not any("uncompiled" in sentence for sentence in device.unseen())
    # Of each block the product and the result, without what gelu returns.
    assert kept[0] - kept[2] == kept[1] - kept[3] == 2 * 4096 * WIDTH * 4


def peak(**settings: Any) -> int:
    with as_rank(0, 8) as device:
        model = sharded(layers(WIDTH, COUNT), **settings)
        optimizer = torch.optim.SGD(model.parameters())
        step(model, optimizer)
        torch.cuda.reset_peak_memory_stats()
        step(model, optimizer)
        return device.peak_requested_bytes


@pytest.mark.slow
def test_whole_layers_stay_where_they_are_not_parted_again_and_halves_are_gathered() -> None:
    plain, layer = peak(), WIDTH * WIDTH * 4
    # All of them at the end of forward, instead of the two or three that are worked with.
    assert 2 * layer <= peak(reshard_after_forward=False) - plain <= COUNT * layer
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    beside = 2 * WEIGHTS // 8 + 2 * WORKSPACE
    # Shards and their gradients stay as wide as they are.
    assert peak(mp_policy=policy) - beside < 0.6 * (plain - beside)


def test_offloaded_shards_are_on_the_host() -> None:
    with as_rank(0, 8):
        model = sharded(layers(WIDTH, COUNT), offload_policy=CPUOffloadPolicy())
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        step(model, optimizer)
        assert held() == 0
        assert {weight.device.type for weight in model.parameters()} == {"cpu"}


@pytest.mark.slow
def test_checkpoints_go_on_top() -> None:
    from torch.utils.checkpoint import checkpoint

    def highest(*, checkpointed: bool) -> int:
        with as_rank(0, 8) as device:
            model = sharded(nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))))
            x = torch.randn(1 << 14, 64, device="cuda", requires_grad=True)
            for block in model:
                x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
            x.sum().backward()
            return device.peak_requested_bytes

    kept = (1 << 14) * 64 * 4
    assert highest(checkpointed=False) - highest(checkpointed=True) > 6 * kept


class WaveBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sin().cos().sin().sigmoid()


@pytest.mark.filterwarnings("ignore")
def test_a_block_compiled_as_one_graph_is_gathered_outside_of_it() -> None:
    def highest(*, compiles: bool) -> int:
        with as_rank(0, 8, compiles=compiles) as device:
            model = nn.Sequential(*(WaveBlock() for _ in range(3)))
            for name, block in list(model.named_children()):
                model.register_module(name, torch.compile(block, fullgraph=True))
            # It is on the card already, as shards.
            sharded(model).to("cuda")
            model(torch.randn(1 << 14, 64, device="cuda")).sum().backward()
            return device.peak_requested_bytes

    assert highest(compiles=False) - highest(compiles=True) >= 2 * (1 << 14) * 64 * 4


# FSDP as it was first, and attention over a sequence that is parted among ranks.


NARROW, LAYERS = 256, 4
NARROW_WEIGHTS = LAYERS * NARROW * NARROW * 4


def test_the_first_fsdp_keeps_a_part_of_a_flat_weight() -> None:
    with as_rank(2, 4):
        wrapped = FullyShardedDataParallel(
            layers(NARROW, LAYERS).to("cuda"),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=torch.cuda.current_device(),
            use_orig_params=True,
        )
        assert held() == NARROW_WEIGHTS // 4
        optimizer = torch.optim.AdamW(wrapped.parameters(), foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            wrapped(torch.randn(8, NARROW, device="cuda")).sum().backward()
            optimizer.step()
            # Memory used on other streams is free once they are done; the next request for memory notices it.
            torch.cuda.synchronize()
            torch.empty(1, device="cuda")
            assert held() == 4 * NARROW_WEIGHTS // 4


def test_a_sequence_is_parted_and_put_together_again() -> None:
    rows, heads, wide = 4096, 4, 32
    with as_rank(0, 4) as device:
        mesh = dist.init_device_mesh("cuda", (4,))
        made = [torch.randn(1, heads, rows, wide, device="cuda") for _ in range(3)]
        before = device.peak_requested_bytes
        with torch.no_grad(), context_parallel(mesh, buffers=made, buffer_seq_dims=[2, 2, 2]):
            assert [tensor.shape[2] for tensor in made] == [rows // 4] * 3
            out = nn.functional.scaled_dot_product_attention(*made, is_causal=True)
            assert out.shape == (1, heads, rows // 4, wide)
        assert [tensor.shape[2] for tensor in made] == [rows] * 3
        assert device.peak_requested_bytes > before


@pytest.mark.parametrize("rank", [0, 3])
def test_a_checkpoint_of_all_ranks_is_saved_by_one_of_them(tmp_path: Path, rank: int) -> None:
    """The first rank gathers the state of all; here all have its state."""
    with as_rank(rank, 4):
        model = fully_shard(layers(NARROW, 2).to("cuda"))
        before = held()
        checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=tmp_path)
        got: list[str] = [""]
        dist.scatter_object_list(scatter_object_output_list=got, scatter_object_input_list=list("abcd"), src=0)
        assert got == ["abcd"[rank]]
        assert held() == before == 2 * NARROW * NARROW
