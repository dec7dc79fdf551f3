"""AdamW written out, on a small network with gradient checkpointing and a function with a backward of its own."""

import torch
import torch.nn as nn
import torch.utils.checkpoint as cp

dev = "cuda:0"
torch.set_default_dtype(torch.float32)


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return torch.nn.functional.silu(gate) * up

    @staticmethod
    def backward(ctx, grad_output):
        gate, up = ctx.saved_tensors
        sig = torch.sigmoid(gate)
        silu = gate * sig
        return grad_output * up * (sig + silu * (1 - sig)), grad_output * silu


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(SwiGLU.apply(self.gate(h), self.up(h)))


class AdamW:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.betas, self.eps, self.weight_decay, self.t = lr, betas, eps, weight_decay, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for p, m, v in zip(self.params, self.m, self.v):
            if p.grad is None:
                continue
            p.mul_(1 - self.lr * self.weight_decay)
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            p.addcdiv_(m / (1 - b1**self.t), (v / (1 - b2**self.t)).sqrt().add_(self.eps), value=-self.lr)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


DIM, HIDDEN, LAYERS, ROWS = 128, 512, 4, 1024
layers = nn.ModuleList(Layer(DIM, HIDDEN) for _ in range(LAYERS)).to(dev)
# A norm of 128*4 = 512 bytes and three matrices of 128*512*4 = 262144.
weights = LAYERS * (512 + 3 * 262144)
assert torch.cuda.memory_allocated() == weights
opt = AdamW(layers.parameters())
assert torch.cuda.memory_allocated() == 3 * weights


def peak_of(use_checkpoint):
    torch.cuda.reset_peak_memory_stats()
    x = torch.randn(ROWS, DIM, device=dev)
    for layer in layers:
        x = cp.checkpoint(layer, x, use_reentrant=False) if use_checkpoint else layer(x)
    loss = x.square().mean()
    loss.backward()
    peak = torch.cuda.max_memory_allocated()
    opt.step()
    opt.zero_grad()
    return peak


peak_of(False)
torch._C._cuda_clearCublasWorkspaces()
without, with_checkpoints = peak_of(False), peak_of(True)
# A layer keeps, without checkpoints, at least gate, up and their product: 3 * 1024 * 512 * 4 bytes.
one = 3 * ROWS * HIDDEN * 4
assert without - with_checkpoints >= (LAYERS - 2) * one, (without, with_checkpoints)
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == 3 * weights, (torch.cuda.memory_allocated(), 3 * weights)
print(f"peak {without / 2**20:.1f} MiB, with checkpoints {with_checkpoints / 2**20:.1f} MiB")
