"""Llama 2 7B as torchtitan trained it in March 2024, for `memviz predict`: `sharded_llama.py fsdp1|fsdp2 full|some`.

Eight sequences of 2,048 tokens a GPU, bf16 with gradients reduced in fp32, every block checkpointed: in full, or all
but attention and every other matrix product. Measured in https://github.com/pytorch/torchtitan/pull/165.
"""

import sys
from collections import Counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

WIDTH, INNER, BLOCKS, HEADS, WORDS = 4096, 11008, 32, 32, 32_000
BATCH, LENGTH, STEPS = 8, 2048, 3
aten = torch.ops.aten
ATTENTION = (aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return wide.type_as(x) * self.weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.before, self.between = Norm(), Norm()

    def forward(self, x, turns):
        x = x + self.attention(self.before(x), turns)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attention(self, x, turns):
        heads = [layer(x).view(*x.shape[:2], HEADS, -1) for layer in (self.query, self.key, self.value)]
        query, key = (turned(head, turns) for head in heads[:2])
        parts = [part.transpose(1, 2) for part in (query, key, heads[2])]
        made = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(made.transpose(1, 2).contiguous().view(x.shape))


def turned(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)
        turns = torch.empty(1, LENGTH, 1, WIDTH // HEADS // 2, dtype=torch.complex64)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.turns)
        return self.head(self.norm(x)).float()


def every_other_product():
    seen = Counter()

    def policy(context, operator, *args, **kwargs):
        seen[context.is_recompute] += operator == aten.mm.default
        is_kept = operator in ATTENTION or (operator == aten.mm.default and seen[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def sharded(way, keeps):
    with torch.device("meta"):
        model = Llama()
    more = {"context_fn": every_other_product} if keeps == "some" else {}
    for number, block in enumerate(model.blocks):
        how = {"checkpoint_impl": CheckpointImpl.NO_REENTRANT, "preserve_rng_state": False, **more}
        model.blocks[number] = checkpoint_wrapper(block, **how)
    if way == "fsdp1":
        return by_fsdp1(model)
    mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
    half = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    for number, block in enumerate(model.blocks):
        fully_shard(block, reshard_after_forward=number < BLOCKS - 1, **half)
    fully_shard(model, **half)
    return model.to_empty(device="cuda")


def by_fsdp1(model):
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    here = {
        "mixed_precision": half,
        "device_id": torch.cuda.current_device(),
        "use_orig_params": True,
        "param_init_fn": lambda module: module.to_empty(device="cuda", recurse=False),
    }
    for number, block in enumerate(model.blocks):
        model.blocks[number] = FullyShardedDataParallel(block, **here)
    return FullyShardedDataParallel(model, **here)


def train(way, keeps):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % 8)
    model = sharded(way, keeps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    for _ in range(STEPS):
        tokens, labels = (torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda") for _ in range(2))
        optimizer.zero_grad()
        # It lives until the next takes its place, as it did there.
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))
        loss.backward()
        if way == "fsdp1":
            model.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    figures = torch.cuda.memory_stats()
    peaks = (figures[f"{name}_bytes.all.peak"] / 2**30 for name in ("active", "reserved"))
    sys.stdout.write("active {:.2f} GiB, reserved {:.2f} GiB\n".format(*peaks))


train(*sys.argv[1:])
