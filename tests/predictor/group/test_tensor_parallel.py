"""Tensor and sequence parallel by DTensor: a rank's memory, computed by hand."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from memviz.predictor.group.process_group import MessageNeeded
from tests.predictor.group.ranks import as_rank, held, layers
from tests.predictor.rows import WORKSPACE

WIDTH, ROWS = 256, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(self.norm(x)).relu())


def parted(mesh: dist.DeviceMesh) -> Block:
    with torch.device("meta"):
        block = Block()
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
        weights = 2 * 4 * WIDTH * WIDTH * 4 // 8 + WIDTH * 4 // data
        assert held() == weights
        optimizer = torch.optim.AdamW(block.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            out = block(torch.randn(1, ROWS // (8 // data), WIDTH, device="cuda"))
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
            block(torch.randn(1, (1 << 14) // world_size, WIDTH, device="cuda")).sum().backward()
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
