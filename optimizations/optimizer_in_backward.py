"""Each weight is stepped as soon as its gradient is there, during backward, and the gradient is let go at once.

As a rule all gradients wait until backward is over, as large as the weights. Here an optimizer of PyTorch's steps one
weight at a time: the moment autograd has added up its gradient, that is stepped with and freed. The numbers are the
same to the bit. What an optimizer takes while it steps is then for one weight too, where its foreach kernels take it
for all. What to know before using it:

* Apply it before the optimizer is made. One that was made before steps in backward from its second step on.
* `optimizer.step()` and `zero_grad()` stay in the loop: with one backward pass a step they find nothing left to do.
  Schedulers work as ever.
* With `micro_batches` a weight is stepped in the last of so many backward passes. One that had a gradient in fewer of
  them, as an expert without tokens, keeps it until `optimizer.step()` steps it. So does every weight after a pass that
  failed or an accumulation that ended early.
* The claim is about `zero_grad()` as it is by default: after `set_to_none=False` a weight without a gradient would be
  stepped with zeros. A backward pass that fails half-way has stepped some of the weights.
* Nobody sees all gradients at once: a `GradScaler` and closures do not go with it, and `clip_grad_norm_` and
  `clip_grad_value_` of torch refuse its weights. `Trainer` of transformers clips unless `max_grad_norm=0`, and then
  logs their norm as nan.
* States in 8 bits go with it: they are unpacked and packed with each weight.
* Optimizers are those of `torch.optim` that step each weight by itself; LBFGS does not.
* A copy of the model is a plain model.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)


@dataclass(frozen=True)
class OptimizerInBackward:
    """`undo = OptimizerInBackward().apply(model)`, then make the optimizer and train as before."""

    micro_batches: int = field(default=1, metadata={"help": "backward passes per optimizer step", "least": 1})

    name: ClassVar[str] = "optimizer_in_backward"
    title: ClassVar[str] = "Optimizer step in backward"
    sentence: ClassVar[str] = "Update each parameter as its gradient arrives; free the gradient."
    not_with: ClassVar[Mapping[str, str]] = {
        "flat_gradients": "one keeps all gradients until they are summed, the other frees them.",
    }
    claim: ClassVar[Literal["bitwise"]] = "bitwise"
    """The same kernels on the same numbers, one weight at a time, for loops as above."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    needs_optimizer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches is {self.micro_batches}; the minimum is 1.")

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference has no optimizer. Use it in training only.")
        if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            raise ValueError(
                "DistributedDataParallel reduces a gradient only after it is accumulated, so it cannot be used at "
                "once. Apply this to models on one device."
            )
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("No weight of this model is trained, so an optimizer has nothing to do.")

    def apply(self, model: nn.Module) -> Callable[[], None]:
        self.check(model, training=True)
        steps = _Steps(model, self.micro_batches)
        _observer.listeners.append(steps)
        _observer.listen()
        # A deleted model needs no undo.
        return weakref.finalize(model, steps.let_go)


class _Steps:
    """The weights of one model, and which optimizer steps each."""

    def __init__(self, model: nn.Module, micro_batches: int) -> None:
        self.model = weakref.ref(model)
        self.micro_batches = micro_batches
        self.optimizers: weakref.WeakKeyDictionary[Optimizer, _SteppedOptimizer] = weakref.WeakKeyDictionary()

    def observe(self, optimizer: Optimizer) -> None:
        """Let the newest optimizer of a weight step it."""
        model = self.model()
        own = set() if model is None else {parameter for parameter in model.parameters() if parameter.requires_grad}
        weights = {weight for group in optimizer.param_groups for weight in group["params"]} & own
        if optimizer in self.optimizers:
            # It is made once and then steps: a step is over.
            self.optimizers[optimizer].sums.clear()
        if optimizer in self.optimizers or not weights:
            return
        kind = type(optimizer)
        if not kind.__module__.startswith("torch.optim") or isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                f"{kind.__name__} may need all gradients at once. Use an optimizer of torch.optim other than LBFGS."
            )
        for earlier in self.optimizers.values():
            earlier.leave(weights)
        self.optimizers[optimizer] = _SteppedOptimizer(optimizer, weights, self.micro_batches)

    def let_go(self) -> None:
        _observer.listeners.remove(self)
        _observer.listen()
        for hooked in self.optimizers.values():
            hooked.leave(set(hooked.hooks))
        self.optimizers.clear()


class _SteppedOptimizer:
    """An optimizer whose weights are stepped one by one. Without it the hooks do nothing."""

    def __init__(self, optimizer: Optimizer, weights: set[nn.Parameter], micro_batches: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.micro_batches = micro_batches
        self.sums: dict[Tensor, _Sum] = {}
        """Gradients that wait for further passes of their step."""
        self.hooks: dict[nn.Parameter, Any] = {}
        for weight in weights:
            leaf: Any = weight
            self.hooks[weight] = leaf.register_post_accumulate_grad_hook(self.step)

    def leave(self, weights: set[nn.Parameter]) -> None:
        for weight in weights & self.hooks.keys():
            self.hooks.pop(weight).remove()

    def step(self, weight: Tensor) -> None:
        optimizer = self.optimizer()
        if optimizer is None or not isinstance(weight, nn.Parameter):
            return
        groups = optimizer.param_groups
        group = next((group for group in groups if any(other is weight for other in group["params"])), None)
        if group is None:
            return
        if self.micro_batches > 1 and not self._is_complete(weight):
            return
        # As it is now: a scheduler may have changed it since the last step.
        optimizer.param_groups = [{**group, "params": [weight]}]
        try:
            _plain_step(optimizer)
        finally:
            optimizer.param_groups = groups
        weight.grad = None

    def _is_complete(self, weight: Tensor) -> bool:
        """Count a pass. In doubt the count begins anew, and the loop's own step takes the weight."""
        gradient, before = weight.grad, self.sums.pop(weight, None)
        assert gradient is not None
        passes = before.passes + 1 if before is not None and before.continues_in(gradient) else 1
        if passes < self.micro_batches:
            self.sums[weight] = _Sum(weakref.ref(gradient), gradient._version, passes)
        return passes == self.micro_batches


@dataclass(frozen=True)
class _Sum:
    """A gradient after some passes."""

    gradient: weakref.ref[Tensor]
    version: int
    passes: int

    def continues_in(self, gradient: Tensor) -> bool:
        """Autograd adds in place. Zeroed, dropped or edited since, it is another sum."""
        return self.gradient() is gradient and gradient._version == self.version + 1


def _plain_step(optimizer: Optimizer) -> None:
    """Without hooks but those of each weight: the others are for whole steps, and the loop says when one is over."""
    step: Any = type(optimizer).step
    step = step.__wrapped__ if getattr(step, "hooked", False) else step
    with torch.no_grad():
        for hook in _of_each_weight(_global_optimizer_pre_hooks):
            hook(optimizer, (), {})
        step(optimizer)
        for hook in _of_each_weight(_global_optimizer_post_hooks):
            hook(optimizer, (), {})


def _of_each_weight(hooks: Mapping[int, Callable[..., Any]]) -> list[Callable[..., Any]]:
    """States in 8 bits, for one, are unpacked and packed with every weight that is stepped, and say so."""
    return [hook for hook in hooks.values() if getattr(hook, "of_each_weight", False)]


_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_", "clip_grads_with_norm_")
"""torch's functions for clipping; the first calls the third, so programs that imported it by name are seen too."""


class _OptimizerObserver:
    """Passes each new optimizer on to listeners, and older ones when they step."""

    def __init__(self) -> None:
        self.listeners: list[_Steps] = []
        self.undo: contextlib.ExitStack | None = None

    def listen(self) -> None:
        if self.listeners and self.undo is None:
            self.undo = contextlib.ExitStack()
            kind: Any = Optimizer
            plain = kind.__init__

            def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
                plain(optimizer, *args, **kwargs)
                self.notify(optimizer)

            self._put(kind, "__init__", init)
            for place in (clip_grad, torch.nn.utils):
                for name in _CLIPS:
                    if hasattr(place, name):
                        self._put(place, name, self._refusing(getattr(place, name)))
            self.undo.callback(register_optimizer_step_pre_hook(self.notify).remove)
        elif not self.listeners and self.undo is not None:
            self.undo.close()
            self.undo = None

    def _put(self, place: Any, name: str, function: Callable[..., Any]) -> None:
        plain = getattr(place, name)
        setattr(place, name, function)

        def put_back() -> None:
            if getattr(place, name) is function:
                setattr(place, name, plain)

        assert self.undo is not None
        self.undo.callback(put_back)

    def _refusing(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(clip)
        def refusing(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            weights = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            stepped = {
                weight for steps in self.listeners for stepped in steps.optimizers.values() for weight in stepped.hooks
            }
            if stepped.isdisjoint(weights):
                return clip(weights, *args, **kwargs)
            reason = f"{clip.__name__} finds no gradients: OptimizerInBackward has used and freed them."
            bound = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
            if bound != math.inf:
                raise ValueError(
                    f"{reason} Disable clipping (max_grad_norm=0 in Trainer), or drop OptimizerInBackward."
                )
            # Loops ask so for the norm alone, as Trainer does for its log.
            warnings.warn(f"{reason} Their norm is unknown and reported as nan.", stacklevel=2)
            return torch.tensor(math.nan)

        return refusing

    def notify(self, optimizer: Optimizer, *_: Any) -> None:
        for listener in tuple(self.listeners):
            listener.observe(optimizer)


_observer = _OptimizerObserver()
