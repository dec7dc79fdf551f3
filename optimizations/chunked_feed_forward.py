"""Feed-forwards computed some tokens at a time, so that the wide inner tensor never exists for all of them.

A feed-forward does the same to every token by itself, so it may as well be called on a few after the other: the idea
of diffusers' `enable_forward_chunking`, for whichever model has feed-forwards. Its layers are called as they are, so
quantized, cast or adapted ones will do, and their hooks run once for each piece. What to know before using it:

* In inference the inner tensors shrink to those of one piece. It pays where the feed-forward makes the peak.
* In training autograd would keep every piece. So each is computed again for backward, which costs a second forward
  pass of the feed-forwards; `recompute=False` leaves that to checkpointed blocks around them.
* Further tensors that a feed-forward is given for every token, as MPT's residual, are cut with them.
* Known are modules called FeedForward, MLP or FFN that are made of linear layers, activations, dropout and norms;
  nn.Sequential of such; BERT's, which stands in two modules; and the single-stream blocks of Flux and HunyuanVideo,
  whose feed-forward shares its last matrix with attention.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

_NAMES = re.compile(r"(FeedForward|MLP|Mlp|FFN)$")
_NOT_BY_TOKEN = (nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.Softmin, nn.LogSoftmax)
_OTHER_PARTS = ("Linear", "Conv1D", "Identity", "LayerNorm", "RMSNorm", "Dropout")
"""Ends of class names, since libraries are not imported here."""


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class ChunkedFeedForward:
    """`undo = ChunkedFeedForward(tokens=1024).apply(model)`."""

    tokens: int = _knob(1024, "tokens per chunk", least=1, says="feed-forwards of {} tokens", counted_in="rows")
    recompute: bool = _knob(True, "in training, recompute each chunk in backward and save only its input")
    only: str = _knob("", "regex of module names; empty: all")

    name: ClassVar[str] = "chunked_feed_forward"
    title: ClassVar[str] = "Chunked feed-forward"
    sentence: ClassVar[str] = "Run the feed-forward over chunks of the sequence."
    not_with: ClassVar[Mapping[str, str]] = {
        "split_feed_forward": "both split the same feed-forwards, one by tokens, one by channels.",
    }
    claim: ClassVar[Literal["rounding"]] = "rounding"
    """Kernels for fewer rows may add in another order."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "any"
    idle_where: ClassVar[str] = "all tokens fit in one chunk"

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens}; the minimum is 1.")
        try:
            re.compile(self.only)
        except re.error as error:
            raise ValueError(f"only={self.only!r} is not a regular expression: {error}.") from None

    def check(self, model: nn.Module, *, training: bool) -> None:
        self._chosen(model)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        replaced = [row for module in self._chosen(model).values() for row in _replacements(module, self)]
        for module, method, replacement in replaced:
            vars(module)[method] = replacement

        def undo() -> None:
            for module, method, _ in replaced:
                del vars(module)[method]
            replaced.clear()

        return undo

    def run(self, function: Callable[..., Tensor], x: Tensor, *more: Tensor) -> Tensor:
        """Call `function` on all rows of `x`, some at a time, and of tensors with the same rows."""
        if x.dim() < 2 or x.numel() // x.shape[-1] <= self.tokens:
            return function(x, *more)
        rows: list[Any] = [tensor.reshape(-1, tensor.shape[-1]) for tensor in (x, *more)]
        pieces = list(zip(*(tensor.split(self.tokens) for tensor in rows), strict=True))
        if torch.is_grad_enabled():
            again = functools.partial(checkpoint, function, use_reentrant=False) if self.recompute else function
            return torch.cat([again(*piece) for piece in pieces]).view(*x.shape[:-1], -1)
        return _fill_output(function, pieces).view(*x.shape[:-1], -1)

    def _chosen(self, model: nn.Module) -> dict[str, nn.Module]:
        modules = {name or "(the model)": module for name, module in feed_forwards(model)}
        chosen = {name: module for name, module in modules.items() if re.search(self.only, name)}
        if not modules:
            raise ValueError(
                "No feed-forward was recognised. Supported are modules named FeedForward, MLP or FFN and "
                "nn.Sequential, made of linear layers, activations, dropout and norms."
            )
        if not chosen:
            raise ValueError(f"No feed-forward has {self.only!r} in its name; there are {', '.join(modules)}.")
        for name, module in chosen.items():
            if any(method in vars(part) for part, method, _ in _replacements(module, self)):
                raise ValueError(f"The forward of {name} is already replaced. Undo that first.")
        return chosen


def _fill_output(function: Callable[..., Tensor], pieces: Sequence[tuple[Tensor, ...]]) -> Tensor:
    """Write pieces into one output, since joining them in the end would take the output twice."""
    first = function(*pieces[0])
    output = first.new_empty(sum(len(piece[0]) for piece in pieces), first.shape[-1])
    output[: len(first)] = first
    done = len(first)
    del first
    for piece in pieces[1:]:
        output[done : done + len(piece[0])] = function(*piece)
        done += len(piece[0])
    return output


_CHUNK = "feed_forward_chunk"
"""Transformers' own method for some tokens, in models such as BERT."""


def _replacements(module: Any, knobs: ChunkedFeedForward) -> list[tuple[nn.Module, str, Callable[..., Any]]]:
    """Return the modules to change, the method of each, and its replacement."""
    if _is_fused(module):
        # out(cat(attention, activation(first(x)))): the first two pass `x` on, and the last calls them on pieces.
        first, activation = _Deferred(module.proj_mlp), _Deferred(module.act_mlp)
        last = _FusedInPieces(module, [first, activation], knobs)
        return [(part.module, "forward", part) for part in (first, activation)] + [(module.proj_out, "forward", last)]
    if hasattr(type(module), _CHUNK):
        return [(module, _CHUNK, _ChunkInPieces(module, knobs))]
    return [(module, "forward", _InPieces(module, knobs))]


class _InPieces:
    """Replaces a module's `forward`. An object, so that copies and files of a model take it along."""

    def __init__(self, module: nn.Module, knobs: ChunkedFeedForward) -> None:
        self.module, self.knobs = module, knobs

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        plain = type(self.module).forward
        arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        rows = {name: value for name, value in arguments.items() if self._has_rows(name, value, x)}

        def piece(part: Tensor, *more: Tensor) -> Tensor:
            cut = {**arguments, **dict(zip(rows, more, strict=True))}
            by_name = {name: value for name, value in cut.items() if isinstance(name, str)}
            result: Tensor = plain(self.module, part, *(cut[place] for place in range(len(args))), **by_name)
            return result

        return self.knobs.run(piece, x, *rows.values())

    def _has_rows(self, name: int | str, value: Any, x: Tensor) -> bool:
        """Return whether a value has a row for each token, as a residual does."""
        if not isinstance(value, Tensor) or value.dim() < 2:
            return False
        if value.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"{type(self.module).__name__} is given {tuple(value.shape)} beside {tuple(x.shape)} ({name}), which "
                "cannot be cut by tokens: leave this module out with the pattern `only`."
            )
        return True


class _ChunkInPieces(_InPieces):
    def __call__(self, x: Tensor) -> Tensor:
        """Take exactly one tensor, since transformers counts the arguments of this function."""
        plain = type(self.module).feed_forward_chunk  # type: ignore[attr-defined]
        return self.knobs.run(lambda piece: plain(self.module, piece), x)


class _Deferred:
    """A layer's `forward` that passes its input on, and computes only while `has_turn`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.has_turn = False

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = type(self.module).forward(self.module, x) if self.has_turn else x
        return result


class _FusedInPieces:
    def __init__(self, block: nn.Module, deferred: list[_Deferred], knobs: ChunkedFeedForward) -> None:
        self.block, self.deferred, self.knobs = block, deferred, knobs

    def __call__(self, attention_and_x: Tensor) -> Tensor:
        block: Any = self.block
        attention_width = block.proj_out.in_features - block.proj_mlp.out_features
        plain = type(block.proj_out).forward

        def piece(rows: Tensor) -> Tensor:
            for layer in self.deferred:
                layer.has_turn = True
            try:
                inner = block.act_mlp(block.proj_mlp(rows[..., attention_width:]))
            finally:
                for layer in self.deferred:
                    layer.has_turn = False
            result: Tensor = plain(block.proj_out, torch.cat([rows[..., :attention_width], inner], dim=-1))
            return result

        return self.knobs.run(piece, attention_and_x)


def feed_forwards(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every feed-forward that is recognised, by name; none within another."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        kind = type(module)
        has_name = _NAMES.search(kind.__name__) is not None or kind is nn.Sequential
        has_chunks = hasattr(kind, _CHUNK)
        if module not in inside and (has_chunks or _is_fused(module) or (has_name and _is_by_token(module))):
            inside.update(() if has_chunks else module.modules())
            yield name, module


def _is_by_token(module: nn.Module) -> bool:
    """Return whether all layers see each token by itself and two of them have matrices."""
    leaves = [leaf for leaf in module.modules() if next(leaf.children(), None) is None]
    matrices = [leaf for leaf in leaves if getattr(getattr(leaf, "weight", None), "ndim", 0) == 2]
    own = any(True for part in module.modules() if part not in leaves for _ in part.parameters(recurse=False))
    return len(matrices) > 1 and not own and all(map(_sees_one_token, leaves))


def _sees_one_token(layer: nn.Module) -> bool:
    if isinstance(layer, _NOT_BY_TOKEN):
        return False
    kind = type(layer)
    is_activation = kind.__module__ == "torch.nn.modules.activation" or "activation" in kind.__module__
    return is_activation or kind.__name__.endswith(_OTHER_PARTS) or "GELU" in kind.__name__


def _is_fused(block: Any) -> bool:
    """Return whether a block of diffusers computes cat([attention, act_mlp(proj_mlp(x))]), then proj_out."""
    layers = [getattr(block, name, None) for name in ("proj_mlp", "act_mlp", "proj_out")]
    is_single = "SingleTransformerBlock" in type(block).__name__
    if not (is_single and all(isinstance(layer, nn.Module) for layer in layers)):
        return False
    first, _, last = layers
    wide, narrow = getattr(first, "out_features", 0), getattr(first, "in_features", 0)
    return bool(wide and getattr(last, "in_features", 0) == wide + narrow)
