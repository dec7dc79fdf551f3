"""Small programs in plain torch, recorded by torch's own means: allocator behaviour that no workload shows.

`python -m tests.gpu.programs NAME FILE [LIMIT]` records one in a process of its own. A program prepares what it needs
and returns the function to record; what that returns stays alive until the snapshot is used.
"""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sample_traces import gpt

_LENGTHS = (384, 512, 256, 448, 512, 320, 416, 288)
_BATCH = 16

Recorded = Callable[[], Any]


@dataclass(frozen=True)
class Program:
    name: str
    begin: Callable[[torch.device], Recorded]
    conf: str = ""
    """Allocator settings."""
    limit_bytes: int | None = None
    """Memory of the card that it may take: for a program that is to run out."""


class Trainer:
    """Batches of the lengths that texts happen to have."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = gpt.GPT().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)

    def step(self, length: int, batch: int = _BATCH) -> None:
        tokens = torch.randint(gpt.VOCABULARY, (batch, length), device=self.device)
        _, loss = self.model(tokens, tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def steps(self, count: int, batch: int = _BATCH) -> Trainer:
        for number in range(count):
            self.step(_LENGTHS[number % len(_LENGTHS)], batch)
        return self


def _lengths(device: torch.device) -> Recorded:
    return lambda: Trainer(device).steps(8)


def _late(device: torch.device) -> Recorded:
    trainer = Trainer(device).steps(3)
    return lambda: trainer.steps(2)


def _runs_out(device: torch.device) -> Recorded:
    def grow() -> None:
        trainer = Trainer(device)
        for batch in range(4, 400, 4):
            trainer.steps(1, batch)

    return grow


def _feed_forward(splits: int) -> Callable[[torch.device], Recorded]:
    def begin(device: torch.device) -> Recorded:
        def run() -> Any:
            first, last = nn.Linear(1024, 8192), nn.Linear(8192, 1024)
            first, last = first.to(device), last.to(device)
            x = torch.randn(8, 1024, 1024, device=device)
            with torch.no_grad():
                for _ in range(3):
                    x = _split(first, last, x, splits)
            return first, last, x

        return run

    return begin


def _split(first: nn.Linear, last: nn.Linear, x: Tensor, splits: int) -> Tensor:
    if splits == 1:
        return last(functional.gelu(first(x)))
    out = last.bias.expand(x.shape).clone()
    ways = zip(first.weight.chunk(splits), first.bias.chunk(splits), last.weight.chunk(splits, 1), strict=True)
    for weight, bias, back in ways:
        out += functional.linear(functional.gelu(functional.linear(x, weight, bias)), back)
    return out


def _graph(device: torch.device) -> Recorded:
    """A CUDA graph has a private pool, which keeps its memory between replays."""

    def run() -> Any:
        torch.manual_seed(0)
        model, x = gpt.TransformerBlock().to(device), torch.randn(8, 512, gpt.WIDTH, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            out = model(x)
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            graph.replay()
        return model, x, out, graph

    return run


def _streams(device: torch.device) -> Recorded:
    """Batches are copied on a side stream while the previous one is processed."""

    def run() -> Any:
        torch.manual_seed(0)
        model, copies = gpt.TransformerBlock().to(device), torch.cuda.Stream()
        host = [torch.randn(16, length, gpt.WIDTH).pin_memory() for length in _LENGTHS]
        for batch in host:
            with torch.cuda.stream(copies):
                x = batch.to(device, non_blocking=True)
                ready = copies.record_event()
            torch.cuda.current_stream().wait_event(ready)
            x.record_stream(torch.cuda.current_stream())
            model(x).mean().backward()
            del x
        return model

    return run


PROGRAMS = (
    Program("plain-feed-forward", _feed_forward(1)),
    Program("plain-feed-forward-split", _feed_forward(4)),
    Program("lengths", _lengths),
    Program("lengths-expandable", _lengths, "expandable_segments:True"),
    Program("lengths-max-split", _lengths, "max_split_size_mb:128"),
    Program("out-of-memory", _runs_out, limit_bytes=3 << 30),
    Program("graph", _graph),
    Program("streams", _streams),
    Program("late", _late),
)


def record(program: Program, path: Path, limit: int | None) -> dict[str, Any]:
    """Write the snapshot of one program, and return the figures that torch counts."""
    cuda: Any = torch.cuda
    cuda.init()
    total = cuda.get_device_properties(0).total_memory
    if limit is not None:
        cuda.set_per_process_memory_fraction(limit / total)
    run = program.begin(torch.device("cuda", 0))
    cuda.empty_cache()
    allocs, frees = _counts()
    cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=500_000)
    cuda.reset_peak_memory_stats(0)
    ended = None
    try:
        kept = run()
    except torch.OutOfMemoryError:
        # What the error frees is still there while it is handled.
        kept, ended = None, (cuda.memory._snapshot(), _counts())
    cuda.synchronize()
    figures = cuda.memory_stats_as_nested_dict(0)
    snapshot, (now_allocs, now_frees) = ended or (cuda.memory._snapshot(), _counts())
    del kept
    with gzip.open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    return {
        **{f"peak_{name}_bytes": figures[f"{name}_bytes"]["all"]["peak"] for name in ("allocated", "reserved")},
        "allocs": now_allocs - allocs,
        "frees": now_frees - frees,
        "total": total,
        "fraction": None if limit is None else limit / total,
    }


def _counts() -> tuple[int, int]:
    counted = torch.cuda.memory_stats_as_nested_dict(0).get("allocation", {}).get("all", {})
    return counted.get("allocated", 0), counted.get("freed", 0)


def main(name: str, path: str, limit: str = "") -> None:
    program = next(program for program in PROGRAMS if program.name == name)
    figures = record(program, Path(path), int(limit) if limit else program.limit_bytes)
    sys.stdout.write(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
