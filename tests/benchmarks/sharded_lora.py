"""Llama 2 7B tuned by LoRA under FSDP1, for `memviz predict`: `sharded_lora.py all|limited outputs|loss`.

The recipe of Meta in July 2023: four sequences of 2,048 tokens a GPU, weights in bf16 and adapters in fp32, every
block checkpointed, eager attention. All-gathers run ahead freely or are limited to two; the model's outputs or the loss
alone are kept through backward. Measured on 4 A100s of 40 GB in
https://github.com/meta-llama/llama-cookbook/pull/41.
"""

import math
import sys
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy

WIDTH, INNER, BLOCKS, HEADS, WORDS = 4096, 11008, 32, 32, 32_000
PER_HEAD = WIDTH // HEADS
BATCH, LENGTH, STEPS = 4, 2048, 3
RANK, SCALE, DROPPED = 8, 4.0, 0.05


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Added(nn.Module):
    """A frozen linear layer with a trained low-rank one."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen
        self.dropout = nn.Dropout(DROPPED)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x):
        result = self.frozen(x)
        x = x.to(self.down.weight.dtype)
        result += self.up(self.down(self.dropout(x))) * SCALE
        return result


def by_head(x):
    return x.view(BATCH, LENGTH, HEADS, PER_HEAD).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        for name in ("cosines", "sines"):
            self.register_buffer(name, torch.ones(LENGTH, PER_HEAD), persistent=False)

    def forward(self, x, mask):
        query, key, value = (by_head(layer(x)) for layer in (self.query, self.key, self.value))
        query, key = self.turned(query), self.turned(key)
        weights = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(PER_HEAD)
        weights = weights + mask
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
        made = torch.matmul(weights, value).transpose(1, 2).reshape(x.shape)
        return self.out(made), (key, value)

    def turned(self, x):
        half = PER_HEAD // 2
        other = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cosines + other * self.sines


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.before, self.between = Norm(), Norm()

    def forward(self, x, mask):
        residual = x
        x, kept = self.attention(self.before(x), mask)
        x = residual + x
        residual = x
        x = self.between(x)
        return residual + self.down(F.silu(self.gate(x)) * self.up(x)), kept


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, labels, present):
        x, kept = self.words(tokens), []
        mask = causal_mask(present, x.dtype)
        for block in self.blocks:
            x, more = block(x, mask)
            kept.append(more)
        logits = self.head(self.norm(x)).float()
        before = logits[:, :-1].contiguous().view(-1, WORDS)
        loss = F.cross_entropy(before, labels[:, 1:].contiguous().view(-1))
        return {"loss": loss, "logits": logits, "kept": kept}


def causal_mask(present, dtype):
    least = torch.finfo(dtype).min
    later = torch.full((LENGTH, LENGTH), least, device=present.device).triu(1).to(dtype)
    missing = 1.0 - present[:, None, None, :].expand(BATCH, 1, LENGTH, LENGTH).to(dtype)
    return missing.masked_fill(missing.to(torch.bool), least) + later[None, None].expand(BATCH, 1, LENGTH, LENGTH)


def with_lora():
    model = Llama().to(torch.bfloat16).requires_grad_(requires_grad=False)
    for block in model.blocks:
        of_block = block.attention
        of_block.query, of_block.value = Added(of_block.query), Added(of_block.value)
    return model


def learns(module):
    is_leaf = next(module.children(), None) is None
    return is_leaf and getattr(module, "weight", None) is not None and module.weight.requires_grad


def sharded(gathers):
    policies = [
        partial(lambda_auto_wrap_policy, lambda_fn=learns),
        partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    ]
    model = FullyShardedDataParallel(
        with_lora(),
        auto_wrap_policy=partial(_or_policy, policies=policies),
        device_id=torch.cuda.current_device(),
        limit_all_gathers=gathers == "limited",
    )
    wrapper = partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=wrapper, check_fn=lambda module: isinstance(module, Block)
    )
    return model


def train(gathers, keeps):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % 4)
    model = sharded(gathers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    total = 0.0
    for _ in range(STEPS):
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
        batch = {"tokens": tokens, "labels": tokens.clone(), "present": torch.ones_like(tokens)}
        if keeps == "outputs":
            # They live until the next take their place, as they did there.
            outputs = model(**batch)
            loss = outputs["loss"]
        else:
            loss = model(**batch)["loss"]
        total += loss.detach().float()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(f"loss {loss.detach().float()}\n")
    figures = torch.cuda.memory_stats()
    peaks = (figures[f"{name}_bytes.all.peak"] / 2**30 for name in ("active", "reserved"))
    sys.stdout.write("active {:.2f} GiB, reserved {:.2f} GiB\n".format(*peaks))


train(*sys.argv[1:])
