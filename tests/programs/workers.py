"""Data loaders with workers, pinned memory, a collate function of one's own, an iterable data set and a sampler."""

import multiprocessing as mp
import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler, get_worker_info, random_split


class Lines(Dataset):
    def __init__(self, count):
        self.rows = [[random.randrange(1, 50) for _ in range(random.randint(3, 12))] for _ in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"ids": torch.tensor(self.rows[i]), "label": len(self.rows[i]) % 2}


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, jump = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, 12, jump):
            yield torch.full((4,), float(i))


def collate(rows):
    longest = max(len(r["ids"]) for r in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, r in enumerate(rows):
        ids[i, : len(r["ids"])] = r["ids"]
        mask[i, : len(r["ids"])] = True
    return ids, mask, torch.tensor([r["label"] for r in rows])


def seed(worker_id):
    random.seed(torch.initial_seed() % 2**32 + worker_id)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.fc = nn.Embedding(50, 32, padding_idx=0), nn.Linear(32, 2)

    def forward(self, ids, mask):
        x = self.emb(ids) * mask.unsqueeze(-1)
        return self.fc(x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def square(n):
    return n * n, os.getpid()


def main():
    device = torch.device("cuda")
    torch.manual_seed(0)
    random.seed(0)
    train, val = random_split(Lines(40), [32, 8], generator=torch.Generator().manual_seed(3))
    sampler = WeightedRandomSampler([1.0] * len(train), num_samples=len(train))
    loader = DataLoader(
        train,
        8,
        sampler=sampler,
        num_workers=2,
        pin_memory=True,
        collate_fn=collate,
        worker_init_fn=seed,
        persistent_workers=True,
        prefetch_factor=2,
    )
    model = Model().to(device)
    # 50*32*4 = 6400 -> 6656; 32*2*4 -> 512; 512.
    weights = 6656 + 512 + 512
    assert torch.cuda.memory_allocated() == weights
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    assert torch.cuda.memory_allocated() == 2 * weights
    for epoch in range(2):
        for ids, mask, label in loader:
            assert ids.is_pinned() and not ids.is_cuda and ids.shape[0] == 8
            ids, mask, label = (t.to(device, non_blocking=True) for t in (ids, mask, label))
            loss = nn.functional.cross_entropy(model(ids, mask), label)
            opt.zero_grad(set_to_none=False)
            loss.backward()
            opt.step()
        print(f"epoch {epoch}: {loss.item():.4f}")
    seen = sorted(int(t[0]) for t in DataLoader(Stream(), batch_size=None, num_workers=2))
    assert seen == list(range(12))
    total = sum(len(label) for *_, label in DataLoader(val, 4, collate_fn=collate))
    assert total == 8
    with mp.get_context("fork").Pool(2) as pool:
        squares = pool.map(square, range(5))
    assert [s for s, _ in squares] == [0, 1, 4, 9, 16] and os.getpid() not in {p for _, p in squares}
    del ids, mask, label, loss
    torch._C._cuda_clearCublasWorkspaces()
    # Weights, Adagrad's sums and the gradients, which are kept as zeros.
    assert torch.cuda.memory_allocated() == 3 * weights, (torch.cuda.memory_allocated(), 3 * weights)


if __name__ == "__main__":
    main()
