"""A plain training script for the small GPT: batches, forward, backward, clipping and AdamW, step after step.

`python -m sample_traces.train` trains it on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor
from torch.profiler import record_function

from sample_traces.gpt import GPT, VOCABULARY

Result = TypeVar("Result")
BATCH = 8


def next_batch(length: int) -> tuple[Tensor, Tensor]:
    text = torch.randint(VOCABULARY, (BATCH, length + 1))
    return text[:, :-1].to("cuda"), text[:, 1:].to("cuda")


def train(
    lengths: Sequence[int],
    at_end: Callable[[], Result],
    *,
    checkpointed: bool = False,
    step_range: Callable[[str], AbstractContextManager[object]] = record_function,
) -> Result:
    """One step for each length of sequence, and what `at_end` gives while everything is still alive."""
    model = GPT(checkpointed=checkpointed).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for number, length in enumerate(lengths):
        # Named as torch's profiler names its steps. The last step's logits live until the next are there.
        with step_range(f"ProfilerStep#{number}"):
            optimizer.zero_grad()
            tokens, targets = next_batch(length)
            logits, loss = model(tokens, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return at_end()


def _dump() -> None:
    torch.cuda.memory._dump_snapshot("snapshot.pickle")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    torch.cuda.memory._record_memory_history()
    train([512] * 3, _dump)
