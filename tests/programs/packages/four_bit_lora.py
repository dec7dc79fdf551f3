"""QLoRA: 4-bit weights of bitsandbytes, adapters of peft, and a paged optimizer."""

from typing import Any

import bitsandbytes
import peft
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16}
model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=8, vocab_size=32000)).to(torch.bfloat16)
whole = sum(weight.nbytes for weight in model.model.layers.parameters())
for parent in list(model.model.layers.modules()):
    for name, linear in list(parent.named_children()):
        if isinstance(linear, nn.Linear):
            packed = bitsandbytes.nn.Linear4bit(
                linear.in_features, linear.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
            )
            packed.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
            setattr(parent, name, packed)
model.model.layers.cuda()
assert torch.cuda.memory_allocated() < 0.3 * whole
model = peft.get_peft_model(model.cuda(), peft.LoraConfig(r=16, target_modules="all-linear"))
optimizer = bitsandbytes.optim.PagedAdamW8bit(model.parameters(), lr=1e-4)
for _ in range(2):
    tokens = torch.randint(0, 32000, (2, 1024), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
