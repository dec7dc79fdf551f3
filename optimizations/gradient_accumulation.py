"""A step takes its batch in pieces: forward and backward of one, then of the next, and their gradients add up.

Activations then exist for one piece at a time, and so do logits and whatever the loss makes. The gradients are those
of the whole batch, added up in another order. No product is computed twice. What grows with the pieces: each launches
all kernels again, on fewer rows, reads the weights again, and adds its gradients to those that are there, which takes
a read and a write of all of them. What to know before using it:

* It changes the loop and not the model, so `apply` leaves a model as it is. In a loop of your own:

      for piece, share in GradientAccumulation(4).split(inputs):
          (loss(model(**piece)) * share).backward()
      optimizer.step()

* `share` is the piece's part of the batch. So the loss has to be a mean over the batch in which every row counts the
  same; one over tokens of which some are padding has to be weighted by the tokens that count.
* Layers that look at a whole batch, as batch norm does, look at a piece. Dropout draws other random numbers.
* Gradients exist from the first piece on, where one backward pass makes the last of them when few activations are
  left. So it may save less than what activations shrink by; weights stepped in backward wait for the last piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

SHARED = ("img_ids", "txt_ids", "image_rotary_emb")
"""Inputs without a batch, by the names that the models of diffusers give them: places of tokens, the same for all."""


@dataclass(frozen=True)
class GradientAccumulation:
    """`for piece, share in GradientAccumulation(4).split(inputs): ...`, as above."""

    pieces: int = field(
        default=2,
        metadata={"help": "parts that a batch is taken in, one after the other", "least": 2, "says": "{} pieces"},
    )

    name: ClassVar[str] = "gradient_accumulation"
    title: ClassVar[str] = "Batch in pieces (gradient accumulation)"
    sentence: ClassVar[str] = (
        "Takes the batch of a step in pieces whose gradients add up, so that activations exist for one piece at a "
        "time. Each piece launches all kernels and reads all weights again, and gradients wait for the last."
    )
    not_with: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    changes_loop: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pieces < 2:
            raise ValueError(f"pieces is {self.pieces}; a batch is taken apart into at least 2.")

    @property
    def claim(self) -> Literal["bitwise", "rounding", "lossy"]:
        """The same sums in another order."""
        return "rounding"

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference has no gradients to add up: make its batch smaller instead.")

    def apply(self, model: nn.Module) -> Callable[[], None]:
        """Nothing of the model changes: the loop does, with `split`."""
        return lambda: None

    def split(
        self, inputs: Mapping[str, Any], shared: Sequence[str] = SHARED
    ) -> Iterator[tuple[dict[str, Any], float]]:
        """The keyword arguments of each piece, and the piece's share of the batch."""
        batch = batch_of(inputs, shared)
        if batch < self.pieces:
            raise ValueError(
                f"A batch of {batch} cannot be taken in {self.pieces} pieces: make it larger, or take fewer."
            )
        ends = [batch * (number + 1) // self.pieces for number in range(self.pieces)]
        for start, end in zip([0, *ends], ends, strict=False):
            rows = slice(start, end)
            piece = {key: value if key in shared else _part(value, batch, rows) for key, value in inputs.items()}
            yield piece, (end - start) / batch

    def code(self) -> str:
        lines = (
            f"from {__name__} import GradientAccumulation",
            "",
            f"for piece, share in {self!r}.split(inputs):",
            "    (loss(model(**piece)) * share).backward()",
        )
        return "\n".join(lines)


def batch_of(inputs: Mapping[str, Any], shared: Sequence[str] = SHARED) -> int:
    """How many rows the first tensor has that is not the same for all."""
    for tensor in _tensors([value for key, value in inputs.items() if key not in shared]):
        if tensor.dim():
            return len(tensor)
    raise ValueError("None of these inputs is a tensor with rows, so there is no batch to take in pieces.")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    for inner in _inside(value):
        yield from _tensors(inner)


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list | tuple) else ()


def _part(value: Any, batch: int, rows: slice) -> Any:
    """What has as many rows as the batch is cut; whatever else there is belongs to every piece."""
    if isinstance(value, Tensor):
        return value[rows] if value.dim() and len(value) == batch else value
    if isinstance(value, Mapping):
        return {key: _part(inner, batch, rows) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_part(inner, batch, rows) for inner in value)
    return value
