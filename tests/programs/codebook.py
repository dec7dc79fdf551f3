"""Vector quantization: the nearest of the codes, gradients straight through, and codes that follow as averages."""

import torch
import torch.nn as nn
import torch.nn.functional as F

codes, width = 64, 16


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codebook", torch.randn(codes, width))
        self.register_buffer("sizes", torch.ones(codes))
        self.register_buffer("sums", self.codebook.clone())

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, width)
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codebook.t() + self.codebook.pow(2).sum(1)
        index = distance.argmin(1)
        near = F.one_hot(index, codes).type(flat.dtype)
        quantized = F.embedding(index, self.codebook).view(z.size(0), z.size(2), z.size(3), width).permute(0, 3, 1, 2)
        if self.training:
            with torch.no_grad():
                self.sizes.mul_(0.99).add_(near.sum(0), alpha=0.01)
                self.sums.mul_(0.99).add_(near.t() @ flat, alpha=0.01)
                self.codebook.copy_(self.sums / self.sizes.clamp(min=1e-5).unsqueeze(1))
                unused = self.sizes < 1e-4
                if unused.any():
                    self.codebook[unused] = flat[torch.randint(0, len(flat), (int(unused.sum()),), device=z.device)]
        used = near.mean(0)
        perplexity = torch.exp(-(used * (used + 1e-10).log()).sum())
        return z + (quantized - z).detach(), F.mse_loss(z, quantized.detach()), perplexity, index


encoder = nn.Conv2d(3, width, 4, 4).cuda()
decoder = nn.ConvTranspose2d(width, 3, 4, 4).cuda()
quantizer = Quantizer().cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for _ in range(2):
    x = torch.rand(4, 3, 32, 32, device="cuda")
    quantized, commitment, perplexity, index = quantizer(encoder(x))
    loss = F.mse_loss(decoder(quantized), x) + 0.25 * commitment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.3f} {perplexity:.1f}")
assert index.shape == (4 * 8 * 8,) and torch.bincount(index, minlength=codes).shape == (codes,)
assert quantizer.eval()(encoder(x))[0].shape == (4, width, 8, 8)
