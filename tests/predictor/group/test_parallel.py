"""Memory of one rank, computed by hand: FSDP and its settings, DDP, tensor and sequence parallel, pipelines."""

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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from memviz.predictor.estimate import estimate_of
from memviz.predictor.group.process_group import MessageNeeded
from tests.predictor.group.ranks import as_rank, held, layers
from tests.predictor.rows import WORKSPACE

WIDTH, COUNT = 1024, 6
WEIGHTS = COUNT * WIDTH * WIDTH * 4
NARROW, LAYERS = 256, 6
NARROW_WEIGHTS = LAYERS * NARROW * NARROW * 4


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


@pytest.mark.slow
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


WORLD, LAYER = 4, NARROW * NARROW * 4


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


ROWS = 64


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(NARROW)
        self.wide = nn.Linear(NARROW, 4 * NARROW, bias=False)
        self.narrow = nn.Linear(4 * NARROW, NARROW, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(self.norm(x)).relu())


def parted(mesh: dist.DeviceMesh) -> FeedForward:
    with torch.device("meta"):
        block = FeedForward()
    plan = {
        "norm": SequenceParallel(),
        "wide": ColwiseParallel(input_layouts=Shard(1)),
        "narrow": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(block, mesh, plan)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("data", [1, 2])
def test_at_rest_is_a_part_of_the_weights(data: int) -> None:
    with as_rank(3, 8):
        mesh = dist.init_device_mesh("cuda", (data, 8 // data), mesh_dim_names=("data", "tensor"))
        block = parted(mesh["tensor"])
        if data > 1:
            fully_shard(block, mesh=mesh["data"])
        block.to_empty(device="cuda")
        weights = 2 * 4 * NARROW * NARROW * 4 // 8 + NARROW * 4 // data
        assert held() == weights
        optimizer = torch.optim.AdamW(block.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            out = block(torch.randn(1, ROWS // (8 // data), NARROW, device="cuda"))
            out.sum().backward()
            del out
            nn.utils.clip_grad_norm_(block.parameters(), 1.0)
            optimizer.step()
            # The count of steps is on the host.
            assert held() == 4 * weights


def test_activations_of_a_sequence_are_parted_too() -> None:
    def highest(world_size: int) -> int:
        with as_rank(0, world_size) as device:
            block = parted(dist.init_device_mesh("cuda", (world_size,))).to_empty(device="cuda")
            before = held()
            block(torch.randn(1, (1 << 14) // world_size, NARROW, device="cuda")).sum().backward()
            return device.peak_requested_bytes - before

    assert highest(8) - 2 * WORKSPACE < (highest(2) - 2 * WORKSPACE) / 2


def test_gradients_of_an_embedding_by_rows_are_whole() -> None:
    """So it is on two real processes too: torch's rule for its backward knows no rows."""
    with as_rank(0, 4):
        mesh = dist.init_device_mesh("cuda", (4,))
        model = nn.Sequential(nn.Embedding(32, 8, device="cuda"))
        plan = {"0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))}
        parallelize_module(model, mesh, plan)
        model(torch.zeros(1, 16, dtype=torch.long, device="cuda")).sum().backward()
        gradient = model[0].weight.grad
        assert gradient is not None and gradient.placements == (Replicate(),)
        assert held() == 32 * 8 * 4 // 4 + 32 * 8 * 4


# Pipelines: each stage by itself, with what passes between them by hand.


STAGE_WIDTH, PIECE_ROWS, STAGES, PIECES = 128, 256, 4, 8
STAGE_WEIGHTS, PIECE = 2 * STAGE_WIDTH * STAGE_WIDTH * 4, PIECE_ROWS * STAGE_WIDTH * 4


def run(rank: int, schedule: Any = Schedule1F1B, *, told: bool = True) -> tuple[int, int]:
    """Bytes at rest after a step, and at most in it."""
    with as_rank(rank, STAGES) as device:
        here = torch.device("cuda", rank)
        model = layers(STAGE_WIDTH, 2).to(here)
        piece = torch.empty(PIECE_ROWS, STAGE_WIDTH, device="meta", requires_grad=True)
        shapes = {"input_args": (piece.detach() if rank == 0 else piece,), "output_args": (piece,)} if told else {}
        stage = PipelineStage(model, rank, STAGES, here, **shapes)
        steps = schedule(stage, PIECES, loss_fn=lambda out, target: (out - target).square().mean())
        batch = torch.randn(PIECES * PIECE_ROWS, STAGE_WIDTH, device=here)
        given = {"args": (batch,)} if rank == 0 else {"target": batch} if rank == STAGES - 1 else {}
        for _ in range(2):
            model.zero_grad()
            steps.step(*given.get("args", ()), **({"target": batch} if "target" in given else {}))
        del batch, given
        assert device.layout.chains == {(1, STAGES)}
        return held(), device.peak_requested_bytes


@pytest.mark.slow
def test_at_rest_are_weights_gradients_and_what_comes_in() -> None:
    """One input piece per side and microbatch; the last stage keeps its outputs."""
    for rank, sides in enumerate((1, 2, 2, 2)):
        assert run(rank)[0] == 2 * STAGE_WEIGHTS + sides * PIECES * PIECE


def test_earlier_stages_hold_more_microbatches() -> None:
    second, third = run(1)[1], run(2)[1]
    # Three microbatches are under way on the second stage and two on the third; all eight without 1F1B.
    assert PIECE <= second - third <= 2 * PIECE
    assert 5 * PIECE <= run(1, ScheduleGPipe)[1] - second <= 10 * PIECE


@pytest.mark.parametrize("rank", [0, 2])
def test_without_shapes_a_stage_asks_the_one_before(rank: int) -> None:
    if rank == 0:
        assert run(0, told=False)[0] == run(0)[0]
        return
    with pytest.raises(MessageNeeded, match=r"message from rank 1.*input_args"):
        run(rank, told=False)
