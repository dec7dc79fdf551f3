"""Attention over sequences of different lengths, one after the other in memory (torch.nested, layout jagged).

torch chooses its kernel in Python there, and asks the build which ones it has; one for the host has none. The
kernels themselves are those of plain attention, over all rows at once, and their shapes torch knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nested._internal import sdpa

from memviz.runner.predict.attention import AttentionCall, Backend, is_on, takes
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.torch_patches import Patches

_ASKED = {
    "can_use_flash_attention": Backend.FLASH,
    "can_use_efficient_attention": Backend.EFFICIENT,
}


@contextmanager
def jagged_attention_on(card: KnownCard) -> Iterator[None]:
    patches = Patches()
    try:
        for name, backend in _ASKED.items():
            patches.replace(sdpa, name, _answer(backend, card))
        # It comes after all others there, and those can do what it can.
        patches.replace(sdpa, "can_use_cudnn_attention", lambda params, debug=False: False)
        yield
    finally:
        patches.undo()


def _answer(backend: Backend, card: KnownCard) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:
        if not (params.query.is_meta and is_on(backend)):
            return False
        dropout, grouped = params.dropout, getattr(params, "enable_gqa", False)
        tensors = (params.query, params.key, params.value)
        with torch._C.DisableTorchFunction():
            call = AttentionCall(*tensors, params.attn_mask, dropout, params.is_causal, grouped)
        return params.attn_mask is None and takes(backend, call, card)

    return can_use
