"""Style transfer: an image is the only parameter, and LBFGS calls its closure several times in a step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)).cuda().eval()
for parameter in net.parameters():
    parameter.requires_grad_(False)


def gram(x):
    b, c, h, w = x.size()
    features = x.view(b * c, h * w)
    return features @ features.t() / (b * c * h * w)


style, content = torch.rand(1, 3, 64, 64).cuda(), torch.rand(1, 3, 64, 64).cuda()
wanted, kept = gram(net(style)).detach(), net(content).detach()
image = content.clone().requires_grad_(True)
optimizer = torch.optim.LBFGS([image], max_iter=4, history_size=3)
calls = 0


def closure():
    global calls
    calls += 1
    with torch.no_grad():
        image.clamp_(0, 1)
    optimizer.zero_grad()
    features = net(image)
    loss = 1e6 * F.mse_loss(gram(features), wanted) + F.mse_loss(features, kept)
    loss.backward()
    if calls % 2 == 0:
        print(f"{calls} {loss.item():.4f}")
    return loss


for _ in range(2):
    optimizer.step(closure)
assert calls >= 2
state = optimizer.state[image]
# The direction, the gradient before, and at most three steps and three differences.
flat = [state["d"], state["prev_flat_grad"], *state["old_dirs"], *state["old_stps"]]
assert all(t.is_cuda and t.numel() == 3 * 64 * 64 for t in flat) and len(flat) <= 8
