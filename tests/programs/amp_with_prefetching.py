"""Mixed precision with a scaler, and batches that are copied on a stream of their own while the last one is used."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, CLASSES = 32, 1024, 10


class Noise(Dataset):
    def __len__(self) -> int:
        return 8 * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=generator), index % CLASSES


class Prefetcher:
    def __init__(self, loader: DataLoader) -> None:
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self) -> None:
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True)
            self.next_target = self.next_target.cuda(non_blocking=True)

    def next(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        torch.cuda.current_stream().wait_stream(self.stream)
        inputs, target = self.next_input, self.next_target
        if inputs is not None:
            inputs.record_stream(torch.cuda.current_stream())
            target.record_stream(torch.cuda.current_stream())
        self.preload()
        return inputs, target


assert torch.cuda.is_available()
torch.cuda.set_device(0)
device = torch.cuda.current_device()
print(torch.cuda.get_device_name(device), torch.version.cuda, torch.backends.cudnn.version())

model = nn.Sequential(nn.Linear(WIDTH, 4096), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4096, CLASSES)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
scaler = torch.amp.GradScaler("cuda")
loader = DataLoader(Noise(), batch_size=BATCH, shuffle=True, pin_memory=True)

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
prefetcher = Prefetcher(loader)
inputs, target = prefetcher.next()
step, running, begun = 0, 0.0, time.time()
start.record()
while inputs is not None:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(inputs)
        loss = F.cross_entropy(logits, target)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    running += loss.item()
    step += 1
    inputs, target = prefetcher.next()
end.record()
torch.cuda.synchronize()
print(f"{step} steps in {time.time() - begun:.1f} s, loss {running / step:.4f}")
print(f"{start.elapsed_time(end) / step:.2f} ms a step")
assert step == 8


def rounded(*tensors: torch.Tensor) -> int:
    return sum(-(-tensor.numel() * tensor.element_size() // 512) * 512 for tensor in tensors)


del loss, logits
optimizer.zero_grad(set_to_none=True)
torch.cuda.synchronize()
weights = rounded(*model.parameters())
workspaces = torch.cuda.memory_allocated() - 2 * weights - 2 * 512
# What is left is weights, momentum, the scaler's two numbers and what cuBLAS keeps.
assert workspaces % 1024 == 0 and 0 <= workspaces <= 4 * 32 * 2**20, workspaces
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
print(torch.cuda.memory_summary(abbreviated=True))
