"""Pipelines: each stage by itself, with what passes between them by hand."""

from typing import Any

import pytest
import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from memviz.predictor.group.process_group import MessageNeeded
from tests.predictor.group.ranks import as_rank, held, layers

WIDTH, ROWS, STAGES, PIECES = 128, 256, 4, 8
WEIGHTS, PIECE = 2 * WIDTH * WIDTH * 4, ROWS * WIDTH * 4


def run(rank: int, schedule: Any = Schedule1F1B, *, told: bool = True) -> tuple[int, int]:
    """Bytes at rest after a step, and at most in it."""
    with as_rank(rank, STAGES) as device:
        here = torch.device("cuda", rank)
        model = layers(WIDTH, 2).to(here)
        piece = torch.empty(ROWS, WIDTH, device="meta", requires_grad=True)
        shapes = {"input_args": (piece.detach() if rank == 0 else piece,), "output_args": (piece,)} if told else {}
        stage = PipelineStage(model, rank, STAGES, here, **shapes)
        steps = schedule(stage, PIECES, loss_fn=lambda out, target: (out - target).square().mean())
        batch = torch.randn(PIECES * ROWS, WIDTH, device=here)
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
        assert run(rank)[0] == 2 * WEIGHTS + sides * PIECES * PIECE


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
