"""A small Llama that others' trainers shard: `sharded_trainer.py WAY FSDP`, where WAY is accelerate or trainer.

It says how many bytes of weights and of the optimizer's states this process has on its card.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LAYER = "LlamaDecoderLayer"
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1024}
BATCH, LENGTH, STEPS = 2, 64, 2


def by_accelerate(model, fsdp):
    # An optimizer that is made before FSDP1 shards holds on to the whole weights otherwise.
    own = {"use_orig_params": True} if fsdp == 1 else {}
    shard = FullyShardedDataParallelPlugin(
        fsdp_version=fsdp, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=[LAYER], **own
    )
    accelerator = Accelerator(fsdp_plugin=shard, mixed_precision="bf16")
    optimizer = torch.optim.AdamW(model.parameters())
    rows = STEPS * BATCH * accelerator.num_processes
    tokens = DataLoader(TensorDataset(torch.zeros(rows, LENGTH, dtype=torch.long)), batch_size=BATCH)
    model, optimizer, tokens = accelerator.prepare(model, optimizer, tokens)
    for (batch,) in tokens:
        accelerator.backward(model(input_ids=batch, labels=batch, use_cache=False).loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer.optimizer


def by_trainer(model, fsdp):
    with tempfile.TemporaryDirectory() as folder:
        config = {"fsdp_version": fsdp, "transformer_layer_cls_to_wrap": [LAYER]}
        args = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, max_steps=STEPS, bf16=True, save_strategy="no", report_to=[],
            logging_strategy="no", disable_tqdm=True, fsdp=True, fsdp_config=config,
        )  # fmt: skip
        tokens = torch.zeros(LENGTH, dtype=torch.long)
        trainer = Trainer(model, args, train_dataset=[{"input_ids": tokens, "labels": tokens}] * 16)
        trainer.train()
    return trainer.model_wrapped, trainer.optimizer.optimizer


def held(tensors):
    own = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors if tensor.dim()]
    assert all(tensor.is_cuda for tensor in own)
    return sum(tensor.numel() * tensor.element_size() for tensor in own)


way, fsdp = sys.argv[1], int(sys.argv[2])
whole = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **SIZES))
count = sum(weight.numel() for weight in whole.parameters())
sharded, optimizer = (by_trainer if way == "trainer" else by_accelerate)(whole, fsdp)
states = [value for state in optimizer.state.values() for value in state.values()]
sys.stdout.write(f"{count} {held(sharded.parameters())} {held(states)}\n")
