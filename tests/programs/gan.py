"""A GAN on random pictures: two networks, two optimizers, and a grid of samples now and then."""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--latent", type=int, default=100)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args([])

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(42)
torch.cuda.manual_seed_all(42)
torch.backends.cudnn.benchmark = True


class Generator(nn.Module):
    def __init__(self, latent: int, width: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(latent, width * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(width * 4),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width * 4, width * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width * 2, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, width * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width * 2, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).view(-1)


def init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)


def rounded(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // 512) * 512


generator, discriminator = Generator(args.latent).to(device), Discriminator().to(device)
generator.apply(init_weights)
discriminator.apply(init_weights)
weights = [*generator.parameters(), *discriminator.parameters()]
at_rest = sum(map(rounded, [*weights, *generator.buffers(), *discriminator.buffers()]))
assert torch.cuda.memory_allocated() == at_rest, (torch.cuda.memory_allocated(), at_rest)

criterion = nn.BCEWithLogitsLoss()
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed_noise = torch.randn(16, args.latent, 1, 1, device=device)
history = {"d": [], "g": []}

for step in range(args.steps):
    real = torch.rand(args.batch, 3, 16, 16).to(device)
    labels = torch.full((args.batch,), 1.0, dtype=torch.float, device=device)
    opt_d.zero_grad()
    loss_real = criterion(discriminator(real), labels)
    loss_real.backward()
    fake = generator(torch.randn(args.batch, args.latent, 1, 1, device=device))
    labels.fill_(0.0)
    loss_fake = criterion(discriminator(fake.detach()), labels)
    loss_fake.backward()
    opt_d.step()

    opt_g.zero_grad()
    labels.fill_(1.0)
    loss_g = criterion(discriminator(fake), labels)
    loss_g.backward()
    opt_g.step()
    history["d"].append(loss_real.item() + loss_fake.item())
    history["g"].append(loss_g.item())
    print(f"[{step}/{args.steps}] loss_d: {history['d'][-1]:.4f} loss_g: {history['g'][-1]:.4f}")

with torch.no_grad():
    samples = generator(fixed_noise).detach().cpu()
assert samples.shape == (16, 3, 16, 16) and samples.device.type == "cpu"
print(f"mean loss {sum(history['d']) / len(history['d']):.3f}")

del real, labels, fake, loss_real, loss_fake, loss_g
# Weights, buffers, gradients, two moments a weight, the noise; Adam's counters lie on the host.
held = at_rest + 3 * sum(map(rounded, weights)) + rounded(fixed_noise)
assert torch.cuda.memory_allocated() == held, (torch.cuda.memory_allocated(), held)
assert torch.cuda.max_memory_allocated() > held
print("done", torch.cuda.max_memory_allocated() // 2**20, "MiB")
