"""Memory optimizations, one idea a file. Each file needs torch and nothing else, so it can be copied into a script.

`OPTIMIZATIONS` lists them in the order in which they are applied: settings before anything, kernels, adapters,
feed-forwards and autoencoders before the weights are cast, casts before the blocks that run them again, and gradients
last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import ClassVar, Literal, Protocol

from torch import nn

from optimizations.activation_offload import ActivationOffload
from optimizations.allocator_settings import AllocatorSettings
from optimizations.attention_backend import AttentionBackend
from optimizations.checkpointing import Checkpointing
from optimizations.chunked_cross_entropy import ChunkedCrossEntropy
from optimizations.chunked_feed_forward import ChunkedFeedForward
from optimizations.eight_bit_states import EightBitStates
from optimizations.flat_gradients import FlatGradients
from optimizations.gradient_accumulation import GradientAccumulation
from optimizations.kv_cache import KvCache
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.lora import Lora
from optimizations.optimizer_in_backward import OptimizerInBackward
from optimizations.split_feed_forward import SplitFeedForward
from optimizations.vae_slicing import VaeSlicing
from optimizations.vae_tiling import VaeTiling
from optimizations.weight_offload import WeightOffload
from optimizations.weight_quantization import WeightQuantization


class Optimization(Protocol):
    """A frozen dataclass of its knobs; a protocol, so any class with these members is one."""

    name: ClassVar[str]
    """The file's name, too."""
    title: ClassVar[str]
    sentence: ClassVar[str]
    """The effect and its cost, for people who choose."""
    not_with: ClassVar[Mapping[str, str]]
    """Names of optimizations that it does not go with, and why. One of the two says so."""
    needs: ClassVar[Literal["any", "training", "inference"]]

    # May be left out: `withholds: ClassVar[tuple[str, ...]]`, names of outputs that the model gives no more;
    # `needs_optimizer: ClassVar[bool]`, whether it changes how an optimizer steps and nothing else;
    # `trains_others: ClassVar[bool]`, whether weights are trained that are not the model's own, and these no more;
    # `shrinks_weights: ClassVar[bool]`, whether weights take less from then on, so that it may come before they are
    # on the device; a knob `micro_batches`, which a run sets to how many backward passes make its step;
    # `changes_loop: ClassVar[bool]`, whether it changes how a step goes through its batch and nothing of the model:
    # then `split` gives the pieces; `only_on: ClassVar[str]`, the only kind of model that it has an effect on, as in
    # "an autoencoder"; `needs_cache: ClassVar[bool]`, whether it has an effect only where a model is told
    # to keep keys and values; `idle_where: str`, where it does nothing, for a check whose model is such;
    # `sees_less: bool`, whether outputs come of a part of what they came of, so that a check expects no size of it;
    # `pins_host_memory: ClassVar[bool]`, whether all that it does is to move tensors to host memory. In a knob's
    # metadata `reduced` is its value on a reduced model, and `counted_in` ("rows" or "sequence") has it cut in
    # proportion there.

    @property
    def claim(self) -> Literal["bitwise", "rounding", "training", "lossy"]:
        """Equality of outputs. `training`: up to rounding for the same weights, trained with other arithmetic.
        `lossy`: outputs differ, or other weights are trained, as with LoRA."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that must be set before CUDA starts."""

    def check(self, model: nn.Module, *, training: bool) -> None:
        """ValueError with the reason, and what would work, where it does not fit. The model may be on meta."""

    def apply(self, model: nn.Module) -> Callable[[], None]:
        """Changes the model in place and returns what changes it back."""


OPTIMIZATIONS: tuple[type[Optimization], ...] = (
    AllocatorSettings,
    AttentionBackend,
    Lora,
    ChunkedCrossEntropy,
    SplitFeedForward,
    ChunkedFeedForward,
    VaeSlicing,
    VaeTiling,
    KvCache,
    WeightQuantization,
    LayerwiseCasting,
    WeightOffload,
    Checkpointing,
    ActivationOffload,
    GradientAccumulation,
    FlatGradients,
    OptimizerInBackward,
    EightBitStates,
)
GROUPS: Mapping[str, tuple[type[Optimization], ...]] = {
    "Activations": (
        Checkpointing,
        ActivationOffload,
        SplitFeedForward,
        ChunkedFeedForward,
        AttentionBackend,
        VaeTiling,
        VaeSlicing,
        KvCache,
    ),
    "Loss, batch": (ChunkedCrossEntropy, GradientAccumulation),
    "Weights": (Lora, WeightQuantization, LayerwiseCasting, WeightOffload),
    "Optimizer, gradients": (EightBitStates, OptimizerInBackward, FlatGradients),
    "Allocator": (AllocatorSettings,),
}
"""Optimizations by what they save, in the order in which a form shows them. Each is in one group."""
_PLACES = {optimization.name: place for place, optimization in enumerate(OPTIMIZATIONS)}


def check_together(optimizations: Iterable[Optimization]) -> None:
    """ValueError where two of them do not go together, or one is there twice."""
    for one, other in combinations(optimizations, 2):
        if one.name == other.name:
            raise ValueError(f"{one.name} is given twice. Give it once, with all its knobs.")
        reason = one.not_with.get(other.name) or other.not_with.get(one.name)
        if reason:
            raise ValueError(f"{one.name} cannot be combined with {other.name}: {reason}")


def apply_all(model: nn.Module, optimizations: Iterable[Optimization]) -> Callable[[], None]:
    """In the order of `OPTIMIZATIONS`, others last; undone in reverse, also where one of them refuses half-way."""
    ordered = sorted(optimizations, key=lambda optimization: _PLACES.get(optimization.name, len(_PLACES)))
    check_together(ordered)
    with contextlib.ExitStack() as undo:
        for optimization in ordered:
            undo.callback(optimization.apply(model))
        return undo.pop_all().close
