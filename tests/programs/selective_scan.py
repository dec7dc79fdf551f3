"""A state space model: a scan over time in Python, a causal convolution, and text that is drawn a token at a time."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width=64, inner=128, state=8, rank=4):
        super().__init__()
        self.rank, self.state = rank, state
        self.into, self.out = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.x_proj, self.dt_proj = nn.Linear(inner, rank + 2 * state, bias=False), nn.Linear(rank, inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, state + 1.0).repeat(inner, 1)))
        self.D = nn.Parameter(torch.ones(inner))

    def forward(self, x):
        length = x.shape[1]
        x, gate = self.into(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :length].transpose(1, 2))
        delta, B, C = self.x_proj(x).split([self.rank, self.state, self.state], -1)
        delta = F.softplus(self.dt_proj(delta))
        dA = torch.exp(torch.einsum("bld,dn->bldn", delta, -self.A_log.exp()))
        dBx = torch.einsum("bld,bln,bld->bldn", delta, B, x)
        h, ys = torch.zeros_like(dA[:, 0]), []
        for t in range(length):
            h = dA[:, t] * h + dBx[:, t]
            ys.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
        return self.out((torch.stack(ys, 1) + x * self.D) * F.silu(gate))


embed, block = nn.Embedding(500, 64).cuda(), Block().cuda()
text = torch.randint(0, 500, (2, 24)).cuda()
logits = block(embed(text)) @ embed.weight.T
F.cross_entropy(logits[:, :-1].reshape(-1, 500), text[:, 1:].reshape(-1)).backward()
with torch.no_grad():
    for _ in range(4):
        p = F.softmax(block(embed(text))[:, -1] @ embed.weight.T / 0.8, -1)
        p[p < p.topk(40).values[:, -1, None]] = 0
        p = p / p.sum(1, keepdim=True)
        token = torch.multinomial(p, 1)
        text = torch.cat([text, token], 1)
        if (token == 0).all():
            break
assert text.shape == (2, 28) and block.A_log.grad.shape == (128, 8)
