"""Gradients of gradients: a Wasserstein critic's penalty, Hessians, per-sample gradients by vmap, MAML's inner step."""

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

device = "cuda"
critic = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
params = list(critic.parameters())
# 64*128*4 = 32768; 512; 512; 512.
weights = 32768 + 3 * 512
assert torch.cuda.memory_allocated() == weights
opt = torch.optim.RMSprop(critic.parameters(), lr=5e-5)


def gradient_penalty(real, fake, weight=10.0):
    alpha = torch.rand(real.size(0), 1, device=real.device)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(mixed)
    (gradient,) = torch.autograd.grad(score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True)
    return weight * ((gradient.norm(2, dim=1) - 1) ** 2).mean()


for step in range(3):
    real, fake = torch.randn(32, 64, device=device), torch.randn(32, 64, device=device)
    opt.zero_grad()
    loss = critic(fake).mean() - critic(real).mean() + gradient_penalty(real, fake)
    loss.backward()
    opt.step()
    print(f"critic {step} {loss.item():.4f} grad norm {sum(p.grad.norm() ** 2 for p in params) ** 0.5:.4f}")
del loss
opt.zero_grad(set_to_none=True)
torch._C._cuda_clearCublasWorkspaces()
# RMSprop keeps one square average a weight; two batches of 32*64*4 = 8192.
at_rest = 2 * weights + 2 * 8192
assert torch.cuda.memory_allocated() == at_rest, (torch.cuda.memory_allocated(), at_rest)

x = real
value = critic(x).square().mean()
first = torch.autograd.grad(value, params, create_graph=True)
vector = [torch.randn_like(p) for p in params]
product = torch.autograd.grad(sum((g * v).sum() for g, v in zip(first, vector)), params)
assert [p.shape for p in product] == [p.shape for p in params]
eigenvalue = sum((p * v).sum() for p, v in zip(product, vector)) / sum((v * v).sum() for v in vector)
print("curvature", eigenvalue.item())
del value, first, vector, product, eigenvalue
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == at_rest, (torch.cuda.memory_allocated(), at_rest)

state = {k: v.detach() for k, v in critic.named_parameters()}


def loss_of(params, sample):
    return functional_call(critic, params, (sample.unsqueeze(0),)).square().squeeze()


per_sample = vmap(grad(loss_of), in_dims=(None, 0))(state, x)
assert per_sample["0.weight"].shape == (32, 128, 64)
norms = torch.stack([g.flatten(1).norm(dim=1) for g in per_sample.values()]).norm(dim=0)
assert norms.shape == (32,)
del per_sample, norms
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == at_rest, (torch.cuda.memory_allocated(), at_rest)
jacobian = vmap(jacrev(lambda row: functional_call(critic, state, (row,))))(x)
assert jacobian.shape == (32, 1, 64)
curve = hessian(lambda row: functional_call(critic, state, (row,)).sum())(x[0])
assert curve.shape == (64, 64)

out, tangent = jvp(lambda batch: functional_call(critic, state, (batch,)), (x,), (torch.ones_like(x),))
assert out.shape == tangent.shape == (32, 1)
targets = torch.randint(0, 64, (32,), device=device)
each = vmap(grad(lambda row, target: nn.functional.cross_entropy(row[None], target[None])))(x, targets)
assert each.shape == x.shape
fast = dict(critic.named_parameters())
for _ in range(2):
    inner = functional_call(critic, fast, (x,)).square().mean()
    found = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
    fast = {name: value - 0.1 * g for (name, value), g in zip(fast.items(), found)}
functional_call(critic, fast, (x,)).square().mean().backward()
assert all(p.grad is not None and p.grad.is_cuda for p in params)
