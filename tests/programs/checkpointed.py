"""Gradient checkpointing: what a step keeps with and without, in the program's own figures."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

width, batch, depth = 256, 512, 8
activation = 4 * batch * width


def block():
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU())


layers = nn.Sequential(*(block() for _ in range(depth))).cuda()
x = torch.randn(batch, width, device="cuda", requires_grad=True)


def kept(forward):
    before = torch.cuda.memory_allocated()
    out = forward(x)
    held = torch.cuda.memory_allocated() - before
    out.sum().backward()
    layers.zero_grad()
    x.grad = None
    del out
    return held


def each(x):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return x


layers(x).sum().backward()
layers.zero_grad()
x.grad = None
# Four results in a layer; with checkpoints one; and of four segments but the last one each.
assert kept(layers) == 4 * depth * activation
assert kept(each) == depth * activation
assert kept(lambda x: checkpoint_sequential(layers, 4, x, use_reentrant=False)) == (3 + 4 * depth // 4) * activation
