"""A Fourier neural operator: complex weights, real FFTs, mixed dtypes and an optimizer over complex numbers."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")


class SpectralConv2d(nn.Module):
    def __init__(self, cin, cout, modes):
        super().__init__()
        self.modes = modes
        scale = 1 / (cin * cout)
        self.w1 = nn.Parameter(scale * torch.rand(cin, cout, modes, modes, dtype=torch.cfloat))
        self.w2 = nn.Parameter(scale * torch.rand(cin, cout, modes, modes, dtype=torch.cfloat))

    def forward(self, x):
        m = self.modes
        ft = torch.fft.rfft2(x)
        out = torch.zeros(
            x.size(0), self.w1.size(1), x.size(-2), x.size(-1) // 2 + 1, dtype=torch.cfloat, device=x.device
        )
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", ft[:, :, :m, :m], self.w1)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", ft[:, :, -m:, :m], self.w2)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FNO(nn.Module):
    def __init__(self, modes=6, width=16, layers=2):
        super().__init__()
        self.lift, self.out = nn.Linear(3, width), nn.Linear(width, 1)
        self.spectral = nn.ModuleList(SpectralConv2d(width, width, modes) for _ in range(layers))
        self.pointwise = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))

    def grid(self, shape, device):
        b, h, w = shape
        y = torch.linspace(0, 1, h, device=device).view(1, h, 1, 1).repeat(b, 1, w, 1)
        x = torch.linspace(0, 1, w, device=device).view(1, 1, w, 1).repeat(b, h, 1, 1)
        return torch.cat((y, x), dim=-1)

    def forward(self, a):
        x = torch.cat((a.unsqueeze(-1), self.grid(a.shape, a.device)), dim=-1)
        x = self.lift(x).permute(0, 3, 1, 2)
        for spectral, pointwise in zip(self.spectral, self.pointwise):
            x = F.gelu(spectral(x) + pointwise(x))
        return self.out(x.permute(0, 2, 3, 1)).squeeze(-1)


class LpLoss:
    def __call__(self, x, y):
        n = x.size(0)
        return (torch.norm(x.reshape(n, -1) - y.reshape(n, -1), 2, 1) / torch.norm(y.reshape(n, -1), 2, 1)).mean()


model = FNO().to(device)
# A complex weight: 16*16*6*6 numbers of 8 bytes = 73728; convolutions 1024 and 512; linear 512, 512 and 512, 512.
weights = 2 * 2 * 73728 + 2 * (1024 + 512) + 4 * 512
assert torch.cuda.memory_allocated() == weights, (torch.cuda.memory_allocated(), weights)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
criterion = LpLoss()
train_l2 = 0.0
for it in range(3):
    a = torch.randn(4, 32, 32, device=device)
    # The solution of a Poisson problem, by the transform itself, in double precision.
    k = torch.fft.fftfreq(32, d=1 / 32, device=device, dtype=torch.float64)
    laplacian = -(k[:, None] ** 2 + k[None] ** 2)
    laplacian[0, 0] = 1.0
    u = torch.fft.ifft2(torch.fft.fft2(a.double()) / laplacian).real.float()
    assert u.shape == a.shape and u.dtype == torch.float32 and not u.is_complex()
    loss = criterion(model(a), u)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    train_l2 += loss.item()
    print(it, train_l2 / (it + 1), scheduler.get_last_lr())
spectrum = torch.fft.fftshift(torch.fft.fft2(a).abs().mean(0)).cpu()
assert spectrum.dtype == torch.float32 and spectrum.shape == (32, 32)
z = torch.view_as_complex(torch.randn(8, 2, device=device))
assert z.angle().shape == z.conj().shape == (8,) and torch.polar(z.abs(), z.angle()).dtype == torch.complex64
del a, k, laplacian, u, loss, z
torch._C._cuda_clearCublasWorkspaces()
# Weights, gradients and two moments.
assert torch.cuda.memory_allocated() == 4 * weights, (torch.cuda.memory_allocated(), 4 * weights)
