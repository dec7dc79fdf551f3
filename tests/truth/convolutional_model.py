"""A network of convolutions that judges pictures, and the search for a near picture that it judges otherwise."""

import torch
from torch import Tensor, nn

CHANNELS, SIDE = (30, 16, 32, 64), 256
HIDDEN = (64, 200, 100, 20)


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip(CHANNELS, CHANNELS[1:], strict=False))
        self.convolutions = nn.ModuleList(nn.Conv2d(taken, made, 3, padding="same") for taken, made in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(made) for _, made in pairs)
        self.layers = nn.ModuleList(nn.Linear(*sizes) for sizes in zip(HIDDEN, HIDDEN[1:], strict=False))
        self.out = nn.Linear(HIDDEN[-1], 1)
        self.halve = nn.MaxPool2d(2)
        self.highest = nn.MaxPool2d(SIDE // 2 ** len(pairs))
        self.relu, self.drop = nn.ReLU(), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(self.relu(convolution(x)))
            x = self.halve(x)
        x = self.highest(x)
        x = x.flatten(1)
        for layer in self.layers:
            x = self.relu(layer(self.drop(x)))
        judged: Tensor = self.out(x)
        return judged


class Loss(nn.Module):
    """Small where the pictures are alike and the judgements are not."""

    def forward(self, judged: Tensor, before: Tensor, picture: Tensor, original: Tensor) -> Tensor:
        return self.distance(picture, original) - self.difference(judged, before)

    def distance(self, picture: Tensor, original: Tensor) -> Tensor:
        return ((picture - original) ** 2).mean()

    def difference(self, judged: Tensor, before: Tensor) -> Tensor:
        return (judged - before) ** 2


def search(judge: Judge, original: Tensor, before: Tensor, steps: int) -> None:
    """Change a picture by its gradient; autograd checks each gradient for values that are no numbers."""
    picture = original + torch.randn_like(original)
    original, picture = original.to("cuda"), picture.to("cuda")
    picture.requires_grad = True
    optimizer = torch.optim.Adam([picture])
    losses = Loss()
    for _ in range(steps):
        judged = judge(picture)
        loss = losses(judged, before, picture, original)
        distance = losses.distance(picture, original).detach()
        difference = -losses.difference(judged, before).detach()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        judge.zero_grad()
        [value.cpu() for value in (loss, distance, difference)]
