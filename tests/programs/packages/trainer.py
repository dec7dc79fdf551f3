"""The Trainer of transformers in bf16, with gradient checkpointing, evaluation and a paged 8-bit optimizer."""

from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 8000, (256,))
        return {"input_ids": tokens, "labels": tokens.clone()}


sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=8000))
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=3,
    bf16=True,
    gradient_checkpointing=True,
    optim="paged_adamw_8bit",
    report_to=[],
    logging_steps=1,
    save_strategy="no",
    eval_strategy="steps",
    eval_steps=2,
)
trainer = Trainer(model, arguments, train_dataset=Texts(), eval_dataset=Texts())
trainer.train()
trainer.evaluate()
assert torch.cuda.max_memory_allocated() > 2 * sum(weight.nbytes for weight in model.parameters())
print("done")
