"""The Trainer of transformers with a configuration file of DeepSpeed: ZeRO-3 with parameters and states on the host."""

import json
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 8000, (256,))
        return {"input_ids": tokens, "labels": tokens.clone()}


host = {"device": "cpu", "pin_memory": True}
automatic = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
Path("zero3.json").write_text(
    json.dumps(
        {
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": host,
                "offload_param": host,
                "overlap_comm": True,
                "reduce_bucket_size": "auto",
                "stage3_prefetch_bucket_size": "auto",
                "stage3_param_persistence_threshold": "auto",
            },
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
            "bf16": {"enabled": "auto"},
            **dict.fromkeys(automatic, "auto"),
        }
    )
)
arguments = TrainingArguments(
    "out",
    deepspeed="zero3.json",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    max_steps=2,
    bf16=True,
    report_to=[],
    save_strategy="no",
)
sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
# Made after the arguments, so that each weight is sharded as soon as it is made.
model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=8000))
weights = sum(weight.ds_numel for weight in model.parameters())
assert sum(weight.numel() for weight in model.parameters()) == 0
Trainer(model, arguments, train_dataset=Texts()).train()
# Less than the weights in bf16, of which the card has a part at a time.
assert torch.cuda.memory_allocated() < 2 * weights
print("done")
