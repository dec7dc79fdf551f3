"""Weights that are computed from others: weight and spectral norm, orthogonal and pruned ones, one's own rule."""

import torch
import torch.nn as nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(8, 16, 3, padding=1))
        self.critic = spectral_norm(nn.Linear(16, 32))
        self.turn = orthogonal(nn.Linear(32, 32), orthogonal_map="cayley")
        self.mix = nn.Linear(32, 32, bias=False)
        parametrize.register_parametrization(self.mix, "weight", Symmetric())
        self.out = nn.Linear(32, 4)
        prune.l1_unstructured(self.out, "weight", amount=0.5)

    def forward(self, x):
        return self.out(self.mix(self.turn(self.critic(self.conv(x).mean(2)))))


net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    optimizer.zero_grad()
    with parametrize.cached():
        net(torch.randn(4, 8, 20, device="cuda")).sum().backward()
    optimizer.step()
assert net.conv.parametrizations.weight.original0.shape == (16, 1, 1)
assert net.out.weight_mask.is_cuda and net.out.weight_orig.grad.shape == (4, 32)
parametrize.remove_parametrizations(net.conv, "weight")
prune.remove(net.out, "weight")
assert net(torch.randn(4, 8, 20, device="cuda")).shape == (4, 4)
assert all(p.is_cuda for p in net.parameters())
