"""YOLO by ultralytics: its loss for a batch of boxes, and boxes of an image."""

import torch
from ultralytics.cfg import get_cfg
from ultralytics.nn.tasks import DetectionModel

model = DetectionModel("yolo11n.yaml", nc=3, verbose=False).cuda().train()
model.args = get_cfg()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
batch = {
    "img": torch.rand(2, 3, 320, 320, device="cuda"),
    "batch_idx": torch.tensor([0.0, 0.0, 1.0]),
    "cls": torch.tensor([[0.0], [1.0], [2.0]]),
    "bboxes": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.6, 0.3, 0.1], [0.5, 0.5, 0.8, 0.8]]),
}
for _ in range(2):
    loss, _ = model(batch)
    loss.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weights = sum(parameter.nbytes for parameter in model.parameters())
assert torch.cuda.memory_allocated() > 2 * weights
assert torch.cuda.max_memory_allocated() > 4 * weights
model.eval()
with torch.no_grad():
    assert model(batch["img"])[0].shape[:2] == (2, 7)
print("done")
