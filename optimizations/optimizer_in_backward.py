"""Each weight is stepped as soon as its gradient is there, during backward, and the gradient is let go at once.

As a rule all gradients wait until backward is over, as large as the weights. Here an optimizer of PyTorch's steps one
weight at a time: the moment autograd has added up its gradient, that is stepped with and freed. The numbers are the
same to the bit. What an optimizer takes while it steps is then for one weight too, where its foreach kernels take it
for all. What to know before using it:

* Apply it before the optimizer is made. One that was made before steps in backward from its second step on.
* `optimizer.step()` and `zero_grad()` may stay in the loop: they find nothing left to do. Schedulers work as ever.
* Nobody sees all gradients at once: clipping by their norm, a `GradScaler` and closures do not go with it.
* With `micro_batches` the gradients wait in between, and are stepped with and freed in the last backward pass.
* States in 8 bits go with it: they are unpacked and packed with each weight.
* Optimizers are those of `torch.optim` that step each weight by itself; LBFGS does not.
* A copy of the model is a plain model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)


@dataclass(frozen=True)
class OptimizerInBackward:
    """`undo = OptimizerInBackward().apply(model)`, then make the optimizer and train as before."""

    micro_batches: int = field(default=1, metadata={"help": "backward passes that make one step", "least": 1})

    name: ClassVar[str] = "optimizer_in_backward"
    title: ClassVar[str] = "Optimizer steps in backward"
    sentence: ClassVar[str] = (
        "Steps each weight as soon as its gradient is there and lets the gradient go, so that they never all exist. "
        "Gradients cannot be clipped by the norm of all."
    )
    not_with: ClassVar[Mapping[str, str]] = {
        "flat_gradients": "one keeps all gradients until they are summed, the other none.",
    }
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    needs_optimizer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches is {self.micro_batches}; a step has at least 1.")

    @property
    def claim(self) -> Literal["bitwise", "rounding", "lossy"]:
        """The same kernels on the same numbers, one weight at a time."""
        return "bitwise"

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference has no optimizer: train, or leave the optimizer in backward out.")
        if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            raise ValueError(
                "Replicas agree on a gradient only after it has been added up here, so it cannot be stepped with at "
                "once: apply this to models on one device."
            )
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("No weight of this model is trained, so an optimizer has nothing to do.")

    def apply(self, model: nn.Module) -> Callable[[], None]:
        self.check(model, training=True)
        steps = _Steps(model, self.micro_batches)
        _made.listeners.append(steps)
        _made.listen()
        # Nobody need undo it for a model that is gone.
        return weakref.finalize(model, _let_go, steps)

    def code(self) -> str:
        words = "" if self.micro_batches == 1 else f"micro_batches={self.micro_batches}"
        construction = f"undo = OptimizerInBackward({words}).apply(model)  # before the optimizer is made"
        return f"from {__name__} import OptimizerInBackward\n\n{construction}"


class _Steps:
    """The weights of one model, and which optimizer steps each."""

    def __init__(self, model: nn.Module, micro_batches: int) -> None:
        self.model = weakref.ref(model)
        self.micro_batches = micro_batches
        self.taken: weakref.WeakKeyDictionary[Optimizer, _Taken] = weakref.WeakKeyDictionary()

    def hear(self, optimizer: Optimizer) -> None:
        """The newest optimizer of a weight steps it."""
        model = self.model()
        mine = set() if model is None else {parameter for parameter in model.parameters() if parameter.requires_grad}
        theirs = {weight for group in optimizer.param_groups for weight in group["params"]} & mine
        if optimizer in self.taken or not theirs:
            return
        _refuse_others(optimizer)
        for earlier in self.taken.values():
            earlier.leave(theirs)
        self.taken[optimizer] = _Taken(optimizer, theirs, self.micro_batches)

    def let_go(self) -> None:
        for hooked in self.taken.values():
            hooked.leave(set(hooked.hooks))
        self.taken.clear()


def _let_go(steps: _Steps) -> None:
    _made.listeners[:] = [listener for listener in _made.listeners if listener is not steps]
    _made.listen()
    steps.let_go()


class _Taken:
    """An optimizer whose weights are stepped one by one. Without it the hooks do nothing."""

    def __init__(self, optimizer: Optimizer, weights: set[nn.Parameter], micro_batches: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.micro_batches = micro_batches
        self.waiting = dict.fromkeys(weights, micro_batches)
        self.hooks: dict[nn.Parameter, Any] = {}
        for weight in weights:
            leaf: Any = weight
            self.hooks[weight] = leaf.register_post_accumulate_grad_hook(self.step)

    def leave(self, weights: set[nn.Parameter]) -> None:
        for weight in weights & self.hooks.keys():
            self.hooks.pop(weight).remove()

    def step(self, weight: Tensor) -> None:
        optimizer = self.optimizer()
        group = None if optimizer is None else _group_of(weight, optimizer)
        if optimizer is None or group is None or not isinstance(weight, nn.Parameter):
            return
        self.waiting[weight] -= 1
        if self.waiting[weight]:
            return
        self.waiting[weight] = self.micro_batches
        groups = optimizer.param_groups
        # As it is now: a scheduler may have changed it since the last step.
        optimizer.param_groups = [{**group, "params": [weight]}]
        try:
            _plain_step(optimizer)
        finally:
            optimizer.param_groups = groups
        weight.grad = None


def _group_of(weight: Tensor, optimizer: Optimizer) -> dict[str, Any] | None:
    return next((group for group in optimizer.param_groups if any(other is weight for other in group["params"])), None)


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


def _refuse_others(optimizer: Optimizer) -> None:
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            f"{kind.__name__} may need all gradients at once; one of torch.optim other than LBFGS steps in backward."
        )


class _Made:
    """Hears of each optimizer that is made, and of those made before when they step, while anybody listens."""

    def __init__(self) -> None:
        self.listeners: list[_Steps] = []
        self.plain: Any = None
        self.hook: Any = None

    def listen(self) -> None:
        if self.listeners and self.plain is None:
            kind: Any = Optimizer
            self.plain = plain = kind.__init__

            def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
                plain(optimizer, *args, **kwargs)
                self.tell(optimizer)

            self.init = init
            kind.__init__ = init
            self.hook = register_optimizer_step_pre_hook(self.tell)
        elif not self.listeners and self.plain is not None:
            if Optimizer.__init__ is self.init:
                Optimizer.__init__ = self.plain  # type: ignore[method-assign]
            self.hook.remove()
            self.plain = None

    def tell(self, optimizer: Optimizer, *_: Any) -> None:
        for listener in tuple(self.listeners):
            listener.hear(optimizer)


_made = _Made()
