"""Code of earlier years, and what decides by numbers of the card: default types, detections, prepared data."""

import numpy as np
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

# Data that is prepared on the host: the mask is known, and the rows are in memory.
rows = torch.from_numpy(np.random.default_rng(0).standard_normal((60000, 100), dtype=np.float32))
keep = rows[:, 0] > 0
data = rows[keep].to("cuda")
assert data.shape == (int(keep.sum()), 100)
assert 0 <= torch.cuda.memory_allocated() - data.numel() * 4 < 1 << 20
degrees = torch.arange(1.0, 1001.0)
assert torch.diag(degrees).to_sparse().values().shape == (1000,)


@torch.library.custom_op("older_code::nms", mutates_args=())
def nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    # What is left depends on the values.
    return torch.nonzero(scores > threshold).flatten()


@nms.register_fake
def _(boxes, scores, threshold):
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)


boxes = torch.rand(100, 4, device="cuda").cumsum(1)
kept = nms(boxes, boxes[:, 0], 0.5)
# Detections are all kept.
assert kept.is_cuda and boxes[kept].shape == (100, 4)

weights = torch.randn(64, 64, device="cuda")
outputs = weights @ weights
chosen = outputs.argmax(1)
loss = outputs.mean()
print("%d" % loss, int(loss * 10), float(weights.sum()), chr(max(32, chosen[0])))  # noqa: UP031
if torch.rand((), device="cuda") < 0.5 or torch.rand(1, device="cuda").item() < 2:
    ends = chosen * (outputs[:, 0] > 0).long()
    # No longer than the row, whatever it is.
    assert outputs[0, : ends[ends.ge(0)][-1]].shape == (64,)

a, b = torch.randn(64, 32, device="cuda").bfloat16(), torch.randn(32, 128, device="cuda").bfloat16()
total = torch.zeros(64, 128, device="cuda")
for product in (
    torch.mm(a, b, out_dtype=torch.float32),
    torch.bmm(a[None], b[None], out_dtype=torch.float32)[0],
    torch.addmm(total, a, b, out_dtype=torch.float32),
    torch.baddbmm(total[None], a[None], b[None], out_dtype=torch.float32)[0],
):
    assert product.dtype == torch.float32 and product.shape == (64, 128)


class Named(torch.Tensor):
    pass


assert type(Named([1.0, 2.0])) is Named
torch.set_default_tensor_type("torch.cuda.FloatTensor")
assert torch.Tensor([1e10]).expand(4, 1).is_cuda and torch.Tensor(2, 3).is_cuda and torch.rand(4).is_cuda
assert torch.FloatTensor(3).device.type == "cpu"
torch.set_default_tensor_type(torch.FloatTensor)
assert torch.Tensor([1.0]).device.type == "cpu"

model = torch.nn.Linear(100, 10).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model(data).sum().backward()
optimizer.step()
print(ZeroRedundancyOptimizer.__name__)
