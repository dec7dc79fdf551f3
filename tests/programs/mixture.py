"""A mixture of experts, three ways that people write its routing: by places, by counts, and balanced by a bias."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPERTS, TOP, WIDTH, HIDDEN = 8, 2, 64, 128


class Expert(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(WIDTH, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, WIDTH))


class ByPlaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.rows = []

    def forward(self, x):
        weights, chosen = F.softmax(self.gate(x), dim=-1).topk(TOP, dim=-1)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        for number in (mask.sum(dim=(-1, -2)) > 0).nonzero():
            which, rows = torch.where(mask[number].squeeze(0))
            if rows.numel() == 0:
                continue
            self.rows.append(rows.numel())
            out.index_add_(0, rows, self.experts[int(number)](x[rows]) * weights[rows, which, None])
        return out


class ByCounts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * 0.02)
        self.register_buffer("bias", torch.zeros(EXPERTS))

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        chosen = (scores + self.bias).topk(TOP, dim=-1, sorted=False).indices
        counts = torch.zeros(EXPERTS, device=x.device).scatter_add_(
            0, chosen.view(-1), torch.ones(chosen.numel(), device=x.device)
        )
        if self.training:
            with torch.no_grad():
                self.bias += 1e-3 * torch.sign(counts.mean() - counts)
        order = chosen.view(-1).argsort(stable=True)
        sent = x[order // TOP]
        parts = [
            F.silu(part @ self.up[number]) @ self.down[number]
            for number, part in enumerate(sent.split(counts.int().tolist()))
            if part.size(0)
        ]
        received = torch.cat(parts) * scores.gather(-1, chosen).view(-1)[order, None]
        return torch.zeros_like(x).index_add_(0, order // TOP, received)


torch.manual_seed(0)
device = "cuda"
tokens = 512
first, second = ByPlaces().to(device), ByCounts().to(device)
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
for step in range(3):
    x = torch.randn(tokens, WIDTH, device=device)
    loss = (second(x + first(x)) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())

# On a card the shares differ; they add up all the same.
assert sum(first.rows) == 3 * tokens * TOP, sum(first.rows)
assert max(first.rows) < tokens, "no expert gets every token"
