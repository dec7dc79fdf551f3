"""What the predictor believes of the card: its size, its workspaces, and which attention kernel it takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

from memviz.allocator.context import overhead_on
from memviz.runner.predict.cards import CARDS, KnownCard
from memviz.runner.predict.decompositions import AttentionCall, Backend, backend_for
from tests.gpu.checks.asked import Answers, asked
from tests.gpu.machine import card_of, facts, release_of

_MiB = 1 << 20
_HALF, _SINGLE = torch.bfloat16, torch.float32


def card(_folder: Path) -> Answers:
    found = facts()
    real, named = card_of(found), known_as(found["device"])
    yield asked("a card of ours by its name", True, named is not None)
    if named is not None:
        near = abs(named.memory_bytes / real.memory_bytes - 1) < 0.01
        yield asked("its memory, to 1 %", named.memory_gib, round(real.memory_gib, 2), ok=near)
        yield asked("its compute capability", list(named.capability), list(real.capability))
        yield asked("its multiprocessors", named.multiprocessors, real.multiprocessors)
    x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    free, total = torch.cuda.mem_get_info()
    taken = total - free - torch.cuda.memory_reserved()
    aside = overhead_on(found["device"])
    text = "bytes that are neither free nor reserved, if nobody else has any"
    yield asked(text, f"at most {aside}", taken, ok=taken <= aside)


def known_as(name: str, cards: tuple[KnownCard, ...] = CARDS) -> KnownCard | None:
    """Drivers add the kind of memory or of board: 'NVIDIA H100 80GB HBM3', 'NVIDIA A100-SXM4-80GB'."""
    words = set(name.replace("-", " ").split())
    fitting = [each for each in cards if set(each.name.split()) <= words]
    return max(fitting, key=lambda each: len(each.name), default=None)


def workspaces(_folder: Path) -> Answers:
    """Of cuBLAS: one for the thread that goes forward and one for the thread that goes back."""
    major, minor = release_of(facts()).split(".")
    expected = card_of(facts()).cublas_workspace_in((int(major), int(minor)))
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    y = x @ x
    taken = torch.cuda.memory_allocated() - before - y.nbytes
    yield asked("taken by the first product, beside its result", expected, taken)
    before = torch.cuda.memory_allocated()
    y.sum().backward()
    assert x.grad is not None
    more = torch.cuda.memory_allocated() - before
    near = expected <= more <= expected + _MiB
    yield asked("taken by the first backward, gradients included", f"{expected} and some KiB", more, ok=near)
    for dtype in (_HALF, torch.float16):
        linear = torch.nn.Linear(256, 256, device="cuda", dtype=dtype)
        before = torch.cuda.memory_allocated()
        out = linear(torch.ones(512, 256, device="cuda", dtype=dtype))
        kept = torch.cuda.memory_allocated() - before - out.nbytes
        yield asked(f"kept by a linear layer with bias in {dtype}: its input", 512 * 256 * 2, kept)
        del linear, out


def attention(_folder: Path) -> Answers:
    """The kernel that torch itself says it would take, over what models ask for."""
    found = facts()
    real, release = card_of(found), tuple(int(each) for each in release_of(found).split("."))
    yield asked("cuDNN's attention is preferred", real.prefers_cudnn_attention, _first_is_cudnn())
    for words, call, extra in _calls():
        ours = backend_for(call, real, (release[0], release[1]))
        choice = torch._fused_sdp_choice(
            call.query, call.key, call.value, call.mask, call.dropout, call.is_causal, **extra
        )
        yield asked(words, ours.name.lower(), Backend(choice).name.lower())


def _first_is_cudnn() -> bool:
    q = torch.zeros(1, 8, 512, 64, device="cuda", dtype=_HALF)
    return torch._fused_sdp_choice(q, q, q) == Backend.CUDNN


def _calls() -> Iterator[tuple[str, AttentionCall, dict[str, Any]]]:
    grid = product(
        (_HALF, torch.float16, _SINGLE), (40, 64, 128, 256), ("", "causal", "mask", "grouped"), (False, True)
    )
    for dtype, width, kind, trains in grid:
        heads = 2 if kind == "grouped" else 8
        query = torch.zeros(2, 8, 512, width, device="cuda", dtype=dtype, requires_grad=trains)
        key, value = (
            torch.zeros(2, heads, 512, width, device="cuda", dtype=dtype, requires_grad=trains) for _ in range(2)
        )
        mask = torch.zeros(2, 1, 512, 512, device="cuda", dtype=dtype) if kind == "mask" else None
        grouped = kind == "grouped"
        call = AttentionCall(query, key, value, mask, 0.0, kind == "causal", grouped)
        words = f"{dtype}, width {width}, {kind or 'plain'}, {'training' if trains else 'inference'}"
        yield words.removeprefix("torch."), call, {"enable_gqa": True} if grouped else {}
