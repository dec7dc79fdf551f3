"""Programs of our own that do what the recorded ones did, by the names of the recordings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from tests.truth.language_model import AdamW, LanguageModel, Sizes, cross_entropy

Program = Callable[[], None]


def _words(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64).to("cuda")


def _forward() -> None:
    model = LanguageModel(Sizes(batch=10, context=100))
    words = _words(10, 100)
    for _ in range(3):
        model(words)


def _train(context: int, *, halves: bool) -> Program:
    def run() -> None:
        model = LanguageModel(Sizes(batch=10, context=context))
        optimizer = AdamW(model.parameters())
        words, next_words = _words(10, context), _words(10)
        with torch.autocast("cuda", dtype=torch.bfloat16) if halves else nullcontext():
            for _ in range(3):
                scores = model(words)
                loss = cross_entropy(scores[:, -1, :], next_words)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    return run


def _attention() -> None:
    query, key, value = (torch.randn(8, 4096, 16, device="cuda", requires_grad=True) for _ in range(3))
    mixed = _mixed(query, key, value)
    mixed.sum().backward()


def _mixed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", query, key) / 16**0.5
    return torch.einsum("...qk,...kd->...qd", _shares(scores), value)


def _shares(scores: Tensor) -> Tensor:
    highest = scores.max(dim=-1, keepdim=True).values
    exponents = torch.exp(scores - highest)
    return exponents / torch.sum(exponents, dim=-1, keepdim=True)


PROGRAMS: dict[str, Program] = {
    "forward-complete": _forward,
    "train-complete": _train(100, halves=False),
    "train-mixed-precision": _train(200, halves=True),
    "small-complete": _attention,
}
