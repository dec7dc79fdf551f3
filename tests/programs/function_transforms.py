"""Gradients of functions: one for each sample, Jacobians, a product with the Hessian, and MAML's inner step."""

import torch
import torch.nn as nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).cuda()
weights = {name: value.detach() for name, value in model.named_parameters()}
x, y = torch.randn(24, 16, device="cuda"), torch.randint(0, 4, (24,), device="cuda")


def loss_of(weights, sample, target):
    logits = functional_call(model, weights, (sample[None],))
    return nn.functional.cross_entropy(logits, target[None])


each = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
assert each["0.weight"].shape == (24, 32, 16) and each["2.bias"].shape == (24, 4)
norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
clipped = {name: (g * (1 / norms.clamp(min=1)).view(-1, *[1] * (g.dim() - 1))).sum(0) for name, g in each.items()}
assert all(clipped[name].shape == weights[name].shape and clipped[name].is_cuda for name in weights)
assert vmap(jacrev(lambda one: functional_call(model, weights, (one[None],))[0]))(x).shape == (24, 4, 16)
assert hessian(lambda one: functional_call(model, weights, (one[None],)).sum())(x[0]).shape == (16, 16)
out, tangent = jvp(lambda one: functional_call(model, weights, (one,)), (x,), (torch.ones_like(x),))
assert out.shape == tangent.shape == (24, 4)

fast = dict(model.named_parameters())
for _ in range(2):
    inner = nn.functional.cross_entropy(functional_call(model, fast, (x,)), y)
    found = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
    fast = {name: value - 0.1 * g for (name, value), g in zip(fast.items(), found)}
nn.functional.cross_entropy(functional_call(model, fast, (x,)), y).backward()
assert all(p.grad is not None and p.grad.is_cuda for p in model.parameters())
