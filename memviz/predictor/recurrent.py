"""Recurrent layers (`nn.LSTM`, `nn.GRU`, `nn.RNN`), which a card runs as one operator of cuDNN.

What PyTorch allocates around it is read in `aten/src/ATen/native/cudnn/RNN.cpp`. The sizes of cuDNN's reserve, which is
kept for the backward, and of its workspace are not public; they are estimated from sizes that cuDNN 7 reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from memviz.predictor.workspaces import OperatorCall, Sizes

aten = torch.ops.aten
_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd

_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
"""Gates by mode, in the order of cuDNN's numbers."""
_MODES, _GATES_BY_MODE = tuple(_GATES), tuple(_GATES.values())
_KEPT = (1, 1, 5, 6)
"""Values that the reserve keeps for each value of a hidden state, by mode."""
_DROPOUT_STATES = 2 << 20
"""Bytes of the random states of cuDNN's dropout; torch's source says "slightly over 2MB"."""
OPERATORS = tuple(f"{name}.{overload}" for name in _GATES for overload in ("input", "data"))
"""`torch.lstm` and its like: of padded sequences, and of packed ones, which are given with their batch sizes."""


def run_recurrent(operator: str, cast_to: Callable[[], torch.dtype | None], states: list[Tensor], *args: Any) -> Any:
    """Run one of `OPERATORS`; `cast_to` is autocast's type where it casts now, `states` are those of dropout."""
    name, overload = operator.split(".")
    is_packed = overload == "data"
    input, *given = args
    hidden, weights, _, layers, dropout, train, both_ways, *first = given[is_packed:]
    dtype = cast_to() or input.dtype
    plain = (input, *(hidden if name == "lstm" else [hidden]), *weights)
    takes = torch.backends.cudnn.enabled and dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    if not (takes and all(tensor.is_meta and not is_functorch_wrapped_tensor(tensor) for tensor in plain)):
        return getattr(getattr(aten, name), overload)._op_dk(_COMPOSED, *args)
    if train and dropout > 0 and not states:
        states.append(torch.empty(_DROPOUT_STATES, dtype=torch.uint8, device=input.device))
    h, c = [tensor.to(dtype) for tensor in hidden] if name == "lstm" else (hidden.to(dtype), None)
    flat, weights = _flat_weights(weights, dtype)
    width = weights[1].size(0) // _GATES[name]
    projected = h.size(2) if h.size(2) != width else 0
    out, last, cell, _, _ = aten._cudnn_rnn.default(
        input.to(dtype),
        weights,
        len(weights) // (layers * (1 + both_ways)),
        flat,
        h,
        c,
        _MODES.index(name),
        width,
        projected,
        layers,
        bool(first and first[0]),
        dropout,
        train,
        both_ways,
        given[0].tolist() if is_packed else [],
        None,
    )
    return (out, last, cell) if name == "lstm" else (out, last)


def _flat_weights(weights: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor | None, Sequence[Tensor]]:
    """Return the weights and the buffer that holds them all; None where each call has to copy them into one."""
    if weights[0].dtype != dtype:
        # Autocast copies them into a new buffer at each call.
        flat = torch.zeros(sum(weight.numel() for weight in weights), dtype=dtype, device=weights[0].device)
        copies, at = [], 0
        for weight in weights:
            copy: Tensor = torch.empty(0, dtype=dtype, device=weight.device)
            copy.set_(flat.untyped_storage(), at, weight.shape)  # type: ignore[call-overload]
            copies.append(copy.copy_(weight))
            at += weight.numel()
        return flat, copies
    if len({weight.untyped_storage()._cdata for weight in weights}) > 1:
        return None, weights
    return weights[0].detach().as_strided((sum(weight.numel() for weight in weights),), (1,), 0), weights


class _RecurrentSizes:
    """Sizes of a call of `_cudnn_rnn`; of its backward, `options` are the same arguments."""

    def __init__(self, input: Tensor, weights: Sequence[Tensor], options: Sequence[Any]) -> None:
        self.mode, self.width, projected, self.layers, self.batch_first, _, self.train, both_ways, sizes = options[:9]
        self.is_packed, self.ways = len(sizes) > 0, 2 if both_ways else 1
        self.batch = sizes[0] if sizes else input.size(0 if self.batch_first else 1)
        self.tokens = input.numel() // max(input.size(-1), 1)
        self.out = projected or self.width
        self.element = input.element_size()
        self.matrices = sum(weight.numel() for weight in weights if weight.dim() > 1)

    @property
    def reserve(self) -> int:
        """Gates and cells of all layers, and what one layer hands to the next (estimated).

        cuDNN 7 printed 864,000,000 bytes for GRU and 736,000,000 for LSTM of 4 layers of 320 over 25,000 tokens
        (pytorch/pytorch#2895), and 801,177,600 for one GRU of 800 both ways over 20,864 (deepspeech.pytorch#172).
        """
        values = self.layers * _KEPT[self.mode] + self.layers - 1
        return int(self.tokens * self.ways * self.width * values * self.element)

    @property
    def workspace(self) -> int:
        """Weights in cuDNN's order, states of a few steps, and both ways apart; without a reserve the gates."""
        gates = 0 if self.train else self.tokens * self.ways * self.width * _GATES_BY_MODE[self.mode]
        apart = 2 * self.ways * self.tokens * self.width if self.ways > 1 else 0
        steps = 20 * self.batch * self.width * self.layers * self.ways
        return int((self.matrices + gates + apart + steps) * self.element)


def recurrent_shape(func: Any, args: Any, kwargs: Any) -> Any:
    """Return output, states, reserve and weights; the output's memory has time first, in any case."""
    input, weights, _, flat, h, c = args[:6]
    sizes = _RecurrentSizes(input, weights, args[6:])
    new = partial(torch.empty, dtype=input.dtype, device=input.device)
    if sizes.is_packed:
        out = new((sizes.tokens, sizes.out * sizes.ways))
    else:
        out = new((sizes.tokens // max(sizes.batch, 1), sizes.batch, sizes.out * sizes.ways))
    stacked = sizes.layers * sizes.ways, sizes.batch
    last = new((*stacked, sizes.out))
    cell = new((*stacked, sizes.width) if c is not None else (0,))
    reserve = torch.empty(sizes.reserve if sizes.train else 0, dtype=torch.uint8, device=input.device)
    if flat is None:
        flat = new((sum(weight.numel() for weight in weights),))
    transposes = sizes.batch_first and not sizes.is_packed
    return out.transpose(0, 1) if transposes else out, last, cell, reserve, flat


def recurrent_backward_shape(func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of all inputs, and of the weights in one buffer."""
    input, weights, _, flat, h, c = args[:6]
    if all(gradient is None for gradient in args[7:10]):
        return None, None, None, [None] * len(weights)
    batch_first = args[14] and not len(args[18])
    for_input = torch.empty_like(input.transpose(0, 1) if batch_first else input, memory_format=torch.contiguous_format)
    for_weights: list[Tensor] = []
    if args[21][3]:
        buffer, at = torch.empty_like(flat), 0
        for weight in weights:
            for_weights.append(buffer[at : at + weight.numel()].view(weight.shape))
            at += weight.numel()
    states = torch.empty_like(h), None if c is None else torch.empty_like(c)
    return for_input.transpose(0, 1) if batch_first else for_input, *states, for_weights


def recurrent_buffers(call: OperatorCall) -> Sizes:
    """Time first, and cuDNN's workspace."""
    sizes = _RecurrentSizes(call.args[0], call.args[1], call.args[6:])
    return [*_time_first(sizes, call.args[0]), sizes.workspace]


def recurrent_backward_buffers(call: OperatorCall) -> Iterator[int | tuple[int, ...]]:
    """Zeros for gradients that do not come; then the same for the inputs and for the weights."""
    input, weights, _, _, h, c, out, *gradients = call.args[:10]
    sizes = _RecurrentSizes(input, weights, call.args[10:])
    both = zip((out, h, c), gradients, strict=True)
    missing = [like.nbytes for like, gradient in both if gradient is None and like is not None]
    given = [] if gradients[0] is None else _time_first(sizes, gradients[0])
    yield from missing
    yield (*_time_first(sizes, input), *given, sizes.workspace)
    if call.args[21][3]:
        yield (*_time_first(sizes, input), sizes.workspace)


def _time_first(sizes: _RecurrentSizes, tensor: Tensor) -> list[int]:
    moved = tensor.transpose(0, 1) if sizes.batch_first and not sizes.is_packed else tensor
    return [] if moved.is_contiguous() else [tensor.nbytes]


def recurrent_flops(input: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    return 2 * input.numel() // max(input.size(-1), 1) * sum(weight.numel() for weight in weights if weight.dim() > 1)


def recurrent_backward_flops(input: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    return 2 * recurrent_flops(input, weights)
