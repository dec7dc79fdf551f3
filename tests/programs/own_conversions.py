"""Modules that move themselves, and checkpoints of whole models: each class converts in its own way."""

import os
import tempfile

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
from torch import nn

first = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
del first
second = torch.empty(150 << 20, dtype=torch.uint8, device="cuda")
# The setting counts, because nothing was allocated before it: the segment grew, where a new one would make 250.
assert torch.cuda.memory_reserved() == 160 << 20, torch.cuda.memory_reserved()
del second


class Mean(nn.Module):
    """A metric, which is no buffer."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(1)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.total = fn(self.total)
        return self


class Packed(nn.Parameter):
    """A weight of four bits once it is on the card."""

    def to(self, *args, **kwargs):
        return nn.Parameter(torch.empty(self.numel() // 2, 1, dtype=torch.uint8, device="cuda"), requires_grad=False)


before = torch.cuda.memory_allocated()
layer = nn.Linear(1024, 1024, bias=False)
layer.weight = Packed(layer.weight.data, requires_grad=False)
layer.to("cuda")
assert layer.weight.shape == (1024 * 512, 1) and torch.cuda.memory_allocated() - before == 1024 * 512
del layer

torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
model = nn.ModuleDict({"rnn": nn.LSTM(512, 512, 2), "mean": Mean(), "head": nn.Linear(512, 512)}).to("cuda")
model["mean"].total += torch.ones(1, device="cuda")
rnn = sum(p.numel() * 4 for p in model["rnn"].parameters())
# All weights of recurrent layers move into one buffer, so they are there twice for a moment.
assert len({p.untyped_storage().data_ptr() for p in model["rnn"].parameters()}) == 1
assert torch.cuda.max_memory_allocated() - before >= 2 * rnn
optimizer = torch.optim.Adam(model.parameters())
out, _ = model["rnn"](torch.randn(4, 2, 512, device="cuda"))
model["head"](out).sum().backward()
optimizer.step()
optimizer.zero_grad()
del out

held = torch.cuda.memory_allocated()
path = os.path.join(tempfile.mkdtemp(), "model.pt")
torch.save(model, path)
assert torch.cuda.memory_allocated() == held, (held, torch.cuda.memory_allocated())
assert next(model.parameters()).is_cuda
loaded = torch.load(path, weights_only=False)
assert loaded is not model and all(p.is_cuda for p in loaded.parameters())
assert torch.cuda.memory_allocated() - held >= rnn
del loaded
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}, path)
for where in (None, {"cuda:0": "cuda:0"}, "cuda", "cpu", {"cuda:0": "cpu"}):
    checkpoint = torch.load(path, map_location=where)
    average = checkpoint["optimizer"]["state"][0]["exp_avg"]
    places = {checkpoint["model"]["head.weight"].device.type, average.device.type}
    assert places == {"cpu" if where in ("cpu", {"cuda:0": "cpu"}) else "cuda"}, (where, places)
model.load_state_dict(checkpoint["model"])
print(checkpoint["epoch"])
