"""Graph attention by hand: scores on edges, a softmax over the edges of each node, and pooling by graph."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.lin = heads, nn.Linear(width, width, bias=False)
        self.score = nn.Parameter(torch.randn(heads, 2 * width // heads))

    def forward(self, x, edges):
        source, target = edges
        h = self.lin(x).view(len(x), self.heads, -1)
        e = F.leaky_relu((torch.cat([h[source], h[target]], -1) * self.score).sum(-1), 0.2)
        most = torch.full((len(x), self.heads), -torch.inf, device=x.device)
        most = most.scatter_reduce(0, target[:, None].expand_as(e), e, "amax")
        e = (e - most[target]).exp()
        total = torch.zeros_like(most).index_add_(0, target, e)
        alpha = F.dropout(e / total[target].clamp_min(1e-16), 0.1, self.training)
        out = torch.zeros_like(h)
        return out.index_add(0, target, alpha[..., None] * h[source]).flatten(1)


nodes, count = 300, 2000
edges = torch.randint(0, nodes, (2, count)).cuda()
graph = torch.arange(nodes, device="cuda") // 100
layers = nn.ModuleList(Attention(32, 4) for _ in range(2)).cuda()
head = nn.Linear(32, 3).cuda()
optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()])
x = torch.randn(nodes, 32).cuda()
for _ in range(2):
    h = x
    for layer in layers:
        h = F.elu(layer(h, edges))
    sums = torch.zeros(3, 32, device="cuda").scatter_add_(0, graph[:, None].expand_as(h), h)
    pooled = sums / torch.bincount(graph, minlength=3)[:, None]
    loss = F.nll_loss(F.log_softmax(head(pooled), -1), torch.arange(3, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
degree = torch.zeros(nodes, device="cuda").scatter_add_(0, edges[1], torch.ones(count, device="cuda"))
assert degree.sum().item() == count and pooled.shape == (3, 32)
