"""Several models that take turns on the card: moved by hand, weights streamed with copies that overlap."""

import gc

import torch
from torch import nn

MiB = 2**20
cuda, cpu = torch.device("cuda"), torch.device("cpu")
# 1024*1024*4 = 4 MiB a matrix, without biases.
encoder, denoiser, decoder = (nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(n)]) for n in (2, 5, 1))
assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_reserved() == 0


def flush():
    gc.collect()
    torch.cuda.empty_cache()


with torch.no_grad():
    encoder.to(cuda)
    assert torch.cuda.memory_allocated() == 2 * 4 * MiB
    # Requests between 1 and 10 MiB share segments of 20 MiB.
    assert torch.cuda.memory_reserved() == 20 * MiB, torch.cuda.memory_reserved() / MiB
    embedding = encoder(torch.randn(77, 1024, device=cuda)).clone()
    encoder.to(cpu)
    torch._C._cuda_clearCublasWorkspaces()
    # 77*1024*4 = 315392 = 616 * 512.
    assert torch.cuda.memory_allocated() == 315392, torch.cuda.memory_allocated()
    flush()
    denoiser.to(cuda)
    latents = torch.randn(256, 1024, device=cuda)
    for i in range(3):
        latents = latents - 0.1 * denoiser(latents)
        if i == 2:
            print(f"step {i}", float(latents.std()))
    denoiser.cpu()
    flush()
    decoder.to(cuda, non_blocking=True)
    image = decoder(latents).clamp(-1, 1).cpu()
    assert image.shape == (256, 1024) and not image.is_cuda
    decoder.to("cpu")
    del latents, embedding
    torch._C._cuda_clearCublasWorkspaces()
    flush()
assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()
assert all(p.device == cpu for p in [*encoder.parameters(), *denoiser.parameters(), *decoder.parameters()])

host = [layer.weight.data.pin_memory() for layer in denoiser]
assert all(w.is_pinned() for w in host)
buffers = [torch.empty(1024, 1024, device=cuda) for _ in range(2)]
copier, done = torch.cuda.Stream(), [torch.cuda.Event() for _ in range(2)]
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
x = torch.randn(64, 1024, device=cuda)
start.record()
for i, weight in enumerate(host):
    slot = i % 2
    with torch.cuda.stream(copier):
        copier.wait_stream(torch.cuda.current_stream())
        buffers[slot].copy_(weight, non_blocking=True)
        done[slot].record(copier)
    torch.cuda.current_stream().wait_event(done[slot])
    x = torch.nn.functional.linear(x, buffers[slot])
    x.record_stream(copier)
end.record()
torch.cuda.synchronize()
print(f"took {start.elapsed_time(end):.2f} ms")
torch._C._cuda_clearCublasWorkspaces()
# Two buffers of 4 MiB and x of 64*1024*4 bytes.
assert torch.cuda.memory_allocated() == 2 * 4 * MiB + 64 * 1024 * 4, torch.cuda.memory_allocated()
for w, layer in zip(host, denoiser):
    layer.weight.data = buffers[0]
assert next(denoiser.parameters()).is_cuda
assert torch.cuda.memory_allocated() == 2 * 4 * MiB + 64 * 1024 * 4
