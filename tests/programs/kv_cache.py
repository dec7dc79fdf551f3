"""Text generation with a cache of keys and values written by hand, in inference mode."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H, L, MAX, B = 256, 256, 8, 2, 128, 2
itos = {i: chr(33 + i % 90) for i in range(V)}
decode = lambda tokens: "".join(itos[t] for t in tokens)
dev, half = torch.device("cuda"), torch.float16


class KVCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(B, H, MAX, D // H, dtype=half), persistent=False)
        self.register_buffer("v", torch.zeros(B, H, MAX, D // H, dtype=half), persistent=False)

    def update(self, pos, k, v):
        self.k[:, :, pos], self.v[:, :, pos] = k, v
        end = int(pos[-1]) + 1
        return self.k[:, :, :end], self.v[:, :, :end]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.cache = None

    def forward(self, x, pos, mask):
        q, k, v = (t.view(*x.shape[:2], H, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        k, v = self.cache.update(pos, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Attention() for _ in range(L))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.register_buffer("causal", torch.tril(torch.ones(MAX, MAX, dtype=torch.bool)), persistent=False)

    def forward(self, idx, pos):
        mask = self.causal[pos, : int(pos[-1]) + 1]
        x = self.emb(idx)
        for layer in self.layers:
            x = x + layer(x, pos, mask)
        return self.head(self.norm(x))


def sample(logits, temperature=0.8, top_p=0.9):
    probs = torch.softmax(logits[:, -1].float() / temperature, dim=-1)
    sorted_probs, order = torch.sort(probs, descending=True)
    sorted_probs[torch.cumsum(sorted_probs, -1) - sorted_probs > top_p] = 0.0
    return order.gather(-1, torch.multinomial(sorted_probs, num_samples=1))


model = LM().to(dev, dtype=half).eval()
# Two matrices of V*D, per layer 4*D*D, a norm of two rows of 512 bytes, all in halves; the mask is bool.
weights = 2 * V * D * 2 + L * 4 * D * D * 2 + 2 * 512
mask_bytes = MAX * MAX
assert torch.cuda.memory_allocated() == weights + mask_bytes, (torch.cuda.memory_allocated(), weights, mask_bytes)
with torch.device(dev):
    for layer in model.layers:
        layer.cache = KVCache()
cache = L * 2 * B * MAX * D * 2
assert torch.cuda.memory_allocated() == weights + mask_bytes + cache

prompt = torch.randint(0, V, (B, 10), device=dev)
with torch.inference_mode():
    out = [sample(model(prompt, torch.arange(10, device=dev)))]
    finished = torch.zeros(B, 1, dtype=torch.bool, device=dev)
    for step in range(10, 24):
        token = sample(model(out[-1], torch.tensor([step], device=dev)))
        finished |= token == V - 1
        out.append(token)
    text = torch.cat([prompt, *out], dim=1)
assert text.shape == (B, 10 + 15) and text.is_inference()
for row in text[:, 10:].tolist():
    print(decode(row), len(row))
    assert len(decode(row)) == 15
del prompt, out, token, text, finished
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == weights + mask_bytes + cache, torch.cuda.memory_allocated()
print(torch.cuda.memory_summary(abbreviated=True).splitlines()[1])
