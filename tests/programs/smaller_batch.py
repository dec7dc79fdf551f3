"""Finds a batch that fits, as tools do: on a card of 16 GB the first tries run out of memory, and training goes on."""

import argparse
import functools
import gc

import torch
from torch import nn
from torch.nn import functional as F

GiB = 2**30


def find_executable_batch_size(function, starting_batch_size):
    @functools.wraps(function)
    def wrapper(*args):
        batch_size = starting_batch_size
        while True:
            if batch_size == 0:
                raise RuntimeError("No executable batch size found, reached zero.")
            try:
                return function(batch_size, *args)
            except Exception as error:
                if not isinstance(error, RuntimeError) or "out of memory" not in str(error):
                    raise
                print(f"{batch_size} is too many: {str(error).split('.')[0]}")
            gc.collect()
            torch.cuda.empty_cache()
            batch_size //= 2

    return wrapper


class Net(nn.Module):
    def __init__(self, width=4096):
        super().__init__()
        self.a, self.b = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=2**20)
args = parser.parse_args()
torch.backends.cudnn.benchmark = False
total = torch.cuda.get_device_properties(0).total_memory
assert 14 * GiB < total < 17 * GiB, "meant for a card of 16 GB"
model = Net().cuda()
# Two matrices of 4096 * 4096 * 4 bytes.
weights = 2 * 64 * 2**20
assert torch.cuda.memory_allocated() == weights


def step(batch_size, model):
    x = torch.empty(batch_size, 4096, device="cuda").normal_()
    loss = model(x).pow(2).mean()
    loss.backward()
    model.zero_grad(set_to_none=True)
    return batch_size


batch = find_executable_batch_size(step, args.batch)(model)
# A row takes 16 KiB in each tensor. Forward holds four of them (the input, both sides of GELU, and the output), so
# 2**20 rows are 16 GiB at once, 2**19 are 32 GiB in all and 2**18 are 16: none of them fits, and 2**16 takes 4.
assert 2**15 <= batch <= 2**17, batch
stats = torch.cuda.memory_stats()
assert stats["num_ooms"] >= 3, stats["num_ooms"]
assert torch.cuda.max_memory_allocated() < total
free, all_of_it = torch.cuda.mem_get_info()
assert 0 < free < all_of_it == total
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == weights, torch.cuda.memory_allocated()

torch.cuda.set_per_process_memory_fraction(0.25)
try:
    hog = torch.empty(6 * GiB, dtype=torch.uint8, device="cuda")
    raise SystemExit("6 GiB are more than a quarter of the card")
except torch.OutOfMemoryError as error:
    assert isinstance(error, torch.cuda.OutOfMemoryError) and "allowed" in str(error)
print(f"batch {batch}, peak {torch.cuda.max_memory_allocated() / GiB:.2f} GiB")
