"""Forward-forward: each layer has its own loss and optimizer, and no gradient goes from one to the next."""

import torch
import torch.nn as nn


class Layer(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o)
        self.opt = torch.optim.Adam(self.parameters(), lr=0.02)

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return torch.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))

    def train_on(self, good, bad):
        for _ in range(2):
            gg, gb = self(good).pow(2).mean(1), self(bad).pow(2).mean(1)
            loss = torch.log(1 + torch.exp(torch.cat([-gg + 2.0, gb - 2.0]))).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return self(good).detach(), self(bad).detach()


def with_label(x, y):
    x = x.clone()
    x[:, :10] *= 0.0
    x[range(x.shape[0]), y] = x.max()
    return x


layers = [Layer(784, 128).cuda(), Layer(128, 128).cuda()]
x, y = torch.rand(100, 784).cuda(), torch.randint(0, 10, (100,)).cuda()
wrong = y[torch.randperm(len(y))]
good, bad = with_label(x, y), with_label(x, wrong)
for layer in layers:
    good, bad = layer.train_on(good, bad)
found = []
for label in range(10):
    h, goodness = with_label(x, label), []
    for layer in layers:
        h = layer(h)
        goodness += [h.pow(2).mean(1)]
    found += [sum(goodness).unsqueeze(1)]
guess = torch.cat(found, 1).argmax(1)
print("error:", 1.0 - guess.eq(y).float().mean().item())
assert guess.shape == (100,)
for layer in layers:
    assert all(m.is_cuda for m in (layer.opt.state[layer.weight]["exp_avg"], layer.weight.grad))
