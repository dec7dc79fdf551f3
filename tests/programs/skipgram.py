"""Words by their neighbours: embeddings with sparse gradients, as their own optimizer takes them."""

import torch
from torch import nn
from torch.nn import functional

WORDS, WIDTH, BATCH, OTHERS = 50_000, 64, 512, 5


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.outside = nn.Embedding(WORDS, WIDTH, sparse=True)

    def forward(self, centre, neighbour, others):
        word = self.inside(centre)
        near = functional.logsigmoid((word * self.outside(neighbour)).sum(-1))
        far = functional.logsigmoid(-torch.bmm(self.outside(others), word.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return -(near + far).mean()


model = SkipGram().cuda()
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=1e-3)
one_table = 4 * WORDS * WIDTH
for _ in range(4):
    words = [torch.randint(0, WORDS, size, device="cuda") for size in ((BATCH,), (BATCH,), (BATCH, OTHERS))]
    optimizer.zero_grad()
    loss = model(*words)
    loss.backward()
    assert model.inside.weight.grad.is_sparse
    assert model.inside.weight.grad._nnz() == BATCH
    assert model.outside.weight.grad._nnz() == BATCH * (1 + OTHERS)
    optimizer.step()
    print(f"loss {loss.item():.3f}")
# Two tables, and of each two moments as large; a dense gradient would be another two.
assert 6 * one_table < torch.cuda.max_memory_allocated() < 8 * one_table
