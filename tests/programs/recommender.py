"""A recommender: embedding bags for categories, a factorization term, dense Adam, AUC and hit rate at the end."""

from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn

device = torch.device("cuda:0")


class DeepFM(nn.Module):
    def __init__(self, fields, dim=16):
        super().__init__()
        self.offsets = np.array((0, *np.cumsum(fields)[:-1]), dtype=np.int64)
        self.embedding = nn.Embedding(sum(fields), dim)
        self.linear = nn.Embedding(sum(fields), 1)
        self.history = nn.EmbeddingBag(500, dim, mode="sum")
        self.mlp = nn.Sequential(
            nn.Linear((len(fields) + 1) * dim, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)
        )
        nn.init.xavier_uniform_(self.embedding.weight.data)

    def forward(self, x, items, bags):
        x = x + x.new_tensor(self.offsets).unsqueeze(0)
        e = torch.cat([self.embedding(x), self.history(items, bags).unsqueeze(1)], dim=1)
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid((self.linear(x).sum(1) + fm + self.mlp(e.flatten(1))).squeeze(1))


def auc(scores, labels):
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positive = int(labels.sum())
    return (ranks[labels == 1].sum() - positive * (positive + 1) / 2) / max(1, positive * (len(labels) - positive))


fields = [100, 50, 20]
rng = np.random.RandomState(0)
model = DeepFM(fields).to(device)
# 170*16*4 = 10880 -> 11264; 170*4 = 680 -> 1024; 500*16*4 = 32000 -> 32256; 64*64*4 = 16384, 512; 64 -> 512 twice;
# 64*4 -> 512, 512. Buffers: running mean and variance of 512 and a counter of 8 bytes in 512.
weights = 11264 + 1024 + 32256 + 16384 + 512 + 2 * 512 + 2 * 512
assert torch.cuda.memory_allocated() == weights + 3 * 512, (torch.cuda.memory_allocated(), weights)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
criterion = nn.BCELoss()
seen = defaultdict(int)
for epoch in range(2):
    total = 0
    for _ in range(3):
        users = np.stack([rng.randint(0, n, 64) for n in fields], 1)
        for user in users[:, 0]:
            seen[int(user)] += 1
        x = torch.from_numpy(users).long().to(device)
        lengths = torch.from_numpy(rng.randint(1, 6, 64))
        items = torch.randint(0, 500, (int(lengths.sum()),)).to(device)
        bags = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]]).to(device)
        y = torch.FloatTensor(rng.randint(0, 2, 64)).to(device)
        loss = criterion(model(x, items, bags), y.float())
        model.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print("epoch", epoch, "loss", total / 3)
model.eval()
with torch.no_grad():
    scores = model(x, items, bags)
    value = auc(scores.cpu().numpy(), y.cpu().numpy())
    top = torch.topk(scores, k=10).indices
    hits = sum(1 for i in top.tolist() if i in set(range(32)))
    precision = y[top].mean().item()
print(f"auc {value:.4f} hits {hits} precision@10 {precision:.3f} users {len(seen)}")
del x, items, bags, y, loss, scores, top
torch._C._cuda_clearCublasWorkspaces()
# Dense Adam: a gradient and two moments of every row, used or not.
held = 4 * weights + 3 * 512
assert torch.cuda.memory_allocated() == held, (torch.cuda.memory_allocated(), held)
