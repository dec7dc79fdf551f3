"""A kernel in Triton, timed by its own benchmark, and those of Liger in a Llama."""

from typing import Any

import torch
import triton
import triton.language as tl
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM


@triton.jit  # type: ignore[untyped-decorator]
def add(left: Any, right: Any, out: Any, count: Any, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(left + at, mask=inside) + tl.load(right + at, mask=inside), mask=inside)


left = torch.rand(1 << 20, device="cuda")
right, out = torch.rand_like(left), torch.empty_like(left)
grid = (triton.cdiv(out.numel(), 1024),)
print(triton.testing.do_bench(lambda: add[grid](left, right, out, out.numel(), BLOCK=1024)))
assert torch.cuda.max_memory_allocated() >= 3 * left.nbytes + (256 << 20), "do_bench clears a cache of 256 MiB"
apply_liger_kernel_to_llama()
sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=64000)).cuda().bfloat16()
torch.cuda.reset_peak_memory_stats()
tokens = torch.randint(0, 8000, (4, 512), device="cuda")
model(input_ids=tokens, labels=tokens).loss.backward()
assert torch.cuda.max_memory_allocated() < 4 * 512 * 64000 * 4, "the logits are never there as a whole"
print("done")
