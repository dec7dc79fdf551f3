"""Quantization and optimizers of torchao: what weights and states take on the card, by hand."""

from typing import Any

import torch
from torch import nn
from torchao import quantization
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8, CPUOffloadOptimizer

INNER, OUTER = 1024, 2048
COUNT = INNER * OUTER
float8 = quantization.Float8DynamicActivationFloat8WeightConfig
WEIGHTS = [
    # A scale in fp32 and a zero point in int8 for each row.
    (quantization.Int8WeightOnlyConfig(), COUNT + OUTER * 5),
    # A scale and a zero point in bf16 for each group; packed as torch's own kernel takes it, without another package.
    (
        quantization.Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d"),
        COUNT // 2 + COUNT // 128 * 4,
    ),
    # Scales in fp32: one, or one for each row.
    (float8(), COUNT + 4),
    (float8(granularity=quantization.PerRow()), COUNT + OUTER * 4),
    (quantization.Float8WeightOnlyConfig(), COUNT + OUTER * 4),
]
STATES = {
    # Both moments: codes, a scale in fp32 for each block, and the table of the codes.
    AdamW8bit: 2 * (COUNT + COUNT // 256 * 4 + 256 * 4),
    AdamW4bit: 2 * (COUNT // 2 + COUNT // 128 * 4 + 16 * 4),
    AdamWFp8: 2 * (COUNT + COUNT // 256 * 4),
}


def requested() -> int:
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def linear() -> nn.Linear:
    return nn.Linear(INNER, OUTER, bias=False, device="cuda", dtype=torch.bfloat16)


def inputs() -> torch.Tensor:
    return torch.randn(8, INNER, device="cuda", dtype=torch.bfloat16)


def trained_with(kind: Any, **options: Any) -> int:
    """Return the bytes that an optimizer keeps on the card, beside weights and gradients."""
    layer = linear()
    optimizer = kind(layer.parameters(), **options)
    before = requested()
    for _ in range(2):
        layer(inputs()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return requested() - before


# cuBLAS's workspaces, of forward and backward, are there before.
linear()(inputs()).sum().backward()
for config, by_hand in WEIGHTS:
    before = requested()
    layer: Any = linear().eval()
    quantization.quantize_(layer, config)
    assert requested() - before == by_hand, (config, requested() - before, by_hand)
    with torch.no_grad():
        assert layer(inputs()).shape == (8, OUTER)
    del layer
for kind, by_hand in STATES.items():
    taken = trained_with(kind, lr=1e-4)
    assert taken == by_hand, (kind, taken, by_hand)
offloaded = {"optimizer_class": torch.optim.AdamW, "lr": 1e-4, "fused": True}
assert trained_with(CPUOffloadOptimizer, **offloaded) == 0
print("done")
