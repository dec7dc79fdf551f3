"""Momentum contrast: an encoder that follows another one, and a queue of keys with a pointer on the card."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

length, width, batch = 256, 32, 16
query = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 128), nn.ReLU(), nn.Linear(128, width)).cuda()
key = copy.deepcopy(query).requires_grad_(False)


class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(width, length), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def put(self, keys):
        at = int(self.pointer)
        assert length % len(keys) == 0
        self.keys[:, at : at + len(keys)] = keys.T
        self.pointer[0] = (at + len(keys)) % length


queue = Queue().cuda()
optimizer = torch.optim.SGD(query.parameters(), 0.03, momentum=0.9)
for step in range(3):
    one, two = torch.randn(2, batch, 3, 64, device="cuda")
    q = F.normalize(query(one), dim=1)
    with torch.no_grad():
        for a, b in zip(query.parameters(), key.parameters()):
            b.data = b.data * 0.999 + a.data * 0.001
        order = torch.randperm(batch).cuda()
        k = F.normalize(key(two[order]), dim=1)[torch.argsort(order)]
    positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
    negative = torch.einsum("nc,ck->nk", [q, queue.keys.clone().detach()])
    logits = torch.cat([positive, negative], dim=1) / 0.07
    loss = F.cross_entropy(logits, torch.zeros(batch, dtype=torch.long).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue.put(k)
assert int(queue.pointer) == 3 * batch and logits.shape == (batch, 1 + length)
