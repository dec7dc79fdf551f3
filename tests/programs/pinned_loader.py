"""Pictures from workers by way of pinned memory; copies do not wait, and memory is asked about by every name."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, BATCHES, SIZE = 16, 4, 32


class Pictures(Dataset):
    def __init__(self) -> None:
        self.labels = torch.arange(BATCH * BATCHES) % 7

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixels": torch.rand(3, SIZE, SIZE), "label": self.labels[index]}


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def main() -> None:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * SIZE * SIZE, 7)
    )
    model = nn.DataParallel(model).to(accelerator)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    loader = DataLoader(
        Pictures(),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=2,
        collate_fn=collate,
    )
    seen = 0
    for epoch in range(2):
        for batch in loader:
            assert all(value.is_pinned() for value in batch.values())
            seen += int((batch["label"] >= 0).sum())
            batch = {key: value.to(accelerator, non_blocking=True) for key, value in batch.items()}
            assert {value.device.type for value in batch.values()} == {accelerator.type}
            with torch.autocast(device_type=accelerator.type, dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: {loss.item():.3f}")
    assert seen == 2 * BATCH * BATCHES
    del batch, loss
    torch.accelerator.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    rounded = [-(-parameter.numel() * parameter.element_size() // 512) * 512 for parameter in model.parameters()]
    buffers = [-(-buffer.numel() * buffer.element_size() // 512) * 512 for buffer in model.buffers()]
    # Weights and two moments, the statistics of the norm, and a counter a weight: fused Adam keeps it on the card.
    held = 3 * sum(rounded) + sum(buffers) + 512 * len(rounded)
    assert torch.accelerator.memory_allocated() == held, (torch.accelerator.memory_allocated(), held)
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == held == torch.cuda.memory_allocated()


if __name__ == "__main__":
    main()
