"""ZeRO by deepspeed: what one rank of four keeps on the card between steps, by hand. Arguments: a stage, offloads."""

import sys
from typing import Any

import deepspeed
import torch
from torch import nn

WIDTH, LAYERS, RANKS, BUCKET = 512, 8, 4, 300_000
COUNT = LAYERS * WIDTH * WIDTH
OVERFLOW, NORM = 4, 4
"""The overflow flag of FusedAdam, and the gradient norm that an engine keeps."""
stage, offload = int(sys.argv[1]), sys.argv[2:]


def requested() -> int:
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def by_hand() -> tuple[int, int]:
    """Return the bytes between optimizer steps, and the gradients that wait while micro-batches add up."""
    halves, shard = 2 * COUNT, COUNT // RANKS
    states = 0 if "offload_optimizer" in offload else (4 + 8) * (shard if stage else COUNT) + OVERFLOW
    if stage == 0:
        return halves + states, halves
    if stage < 3:
        # With offload, a buffer for the largest gradient on its way to the host, which then has the gradients.
        kept = halves + (2 * WIDTH * WIDTH if offload else states + NORM)
        waiting = halves + 2 * BUCKET if stage == 1 else 0 if offload else 2 * shard
        return kept, waiting
    # The bucket and, without offload, the gradient shard are buffers that stage 3 never frees.
    weights = 0 if "offload_param" in offload else 2 * shard
    return weights + 2 * BUCKET + (0 if offload else states + 2 * shard + 8 + 1), 0


layer = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
for _ in range(2):
    # cuBLAS's workspaces, of forward and backward, are there before.
    layer(torch.randn(2, WIDTH, device="cuda", dtype=torch.bfloat16)).square().mean().backward()
    layer.weight.grad = None
del layer
before = requested()
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
none_kept = ("stage3_param_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance")
zero: Any = {"stage": stage, "reduce_bucket_size": BUCKET, "stage3_prefetch_bucket_size": 0}
config: Any = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "bf16": {"enabled": True},
    "zero_optimization": {**zero, **dict.fromkeys(none_kept, 0), **{name: {"device": "cpu"} for name in offload}},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
kept, waiting = by_hand()
for step in range(4):
    loss = engine(torch.randn(2, WIDTH, device="cuda", dtype=torch.bfloat16)).square().mean()
    engine.backward(loss)
    del loss
    engine.step()
    torch.cuda.synchronize()
    # Memory that waited for another stream is given back by the next request.
    torch.empty(1, device="cuda")
    taken, expected = requested() - before, kept if step % 2 else kept + waiting
    # The first micro-batch has no optimizer states yet.
    assert step == 0 or taken == expected, (step, taken, expected)
print("done")
