"""LoRA by hand: a frozen base in bfloat16, small factors in float32, and the base moved out of the way afterwards."""

import math

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int = 8, alpha: int = 16):
        super().__init__()
        self.base = base
        self.base.weight.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        update = (x.float() @ self.lora_A.T) @ self.lora_B.T
        return self.base(x) + (update * self.scaling).to(x.dtype)

    @torch.no_grad()
    def merge(self):
        self.base.weight += (self.lora_B @ self.lora_A * self.scaling).to(self.base.weight.dtype)


def inject(model, r):
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, LoRALinear(child, r))
        else:
            inject(child, r)


device = torch.device("cuda", 0)
width, depth, r = 512, 3, 8
model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width, bias=False), nn.GELU()) for _ in range(depth)])
model = model.to(device=device, dtype=torch.bfloat16)
base = depth * width * width * 2
assert torch.cuda.memory_allocated() == base
inject(model, r)
# The factors were made on the host.
assert torch.cuda.memory_allocated() == base
model.to(device)
factors = depth * 2 * r * width * 4
assert torch.cuda.memory_allocated() == base + factors

trainable = [p for p in model.parameters() if p.requires_grad]
total = sum(p.numel() for p in model.parameters())
count = sum(p.numel() for p in trainable)
print(f"trainable params: {count:,} || all params: {total:,} || trainable%: {100 * count / total:.4f}")
assert len(trainable) == 2 * depth
optimizer = torch.optim.AdamW(trainable, lr=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 2))
for step in range(3):
    x = torch.randn(4, 16, width, device=device, dtype=torch.bfloat16)
    target = torch.randn_like(x)
    loss = nn.functional.mse_loss(model(x).float(), target.float())
    loss.backward()
    nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(step, round(loss.item(), 4), scheduler.get_last_lr()[0])
assert all(m.base.weight.grad is None for m in model.modules() if isinstance(m, LoRALinear))
del x, target, loss
torch._C._cuda_clearCublasWorkspaces()
# The factors and their two moments beside the frozen base.
assert torch.cuda.memory_allocated() == base + 3 * factors, (torch.cuda.memory_allocated(), base + 3 * factors)

for module in model.modules():
    if isinstance(module, LoRALinear):
        module.merge()
adapters = {k: v.cpu() for k, v in model.state_dict().items() if "lora_" in k}
assert len(adapters) == 2 * depth and all(v.device.type == "cpu" for v in adapters.values())
del optimizer, scheduler
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == base + factors
model.to("cpu")
trainable.clear()
assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
