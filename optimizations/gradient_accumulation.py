"""A step takes its batch in pieces: forward and backward of one, then of the next, and their gradients add up.

Activations then exist for one piece at a time, and so do logits and whatever the loss makes. The gradients are those
of the whole batch, added up in another order. No product is computed twice. What grows with the pieces: each launches
all kernels again, on fewer rows, reads the weights again, and adds its gradients to those that are there, which takes
a read and a write of all of them. What to know before using it:

* It changes the loop and not the model, so `apply` leaves a model as it is. In a loop of your own:

      for piece, share in GradientAccumulation(4).split(inputs):
          (model(**piece).loss * share).backward()
      optimizer.step()

* The loss is a mean over the batch, and `share` is the piece's part of what it is a mean over: of the targets in
  `labels` that are not -100, or of the rows where there are no integer labels. A piece without a target is left out.
* A model of transformers that is told `num_items_in_batch` divides by it itself: then every share is 1.
* Labels that repeat `input_ids` are shifted by a causal model, so the first token of a row is no target.
* Counting reads the labels on the host, one synchronization a batch.
* The claim holds for losses that are such means and layers that see each row alone. Batch norm, contrastive losses
  and the load-balancing loss of experts see a piece. Dropout draws other random numbers.
* Gradients exist from the first piece on, where one backward pass makes the last of them when few activations are
  left. So it may save less than what activations shrink by; weights stepped in backward wait for the last piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

SHARED = ("img_ids", "txt_ids", "image_rotary_emb", "cache_position")
"""Inputs without a batch, by the names that diffusers and transformers give them: positions, the same for all rows."""
_PACKED = ("image_grid_thw", "video_grid_thw", "cu_seq_lens_q", "cu_seq_lens_k")
"""Inputs whose presence says that others hold all rows of the batch in one sequence."""
_IGNORED = -100


@dataclass(frozen=True)
class GradientAccumulation:
    """`for piece, share in GradientAccumulation(4).split(inputs): ...`, as above."""

    pieces: int = field(
        default=2,
        metadata={"help": "micro-batches per batch", "least": 2, "says": "{} micro-batches"},
    )

    name: ClassVar[str] = "gradient_accumulation"
    title: ClassVar[str] = "Gradient accumulation"
    sentence: ClassVar[str] = "Run the batch as several micro-batches before one optimizer step."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["rounding"]] = "rounding"
    """The same sums in another order, for a loss that is a mean over rows or targets."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    changes_loop: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pieces < 2:
            raise ValueError(f"pieces is {self.pieces}; the minimum is 2.")

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference has no gradients. Use a smaller batch instead.")

    def apply(self, model: nn.Module) -> Callable[[], None]:
        """Nothing of the model changes: the loop does, with `split`."""
        return lambda: None

    def split(
        self, inputs: Mapping[str, Any], shared: Sequence[str] = SHARED
    ) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield the keyword arguments of each piece, and the piece's share of the loss."""
        batch = batch_of(inputs, shared)
        if batch < self.pieces:
            raise ValueError(
                f"A batch of {batch} cannot be divided into {self.pieces} micro-batches. Make it larger, or use fewer."
            )
        if packed := [key for key in _PACKED if key in inputs]:
            raise ValueError(
                f"With {packed[0]} the rows of this batch are one sequence and cannot be divided. Let the data loader "
                "make smaller batches."
            )
        targets = _targets_of_rows(inputs, batch)
        ends = [batch * (number + 1) // self.pieces for number in range(self.pieces)]
        for start, end in zip([0, *ends], ends, strict=False):
            share = sum(targets[start:end]) / (sum(targets) or 1)
            if share:
                rows = slice(start, end)
                cut = {key: _cut_rows(value, batch, rows, key) for key, value in inputs.items() if key not in shared}
                yield {**inputs, **cut}, 1.0 if inputs.get("num_items_in_batch") is not None else share


def batch_of(inputs: Mapping[str, Any], shared: Sequence[str] = SHARED) -> int:
    """Return the number of rows of the first tensor that is not the same for all rows."""
    for key, value in inputs.items():
        for tensor in _tensors(value) if key not in shared else ():
            axis = _row_axis(tensor, key)
            if axis is not None:
                return tensor.shape[axis]
    raise ValueError("No input is a tensor with rows, so there is no batch to split.")


def _targets_of_rows(inputs: Mapping[str, Any], batch: int) -> list[int]:
    """For each row the number of targets that the loss is a mean over, or 1 where rows count the same."""
    for name in ("shift_labels", "labels"):
        labels = inputs.get(name)
        if not isinstance(labels, Tensor) or labels.is_floating_point() or not labels.dim() or len(labels) != batch:
            continue
        labels = labels.cpu()
        # Asked so that memviz can answer for labels without values: it takes them to be all targets.
        if labels.is_meta or torch.equal(labels, labels.clamp(min=0)):
            break
        ignored = labels == _IGNORED
        if name == "labels" and _is_shifted(labels, inputs):
            ignored = ignored[:, 1:]
        counts: list[int] = (~ignored).reshape(batch, -1).sum(1).tolist()
        return counts
    return [1] * batch


def _is_shifted(labels: Tensor, inputs: Mapping[str, Any]) -> bool:
    """A loss that compares each token with the next is given the tokens themselves as labels."""
    tokens = inputs.get("input_ids")
    if tokens is None:
        return labels.dim() == 2 and "inputs_embeds" in inputs
    return tokens.shape == labels.shape and bool(((labels == _IGNORED) | (labels == tokens.cpu())).all())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for inner in values:
        yield from _tensors(inner)


def _row_axis(tensor: Tensor, key: str) -> int | None:
    """The axis of the rows: the first one, but (axes, rows, tokens) or (tokens,) in positions."""
    axis = tensor.dim() - 2 if key == "position_ids" else 0
    return axis if 0 <= axis < tensor.dim() else None


def _cut_rows(value: Any, batch: int, rows: slice, key: str) -> Any:
    """Cut every tensor that has as many rows as the batch; all else belongs to every piece."""
    if isinstance(value, Tensor):
        axis = _row_axis(value, key)
        return value if axis is None or value.shape[axis] != batch else value[(slice(None),) * axis + (rows,)]
    if isinstance(value, Mapping):
        return {inner: _cut_rows(part, batch, rows, inner) for inner, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_cut_rows(inner, batch, rows, key) for inner in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
