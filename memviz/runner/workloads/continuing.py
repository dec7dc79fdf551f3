"""A language model that reads a prompt and then one token after the other, as it does when it writes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from optimizations.kv_cache import cache_argument


class Continuing(nn.Module):
    """The tokens after the prompt are given and not chosen, so that whatever rounds otherwise reads the same ones."""

    def __init__(self, model: nn.Module, prompt: int) -> None:
        super().__init__()
        self.model = model
        self.prompt = prompt

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        """The last token's logits, and the cache of all: of earlier tokens nobody wants logits."""
        cache = cache_argument(type(self.model), self.model.config)
        output = self.model(input_ids=input_ids[:, : self.prompt], use_cache=use_cache, logits_to_keep=1)
        for place in range(self.prompt, input_ids.shape[1]):
            token, kept = input_ids[:, place : place + 1], {cache: output[cache]} if use_cache else {}
            output = self.model(input_ids=token, **kept, use_cache=use_cache, logits_to_keep=1)
        return output
