"""A denoising diffusion model: a small U-Net, schedule tensors on the device, EMA, and pictures drawn at the end."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1)))
        args = t[:, None].float() * freqs[None]
        return torch.cat((args.sin(), args.cos()), dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, cin), nn.GroupNorm(4, cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.emb = nn.Linear(temb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, c=16, temb=64):
        super().__init__()
        self.time = nn.Sequential(SinusoidalPosEmb(c), nn.Linear(c, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.down = ResBlock(c, 2 * c, temb)
        self.pool = nn.Conv2d(2 * c, 2 * c, 3, stride=2, padding=1)
        self.mid = ResBlock(2 * c, 2 * c, temb)
        self.up = ResBlock(4 * c, c, temb)
        self.out = nn.Conv2d(c, 3, 1)

    def forward(self, x, t):
        t = self.time(t)
        skip = self.down(self.stem(x), t)
        h = F.interpolate(self.mid(self.pool(skip), t), scale_factor=2.0, mode="nearest")
        return self.out(self.up(torch.cat([h, skip], dim=1), t))


def cosine_betas(timesteps, s=0.008):
    x = torch.linspace(0, timesteps, timesteps + 1, dtype=torch.float64)
    bars = torch.cos((x / timesteps + s) / (1 + s) * math.pi * 0.5) ** 2
    bars = bars / bars[0]
    return torch.clip(1 - bars[1:] / bars[:-1], 0, 0.999).float()


class Diffusion:
    def __init__(self, timesteps, device):
        self.T, self.device = timesteps, device
        self.betas = cosine_betas(timesteps).to(device)
        self.alphas = 1.0 - self.betas
        self.alpha_bars = torch.cumprod(self.alphas, dim=0)

    def q_sample(self, x0, t, noise):
        a = self.alpha_bars[t].view(-1, 1, 1, 1)
        return a.sqrt() * x0 + (1 - a).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, n):
        x = torch.randn(n, 3, 16, 16, device=self.device)
        for i in reversed(range(self.T)):
            t = torch.full((n,), i, device=self.device, dtype=torch.long)
            eps = model(x, t)
            a, bar, beta = (
                self.alphas[t][:, None, None, None],
                self.alpha_bars[t][:, None, None, None],
                self.betas[i].item(),
            )
            noise = torch.randn_like(x) if i > 0 else torch.zeros_like(x)
            x = 1 / torch.sqrt(a) * (x - ((1 - a) / torch.sqrt(1 - bar)) * eps) + math.sqrt(beta) * noise
        return ((x.clamp(-1, 1) + 1) / 2 * 255).to(torch.uint8)


def rounded(t):
    return -(-t.nbytes // 512) * 512


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = UNet().to(device)
ema = copy.deepcopy(model).eval().requires_grad_(False)
weights = sum(rounded(p) for p in model.parameters())
diffusion = Diffusion(8, device)
# Betas, alphas and their product: 8 numbers each.
assert torch.cuda.memory_allocated() == 2 * weights + 3 * 512, torch.cuda.memory_allocated()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in range(3):
    x0 = torch.rand(8, 3, 16, 16).mul(2).sub(1).to(device)
    t = torch.randint(0, diffusion.T, (x0.size(0),), device=device).long()
    noise = torch.randn_like(x0)
    loss = F.mse_loss(model(diffusion.q_sample(x0, t, noise), t), noise)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(model.parameters(), ema.parameters()):
            q.lerp_(p, 1 - 0.995)
    print(f"step {step} MSE: {loss.item():.5f}")
images = diffusion.sample(ema, 4).cpu().permute(0, 2, 3, 1).numpy()
assert images.shape == (4, 16, 16, 3)
optimizer.zero_grad()
del x0, t, noise, loss, p, q
torch._C._cuda_clearCublasWorkspaces()
# Two models and Adam's two moments.
held = 4 * weights + 3 * 512
assert torch.cuda.memory_allocated() == held, (torch.cuda.memory_allocated(), held)
