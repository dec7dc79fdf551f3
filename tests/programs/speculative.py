"""Speculative decoding by hand, with a cache of keys and values that lies in eight bits."""

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, WIDTH, HEADS, LONGEST, DRAFTED, END = 1000, 128, 4, 96, 4, 2


class Cache:
    def __init__(self, device):
        shape = (1, HEADS, LONGEST, WIDTH // HEADS)
        self.values = [torch.zeros(shape, dtype=torch.int8, device=device) for _ in range(2)]
        self.scales = [torch.zeros(*shape[:-1], 1, dtype=torch.float16, device=device) for _ in range(2)]
        self.length = 0

    def update(self, *new):
        begin, end = self.length, self.length + new[0].size(2)
        for tensor, values, scales in zip(new, self.values, self.scales):
            scale = tensor.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
            values[:, :, begin:end] = (tensor / scale).round().clamp(-127, 127).to(torch.int8)
            scales[:, :, begin:end] = scale.half()
        self.length = end
        return [(v[:, :, :end] * s[:, :, :end]).float() for v, s in zip(self.values, self.scales)]


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))

    def forward(self, ids, caches):
        x = self.embed(ids[:, caches[0].length :])
        for layer, cache in zip(self.qkv, caches):
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            k, v = cache.update(k, v)
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=q.size(2) == k.size(2)).transpose(1, 2).flatten(2)
        return self.head(x).softmax(-1)


@torch.no_grad()
def generate(target, draft, ids, longest):
    ours, theirs = ([Cache(ids.device) for _ in model.qkv] for model in (target, draft))
    done = torch.zeros(1, dtype=torch.bool, device=ids.device)
    while ids.size(1) < longest:
        begin, said, chances = ids.size(1), ids, []
        for _ in range(DRAFTED):
            chances.append(draft(said, theirs)[:, -1])
            said = torch.cat([said, torch.multinomial(chances[-1], 1)], 1)
        true = target(said, ours)[:, -DRAFTED - 1 :]
        ratio = torch.stack(
            [true[0, i, said[0, begin + i]] / chances[i][0, said[0, begin + i]] for i in range(DRAFTED)]
        )
        accepted = (torch.rand_like(ratio) <= ratio).long().cumprod(0).sum().item()
        ids = torch.cat([said[:, : begin + accepted], torch.multinomial(true[:, accepted], 1)], 1)
        for cache in (*ours, *theirs):
            cache.length = min(cache.length, ids.size(1) - 1)
        done |= (ids[:, begin:] == END).any(1)
        if done.all():
            break
    return ids


torch.manual_seed(0)
target, draft = Model(4).cuda().eval(), Model(1).cuda().eval()
before = torch.cuda.memory_allocated()
caches = [Cache("cuda") for _ in range(5)]
# Twice 96 * 128 bytes, and twice 4 * 96 * 2 = 768 -> 1024.
assert torch.cuda.memory_allocated() - before == 5 * 2 * (LONGEST * WIDTH + 1024)
del caches
text = generate(target, draft, torch.randint(3, WORDS, (1, 8), device="cuda"), 64)
assert text.shape == (1, text.size(1)) and 9 <= text.size(1) <= 64 + DRAFTED, text.shape
print(len(text[0].tolist()), torch.cuda.max_memory_allocated())
