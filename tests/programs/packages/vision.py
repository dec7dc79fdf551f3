"""Models of torchvision and timm, trained for a step, and a detector's boxes after suppression."""

import timm
import torch
from torchvision.models import resnet18
from torchvision.ops import box_iou

for model in (resnet18(num_classes=10), timm.create_model("vit_tiny_patch16_224", num_classes=10)):
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    images, labels = torch.randn(4, 3, 224, 224, device="cuda"), torch.arange(4, device="cuda")
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    # Weights and two moments; then gradients and activations too.
    assert torch.cuda.memory_allocated() > 3 * weights
    assert torch.cuda.max_memory_allocated() > 4 * weights
    torch.save(model.state_dict(), "model.pt")
    model.load_state_dict(torch.load("model.pt"))

boxes = torch.rand(100, 4, device="cuda")
assert box_iou(boxes, boxes).shape == (100, 100)
print("done")
