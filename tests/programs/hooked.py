"""Hooks that keep activations and change gradients, a reversed gradient, and activations offloaded by hooks."""

import torch
import torch.nn as nn


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
domain = nn.Linear(256, 2).cuda()
seen, scales = {}, []
handles = [
    m.register_forward_hook(lambda m, i, o, n=n: seen.update({n: o.detach()})) for n, m in model.named_children()
]
model[0].weight.register_hook(lambda grad: grad.clamp(-1, 1))
model[2].register_full_backward_hook(lambda m, i, o: scales.append(o[0].shape))
x = torch.randn(64, 256, device="cuda")
out = model(x)
assert sum(t.nbytes for t in seen.values()) == 3 * 64 * 256 * 4
(out.mean() + domain(Reverse.apply(out, 0.1)).mean() + Squared.apply(out).mean()).backward()
assert scales == [torch.Size([64, 256])] and model[0].weight.grad.is_cuda
for handle in handles:
    handle.remove()
seen.clear()
with torch.autograd.graph.save_on_cpu():
    out = model(x)
assert out.grad_fn.next_functions
out.mean().backward()
del out, x
model.zero_grad(), domain.zero_grad()
torch._C._cuda_clearCublasWorkspaces()
weights = 4 * (2 * (256 * 256 + 256) + 2 * 256) + 512
assert torch.cuda.memory_allocated() == weights, (torch.cuda.memory_allocated(), weights)
