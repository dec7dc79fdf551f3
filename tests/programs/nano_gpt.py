"""A small GPT on random tokens: cosine schedule, gradient accumulation, evaluation, a checkpoint and its resumption."""

import math
import os
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

device = "cuda"
batch_size, block_size, gradient_accumulation_steps = 4, 64, 3
max_iters, eval_interval, eval_iters, log_interval = 4, 2, 2, 1
learning_rate, min_lr, warmup_iters, lr_decay_iters = 6e-4, 6e-5, 2, 8
dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"


@dataclass
class GPTConfig:
    block_size: int = block_size
    vocab_size: int = 512
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 128
    dropout: float = 0.0


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd)
        )

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        print(f"number of parameters: {sum(p.numel() for p in self.parameters()) / 1e6:.2f}M")

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets=None):
        assert idx.size(1) <= self.config.block_size
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), dtype=torch.long, device=idx.device))
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -self.config.block_size :])
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
        return idx


torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
ctx = nullcontext() if device == "cpu" else torch.amp.autocast(device_type="cuda", dtype=getattr(torch, dtype))
data = {split: np.random.default_rng(7).integers(0, 512, 5000).astype(np.uint16) for split in ("train", "val")}


def get_batch(split):
    ix = torch.randint(len(data[split]) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[split][i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[split][i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            with ctx:
                _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def rounded(tensor):
    return -(-tensor.nbytes // 512) * 512


model = GPT(GPTConfig()).to(device)
# Tied weights are there once: .parameters() gives them once too.
weights = sum(rounded(p) for p in model.parameters())
assert torch.cuda.memory_allocated() == weights, (torch.cuda.memory_allocated(), weights)

decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
X, Y = get_batch("train")
best_val_loss, running = 1e9, -1.0
for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
    for _ in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    lossf = loss.item() * gradient_accumulation_steps
    running = lossf if running == -1.0 else 0.9 * running + 0.1 * lossf
    print(f"iter {iter_num}: loss {lossf:.4f}, norm {norm:.2f}, running {running:.4f}")

# Adam's two moments, and fused Adam's counters on the card: one number of 4 bytes for each weight.
state = sum(2 * rounded(p) + 512 for p in model.parameters())
del X, Y, logits, loss, norm
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == weights + state, (torch.cuda.memory_allocated(), weights + state)

path = os.path.join(tempfile.mkdtemp(), "ckpt.pt")
torch.save(
    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "args": asdict(model.config), "it": 4}, path
)
del model, optimizer, groups, decay, nodecay, group, scaler
assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
checkpoint = torch.load(path, map_location=device)
assert checkpoint["it"] == 4 and checkpoint["args"]["n_layer"] == 2
model = GPT(GPTConfig(**checkpoint["args"]))
model.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in checkpoint["model"].items()})
model.to(device)
checkpoint = None
# The optimizer's state came with the file and went with it.
assert torch.cuda.memory_allocated() == weights, (torch.cuda.memory_allocated(), weights)
with torch.no_grad(), ctx:
    y = model.generate(torch.zeros((1, 1), dtype=torch.long, device=device), 5, temperature=0.8, top_k=20)
tokens = y[0].tolist()
assert len(tokens) == 6 and y.shape == (1, 6)
