"""GRPO by trl: several answers to a prompt are generated, rewarded and trained on, and DPO on pairs of answers."""

from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{at}" for at in range(500))])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4}
ends = {"pad_token_id": 0, "eos_token_id": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, **ends, num_key_value_heads=2, vocab_size=len(words)))
common: Any = {"max_steps": 2, "per_device_train_batch_size": 4, "report_to": [], "save_strategy": "no"}


def lengths(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


prompts = Dataset.from_dict({"prompt": [f"w{at} w2" for at in range(16)]})
rewarded = GRPOConfig("grpo", num_generations=4, max_completion_length=16, **common)
GRPOTrainer(model, lengths, args=rewarded, train_dataset=prompts, processing_class=tokenizer).train()
pairs = {"prompt": ["w1 w2"] * 16, "chosen": [" w3 w4 w5"] * 16, "rejected": [" w6 w7"] * 16}
DPOTrainer(
    model,
    args=DPOConfig("dpo", **common),
    train_dataset=Dataset.from_dict(pairs),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=4, target_modules="all-linear"),
).train()
assert torch.cuda.max_memory_allocated() > sum(weight.nbytes for weight in model.parameters())
print("done")
