"""The head and the loss of a language model computed a few tokens at a time, so that all logits never exist at once.

Logits are tokens x vocabulary: with 128,256 words, 4,096 tokens take 1 GiB in bf16, and the loss wants them in fp32,
a second time for their softmax and a third time as a gradient. Here the loss of a piece of the tokens is computed, and
at once what its gradient is to the hidden states and to the head's matrix; then the piece's logits are let go. So the
matrix is read twice a step as before, and nothing is computed again. What to know before using it:

* It is for training with labels: a model that is called without them gives logits as ever. With labels its output has
  the loss and no logits.
* Models are those of transformers whose loss is its `ForCausalLMLoss`. One that does something to its logits before
  the loss, as Gemma 2 and Cohere do, is refused. In loops of your own call `chunked_cross_entropy`.
* The gradient of the head's matrix is added up chunk by chunk in the matrix's dtype (fp32 for fp16), where one product
  over all tokens would round once: in bf16 it was off by 0.6 % after 32 chunks and 1.2 % after 128, and by 0.2 % with
  one product. `accum_dtype="float32"` adds up in fp32, for 4 bytes more a weight of the head at its peak.
* The head's gradient is made in the forward pass, where gradients are on, and waits for backward, which may come once.
* PyTorch has the same as `torch.nn.functional.linear_cross_entropy` from 2.13 on; this works with those before, too.
* `by="liger"` leaves it to Liger's kernels, where liger-kernel and a GPU are there. How many tokens a piece has that
  library decides, so that a piece's logits take about as much as all hidden states: their number over the words a
  channel, rounded up to a power of two. Gradients are made in the forward pass there, too.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORED = -100
_BY = ("torch", "liger")
_ACCUM_DTYPES = ("weight", "float32")
_TOKENS = 1024
_LOSS = "ForCausalLMLoss"
_CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class ChunkedCrossEntropy:
    """`undo = ChunkedCrossEntropy().apply(model)`, then `model(input_ids=..., labels=...).loss` as before."""

    tokens: int = _knob(
        _TOKENS,
        "tokens per chunk, whose logits are live at once",
        least=1,
        says="logits of {} tokens at once",
        counted_in="rows",
    )
    by: str = _knob("torch", "kernels of PyTorch or Liger", choices=_BY)
    accum_dtype: str = _knob(
        "weight",
        "dtype of the head's gradient sum over chunks",
        choices=_ACCUM_DTYPES,
        says="head's gradient summed in {}",
    )

    name: ClassVar[str] = "chunked_cross_entropy"
    title: ClassVar[str] = "Chunked cross-entropy"
    sentence: ClassVar[str] = "Compute logits and loss in chunks; never hold all logits."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["rounding"]] = "rounding"
    """The same sums, chunk by chunk; in a bf16 model each chunk rounds the head's gradient once more."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    withholds: ClassVar[tuple[str, ...]] = ("logits",)

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens}; the minimum is 1.")
        if self.by not in _BY:
            raise ValueError(f"by is {self.by!r}; it must be one of {', '.join(_BY)}.")
        if self.accum_dtype not in _ACCUM_DTYPES:
            raise ValueError(f"accum_dtype is {self.accum_dtype!r}; it must be one of {', '.join(_ACCUM_DTYPES)}.")
        if self.by == "liger" and self.tokens != _TOKENS:
            raise ValueError("Liger chooses the chunk size itself. Drop tokens, or use by=torch.")

    @property
    def sums_in(self) -> torch.dtype | None:
        return None if self.accum_dtype == "weight" else torch.float32

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference has no loss. Use it in training only.")
        if self.by == "liger":
            _liger()
        for name, language_model in _language_models(model):
            _refuse_other_heads(name, language_model)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        self.check(model, training=True)
        chosen = [language_model for _, language_model in _language_models(model)]
        for language_model in chosen:
            language_model.__dict__["forward"] = _InPieces(language_model, self)

        def undo() -> None:
            for language_model in chosen:
                del language_model.__dict__["forward"]

        return undo


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    tokens: int = 1024,
    ignored: int = IGNORED,
    accum_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the sum of -log softmax(hidden @ weight.T + bias)[target] over all tokens, and how many of them count.

    `hidden` is (..., width), `targets` of the same shape without the width, already shifted. The gradient of `weight`
    is summed over the chunks in `accum_dtype`, or in the weight's own dtype.
    """
    hidden, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    # Inside a Function gradients are off for any caller.
    plan = _Chunks(targets, tokens, ignored, torch.is_grad_enabled(), accum_dtype)
    total: Tensor = _SumOfLosses.apply(hidden, weight, bias, plan)  # type: ignore[no-untyped-call]
    return total, (targets != ignored).sum()


@dataclass(frozen=True)
class _Chunks:
    of_tokens: Tensor
    size: int
    """Tokens in a piece."""
    ignored: int
    with_gradients: bool
    accum_dtype: torch.dtype | None

    def with_rows_of(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(hidden), self.size):
            yield hidden[start : start + self.size], self.of_tokens[start : start + self.size]


class _SumOfLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: _Chunks) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        needs = ctx.needs_input_grad if targets.with_gradients else (False,) * 3
        gradients = _Gradients((hidden, weight, bias), needs, targets.accum_dtype)
        for piece, target in targets.with_rows_of(hidden):
            logarithms = torch.log_softmax(F.linear(piece, weight, bias), -1, dtype=torch.float32)
            counts = target != targets.ignored
            place = target.where(counts, torch.zeros_like(target))[:, None]
            total -= logarithms.gather(1, place)[:, 0].where(counts, total.new_zeros(())).sum()
            if any(needs):
                gradients.add(piece, weight, logarithms.exp_(), place, counts)
            del logarithms
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("Backward has already run on this loss, and its gradients exist only once.")
        return (*gradients.times(of_total), None)


class _Gradients:
    """Gradients of the summed loss, accumulated piece by piece."""

    def __init__(
        self,
        inputs: tuple[Tensor, Tensor, Tensor | None],
        needs: tuple[bool, ...],
        accum_dtype: torch.dtype | None,
    ) -> None:
        hidden, weight, bias = inputs
        self.dtypes = [hidden.dtype, weight.dtype, hidden.dtype if bias is None else bias.dtype]
        self.pieces: list[Tensor] | None = [] if needs[0] else None
        # Before the division by the number of tokens sums may overflow fp16.
        sums_in = accum_dtype or (torch.float32 if weight.dtype is torch.float16 else weight.dtype)
        self.weight = torch.zeros_like(weight, dtype=sums_in) if needs[1] else None
        self.bias = torch.zeros_like(bias, dtype=torch.float32) if needs[2] and bias is not None else None

    def add(self, piece: Tensor, weight: Tensor, shares: Tensor, place: Tensor, counts: Tensor) -> None:
        """`shares` is the softmax, and becomes its difference to the target."""
        shares.scatter_add_(1, place, -torch.ones_like(place, dtype=shares.dtype))
        shares.mul_(counts[:, None])
        if self.bias is not None:
            self.bias += shares.sum(0)
        rounded = shares.to(piece.dtype)
        if self.weight is not None:
            if self.weight.dtype is piece.dtype:
                self.weight.addmm_(rounded.t(), piece)
            else:
                self.weight += rounded.t() @ piece
        if self.pieces is not None:
            self.pieces.append(rounded.to(weight.dtype) @ weight)

    def times(self, factor: Tensor) -> tuple[Tensor | None, ...]:
        """In place: no other code uses them."""
        hidden = None if self.pieces is None else torch.cat(self.pieces)
        self.pieces = None
        gradients = (hidden, self.weight, self.bias)
        return tuple(
            None if gradient is None else gradient.mul_(factor).to(dtype)
            for gradient, dtype in zip(gradients, self.dtypes, strict=True)
        )


class _InPieces:
    """Replaces a model's `forward`. An object, so that copies and files of a model include it."""

    def __init__(self, model: nn.Module, knobs: ChunkedCrossEntropy) -> None:
        self.model, self.knobs = model, knobs

    @property
    def __signature__(self) -> inspect.Signature:
        """Trainers and `generate` look up what a model takes."""
        return inspect.signature(type(self.model).forward.__get__(self.model))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model: Any = self.model
        plain = type(model).forward
        if inspect.signature(plain).bind(model, *args, **kwargs).arguments.get("labels") is None:
            return plain(model, *args, **kwargs)
        _refuse_other_heads("The model", model)
        head = model.get_output_embeddings()
        before = vars(model).get("_loss_function")
        head.__dict__["forward"] = NoLogits
        model._loss_function = self.loss
        try:
            output = plain(model, *args, **kwargs)
        finally:
            del head.__dict__["forward"]
            model._loss_function = before
            if before is None:
                del model._loss_function
        if isinstance(output, tuple):
            return tuple(part for part in output if not isinstance(part, NoLogits))
        return type(output)(**{name: part for name, part in output.items() if name != "logits"})

    def loss(
        self,
        logits: NoLogits,
        labels: Tensor,
        vocab_size: int | None = None,
        *,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = IGNORED,
        shift_labels: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """In place of transformers' own: token n says what token n + 1 is."""
        if not isinstance(logits, NoLogits):
            raise ValueError("This model changes its logits before the loss, so it needs all of them.")
        if shift_labels is None:
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]

        def whole(hidden: Tensor) -> tuple[Tensor, Tensor]:
            targets = shift_labels.to(hidden.device)
            if self.knobs.by == "liger":
                return _by_liger(hidden, head, targets, ignore_index, self.knobs.sums_in)
            knobs: Any = {"tokens": self.knobs.tokens, "accum_dtype": self.knobs.sums_in}
            return chunked_cross_entropy(hidden, head.weight, targets, head.bias, ignored=ignore_index, **knobs)

        # Called as a module: its hooks may put its weight in place and take it away again.
        head.__dict__["forward"] = whole
        total, count = head(logits.hidden)
        head.__dict__["forward"] = NoLogits
        loss: Tensor = total / (count if num_items_in_batch is None else num_items_in_batch)
        return loss


def _by_liger(
    hidden: Tensor, head: Any, targets: Tensor, ignored: int, accum_dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    if hidden.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError("Liger's kernels need a GPU. Use by=torch on a CPU.")
    # Its first releases sum in the weight's dtype and take no word of it.
    sums_in = {} if accum_dtype is None else {"accum_dtype": accum_dtype}
    loss = _liger()(ignore_index=ignored, reduction="sum", **sums_in)
    total: Tensor = loss(head.weight, hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), head.bias)
    return total, (targets != ignored).sum()


def _liger() -> Any:
    try:
        return importlib.import_module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss
    except ImportError as error:
        raise ValueError(
            f"by=liger needs libraries that are not installed ({error}): pip install liger-kernel triton, or use "
            "by=torch."
        ) from None


class NoLogits:
    """Replaces the logits, and holds what they would be computed from."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ValueError(f"This model changes its logits before the loss ({name}), so it needs all of them.")

    def _refuse(self, _: object) -> NoReturn:
        raise ValueError("This model scales its logits before the loss, so it needs all of them.")

    __mul__ = __rmul__ = __truediv__ = __add__ = __sub__ = __getitem__ = _refuse


def _language_models(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    has_one = False
    for name, module in model.named_modules():
        # By its class: wrappers, as of peft and torch.compile, answer for the model inside.
        has_head: Any = getattr(type(module), "get_output_embeddings", None)
        head = None if has_head is None else has_head(module)
        if head is not None and getattr(getattr(module, "loss_function", None), "__name__", "") == _LOSS:
            has_one = True
            yield name or "The model", module
    if not has_one:
        raise ValueError(
            "No language model with a loss was found. Supported are causal language models of transformers; in your "
            "own training loop call chunked_cross_entropy on the input of the head."
        )


def _refuse_other_heads(name: str, model: Any) -> None:
    head = model.get_output_embeddings()
    if type(head).forward is not nn.Linear.forward or "forward" in vars(head):
        raise ValueError(f"{name} has a head of class {type(head).__name__}, which is not a plain nn.Linear.")
    for knob in _CHANGES_LOGITS:
        if getattr(model.config, knob, None) not in (None, 1, 1.0):
            raise ValueError(f"{name} scales its logits before the loss ({knob}), so it needs all of them.")
    if "forward" in vars(model) and not isinstance(vars(model)["forward"], _InPieces):
        raise ValueError(f"{name} has a replaced forward. Apply chunked_cross_entropy first.")
