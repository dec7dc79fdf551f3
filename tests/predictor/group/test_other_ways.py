"""FSDP as it was first, and attention over a sequence that is parted among ranks."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.experimental import context_parallel

from tests.predictor.group.ranks import as_rank, held, layers

WIDTH, COUNT = 256, 4
WEIGHTS = COUNT * WIDTH * WIDTH * 4


def test_the_first_fsdp_keeps_a_part_of_a_flat_weight() -> None:
    with as_rank(2, 4):
        wrapped = FullyShardedDataParallel(
            layers(WIDTH, COUNT).to("cuda"),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=torch.cuda.current_device(),
            use_orig_params=True,
        )
        assert held() == WEIGHTS // 4
        optimizer = torch.optim.AdamW(wrapped.parameters(), foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            wrapped(torch.randn(8, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            # Memory used on other streams is free once they are done; the next request for memory notices it.
            torch.cuda.synchronize()
            torch.empty(1, device="cuda")
            assert held() == 4 * WEIGHTS // 4


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
        model = fully_shard(layers(WIDTH, 2).to("cuda"))
        before = held()
        checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=tmp_path)
        got: list[str] = [""]
        dist.scatter_object_list(scatter_object_output_list=got, scatter_object_input_list=list("abcd"), src=0)
        assert got == ["abcd"[rank]]
        assert held() == before == 2 * WIDTH * WIDTH
