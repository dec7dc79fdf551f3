"""Sequences of different lengths without padding: nested tensors in the jagged layout, through attention."""

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, HEADS = 128, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, [HEADS, -1]).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(-2))


torch.manual_seed(0)
lengths = [17, 40, 5, 62]
model = nn.Sequential(Block(), Block()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = torch.cuda.memory_allocated()
rows = [torch.randn(length, WIDTH) for length in lengths]
x = torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")
# 124 rows of 128 numbers are a multiple of 512 bytes, and so are five offsets in 40 -> 512.
assert torch.cuda.memory_allocated() - before == 124 * 128 * 4 + 512
for step in range(2):
    with torch.autocast("cuda", torch.bfloat16, enabled=step > 0):
        out = model(x)
    loss = out.values().float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
assert torch.nested.to_padded_tensor(x, 0.0).shape[::2] == (len(lengths), WIDTH)
assert [part.size(0) for part in out.unbind()] == lengths
