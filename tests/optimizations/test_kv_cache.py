"""Caches of keys and values: what each of them holds, and what later tokens see of it."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from optimizations.kv_cache import KvCache, cache_argument
from tests.optimizations.tiny import cache_of, llama

LAYERS, HEADS, HEAD, ROWS = 4, 2, 8, 2
A_TOKEN = 2 * LAYERS * ROWS * HEADS * HEAD
"""Numbers that all layers keep of it: keys and values."""


def made() -> Any:
    return llama().model.eval()


def bringing(model: Any, cache: Any) -> dict[str, Any]:
    return {cache_argument(type(model), model.config): cache}


def read(model: Any, tokens: Tensor, more: int = 0) -> Any:
    """The first call, and then so many tokens one by one."""
    with torch.no_grad():
        output = model(tokens[:, : tokens.shape[1] - more], use_cache=True)
        for place in range(tokens.shape[1] - more, tokens.shape[1]):
            output = model(tokens[:, place : place + 1], **bringing(model, cache_of(output)), use_cache=True)
    return output


def held(cache: Any) -> int:
    """Bytes of all its tensors but single numbers."""
    storages = {}
    for layer in cache.layers:
        for value in vars(layer).values():
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, Tensor) and tensor.dim() > 1:
                    storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


TOKENS = torch.arange(24).reshape(2, 12) % 64


def test_each_kind_holds_what_it_says() -> None:
    model = made()
    assert held(cache_of(read(model, TOKENS))) == 12 * A_TOKEN * 4
    for kinds, more, expected in (
        (KvCache("quantized"), 0, 12 * A_TOKEN),
        (KvCache("quantized"), 5, 12 * A_TOKEN),
        (KvCache("static", length=50), 3, 50 * A_TOKEN * 4),
        (KvCache("dynamic"), 3, 12 * A_TOKEN * 4),
    ):
        undo = kinds.apply(model)
        assert held(cache_of(read(model, TOKENS, more))) == expected
        undo()


def test_a_sliding_cache_keeps_a_window_and_later_tokens_do_not_see_beyond_it() -> None:
    model = made()
    whole = read(model, TOKENS, 4).logits
    changed = TOKENS.clone()
    changed[:, :3] += 7
    assert not torch.equal(read(model, changed, 4).logits, whole)
    undo = KvCache("sliding", window=5).apply(model)
    before = read(model, TOKENS, 4)
    lengths = {layer.keys.shape[2] for layer in cache_of(before).layers}
    undo()
    assert lengths == {4}
    assert not torch.allclose(before.logits, whole, atol=1e-5)


def test_the_first_call_is_the_same_whichever_keeps_it_and_static_stays_so() -> None:
    model = made()
    first, later = read(model, TOKENS).logits, read(model, TOKENS, 5).logits
    for change in (
        KvCache("quantized"),
        KvCache("sliding", window=3),
        KvCache("static", length=64),
        KvCache("dynamic"),
    ):
        undo = change.apply(model)
        torch.testing.assert_close(read(model, TOKENS).logits, first)
        ours = read(model, TOKENS, 5).logits
        undo()
        if change.claim == "lossy":
            assert not torch.allclose(ours, later, atol=1e-6)
            assert change.kind == "sliding" or (ours - later).norm() < 0.1 * later.norm()
        else:
            torch.testing.assert_close(ours, later)
    assert torch.equal(read(model, TOKENS, 5).logits, later)


def test_a_cache_that_is_brought_is_used_and_without_one_none_is_kept() -> None:
    from transformers import DynamicCache

    model = made()
    undo = KvCache("static", length=64).apply(model)
    brought = DynamicCache(config=model.config)
    assert cache_of(model(TOKENS, use_cache=True, **bringing(model, brought))) is brought
    with warnings.catch_warnings(action="ignore"):
        assert cache_of(model(TOKENS, use_cache=True, past_key_values=brought)) is brought
    assert cache_of(model(TOKENS, use_cache=False)) is None
    assert type(cache_of(copy.deepcopy(model)(TOKENS, use_cache=True))).__name__ == "StaticCache"
    with pytest.raises(ValueError, match="12 tokens exceed the static cache of 8"):
        KvCache("static", length=8).apply(other := made())
        other(TOKENS, use_cache=True)
    undo()
    assert type(cache_of(model(TOKENS, use_cache=True))).__name__ == "DynamicCache"
