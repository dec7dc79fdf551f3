"""A graph network on a normalized sparse adjacency matrix, which is prepared on the host."""

import torch
import torch.nn as nn
import torch.nn.functional as F

nodes, count = 1000, 4000
generator = torch.Generator().manual_seed(0)
edges = torch.randint(0, nodes, (2, count), generator=generator)
adjacency = torch.sparse_coo_tensor(edges, torch.ones(count), (nodes, nodes))
adjacency = torch.eye(nodes) + adjacency
degree = torch.diag(adjacency.sum(1).pow(-0.5)).to_sparse()
adjacency = degree @ adjacency @ degree
stored = (adjacency != 0).sum()
adjacency = adjacency.to_sparse().cuda()
assert adjacency._nnz() == stored <= nodes + count
features = torch.rand(nodes, 64)
features = (features / features.sum(1, keepdim=True)).cuda()
labels = torch.randint(0, 7, (nodes,)).cuda()
train = torch.randperm(nodes).cuda()[:140]
first, second = nn.Linear(64, 16, bias=False).cuda(), nn.Linear(16, 7, bias=False).cuda()
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], weight_decay=5e-4)
for _ in range(2):
    hidden = F.dropout(F.relu(torch.sparse.mm(adjacency, first(features))))
    out = F.log_softmax(adjacency @ second(hidden), 1)
    loss = F.nll_loss(out[train], labels[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), (out.argmax(1) == labels).float().mean().item())
