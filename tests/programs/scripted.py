"""TorchScript: a scripted cell in a loop, a traced model, and both written and read again."""

import io

import torch
import torch.nn as nn


class Cell(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gates = nn.Linear(2 * width, 2 * width)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        update, new = self.gates(torch.cat([x, h], dim=1)).chunk(2, 1)
        keep = torch.sigmoid(update)
        return keep * h + (1 - keep) * torch.tanh(new)


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.cell = Cell(width)

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(xs[0])
        found: list[torch.Tensor] = []
        for t in range(xs.size(0)):
            h = self.cell(xs[t], h)
            found.append(h)
        return torch.stack(found)


layer = torch.jit.script(Layer(64)).cuda()
xs = torch.randn(5, 8, 64, device="cuda")
optimizer = torch.optim.Adam(layer.parameters())
for _ in range(2):
    optimizer.zero_grad()
    layer(xs).square().mean().backward()
    optimizer.step()
traced = torch.jit.trace(nn.Sequential(nn.Linear(64, 32), nn.GELU()).cuda().eval(), torch.rand(1, 64, device="cuda"))
assert traced(xs[0]).shape == (8, 32) and traced(xs[0]).is_cuda
memory = io.BytesIO()
torch.jit.save(layer, memory)
memory.seek(0)
again = torch.jit.load(memory, map_location="cuda")
assert again(xs).shape == (5, 8, 64) and again(xs).is_cuda
