"""Flat gradients: micro-batches added up in fp32, in one buffer whose slices belong to the parameters.

A flat parameter, as FSDP 1 and fairscale keep it, makes autograd join all gradients with a `cat` after every
micro-batch. Three ways to add the micro-batches up, in bytes a parameter while the weights are bf16:

`plain`          every micro-batch is joined (2 + 2) and added to a flat fp32 sum (4).
`list_then_cat`  each gradient is added to its own fp32 sum as it comes (4); after the last micro-batch the list is
                 joined into one, so for a moment the sums exist twice (4 + 4). They are freed at once, but the
                 allocator had to reserve the second 4 and keeps them.
`flat`           each gradient is added to its slice of one fp32 buffer as it comes (4): nothing is left to join.

The three add the same numbers in the same order, element by element, so their sums are bitwise equal (a zero may
change its sign). What PyTorch itself accumulates in `p.grad`, in the parameters' dtype, differs from them by
rounding, unless that dtype is fp32. A micro-batch is one backward pass, a step `micro_batches` of them; after the
last every parameter has its sum as `p.main_grad`, until the next forward that needs gradients begins a new step.

Under DistributedDataParallel apply it to the wrapper: the wrapper's own reduction, which would write each
micro-batch over the sums, is held back, and the sum is reduced once a step, in fp32: the mean of all ranks' sums,
with `no_sync` around the earlier micro-batches or without. FSDP and sharded parameters are refused: they sum in
shards of their own. A copy of the model, or one read from a file, adds up its own steps from its next forward on.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

_WAYS = ("flat", "list_then_cat", "plain")
_FITTING = (torch.float32, torch.bfloat16, torch.float16)


def _knob(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class FlatGradients:
    """`FlatGradients(micro_batches=4).apply(model)`, then four times forward and backward, then the optimizer."""

    how: str = _knob(
        "flat", "how micro-batches are summed; other values are for comparison", choices=_WAYS, says="gradients {}"
    )
    micro_batches: int = _knob(4, "backward passes per optimizer step")
    joined: bool = _knob(True, "also gather the last micro-batch's gradients, like a flat parameter")
    fill_grad: bool = _knob(True, "write the sum to p.grad, in the parameter's dtype, for any optimizer")

    name: ClassVar[str] = "flat_gradients"
    title: ClassVar[str] = "Flat fp32 gradients"
    sentence: ClassVar[str] = "Accumulate fp32 gradients in one flat buffer, without torch.cat."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["bitwise"]] = "bitwise"
    """Outputs and losses: gradients are read after they have been computed."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"

    def __post_init__(self) -> None:
        if self.how not in _WAYS:
            raise ValueError(f"how is {self.how!r}; it must be one of {', '.join(_WAYS)}.")
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches is {self.micro_batches}; the minimum is 1.")

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference has no gradients. Use it in training only.")
        _trained(model)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        _trained(model)
        if _sums_of(model) is not None:
            raise ValueError("FlatGradients is already applied to this model. Undo that first.")
        sums = _Sums(self)
        undo = contextlib.ExitStack()
        undo.callback(sums.let_go)
        undo.callback(model.register_forward_pre_hook(sums.before_forward).remove)
        undo.callback(model.register_forward_hook(sums.after_forward, always_call=True).remove)
        return undo.close


def flat_gradient(model: nn.Module) -> Tensor:
    """The sum of the last complete step: one fp32 tensor, parameters one after the other in the model's order."""
    sums = _sums_of(model)
    if sums is None or sums.total is None or sums.begun:
        raise ValueError("There is no complete sum. Apply FlatGradients, then run all micro-batches of a step.")
    return sums.total


class _Sums:
    """Gradient sums of one model. A step is `begun` by its first forward and over with its last backward."""

    def __init__(self, knobs: FlatGradients) -> None:
        self.knobs = knobs
        self.hooks: list[RemovableHandle] = []
        self.places: dict[nn.Parameter, slice] = {}
        self.pieces: dict[nn.Parameter, Tensor] = {}
        self.total: Tensor | None = None
        self.begun = False
        self.backward: int | None = None
        self.done = 0
        self.model: weakref.ref[nn.Module] | None = None
        self.replicas: _Replicas | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model begins with nothing added up: what there is hangs on the parameters of this one."""
        return _Sums, (self.knobs,)

    def before_forward(self, model: nn.Module, inputs: Any) -> None:
        """Every step looks anew: parameters may have been frozen, or replaced when the model was moved."""
        if not torch.is_grad_enabled():
            return
        _refuse_outer_replicas(model)
        if not self.begun:
            self.begin(model)
        if self.replicas is not None:
            self.replicas.skip_sync()

    def after_forward(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if self.replicas is not None:
            self.replicas.release()

    def begin(self, model: nn.Module) -> None:
        for weight in self.places if self.knobs.fill_grad else ():
            weight.grad = None
        self.let_go()
        trained = _trained(model)
        self.replicas = _Replicas(model) if isinstance(model, DistributedDataParallel) else None
        self.model, size, self.begun = weakref.ref(model), 0, True
        for weight in trained:
            self.places[weight] = slice(size, size := size + weight.numel())
            hook = weight.register_post_accumulate_grad_hook(self.after_accumulation)  # type: ignore[no-untyped-call]
            self.hooks.append(hook)
        self.hooks.append(register_optimizer_step_pre_hook(self.before_optimizer))
        if self.knobs.how == "flat":
            self.total = torch.zeros(size, dtype=torch.float32, device=next(iter(self.places)).device)

    @torch.no_grad()
    def after_accumulation(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert isinstance(parameter, nn.Parameter) and gradient is not None
        if self.backward != (now := torch._C._current_graph_task_id()):
            self.backward = now
            torch.autograd.Variable._execution_engine.queue_callback(self.after_backward)
        if self.knobs.how == "flat":
            assert self.total is not None
            self.total[self.places[parameter]].add_(gradient.flatten())
        elif self.knobs.how == "list_then_cat":
            piece = self.pieces.get(parameter)
            self.pieces[parameter] = gradient.to(torch.float32) if piece is None else piece.add_(gradient)
        if not self.joins_gradients():
            parameter.grad = None

    def joins_gradients(self) -> bool:
        is_last = self.done + 1 == self.knobs.micro_batches
        return self.knobs.how == "plain" or (self.knobs.joined and is_last)

    @torch.no_grad()
    def after_backward(self) -> None:
        joined = self.join_gradients() if self.joins_gradients() else None
        self.done += 1
        if self.knobs.how == "plain" and joined is not None:
            self.total = joined.to(torch.float32) if self.total is None else self.total.add_(joined)
        if self.done == self.knobs.micro_batches:
            if self.knobs.how == "list_then_cat":
                # The buffer in the parameters' dtype is still alive, though unused.
                self.total = _cat(self.places, self.pieces, torch.float32)
                self.pieces = {}
            del joined
            try:
                self.refuse_replaced()
                if self.replicas is not None and self.total is not None:
                    self.replicas.reduce(self.total)
            except BaseException:
                self.let_go()
                raise
            self.hand_over()

    def refuse_replaced(self) -> None:
        """Refuse a model whose parameters were replaced, as FSDP does once the backward pass has used them."""
        model = self.model() if self.model is not None else None
        if model is not None and not self.places.keys() <= {*model.parameters()}:
            raise RuntimeError(
                "Parameters were replaced between the forward pass and the end of the step, so the optimizer does "
                "not see the sums. Move, load or shard the model between steps; do not use FlatGradients with FSDP."
            )

    def join_gradients(self) -> Tensor:
        gradients = {place: place.grad for place in self.places if place.grad is not None}
        joined = _cat(self.places, gradients, next(iter(self.places)).dtype)
        for gradient in gradients:
            gradient.grad = None
        return joined

    def hand_over(self) -> None:
        assert self.total is not None
        for weight, place in self.places.items():
            weight.main_grad = self.total[place].view_as(weight)  # type: ignore[attr-defined]
            if self.knobs.fill_grad:
                weight.grad = self.total[place].view_as(weight).to(weight.dtype)
        self.end()

    def before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        has_own_weight = (weight in self.places for group in optimizer.param_groups for weight in group["params"])
        if self.done and any(has_own_weight):
            raise RuntimeError(
                f"The optimizer stepped after {self.done} of {self.knobs.micro_batches} micro-batches, before the sum "
                "was complete. Set micro_batches to the number of backward passes before each step."
            )

    def end(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks, self.begun, self.done = [], False, 0

    def let_go(self) -> None:
        self.end()
        for place in self.places:
            place.__dict__.pop("main_grad", None)
        self.places, self.pieces, self.total, self.replicas = {}, {}, None, None


class _Replicas:
    """Replicas under DistributedDataParallel, which reduces gradients in its own buckets and writes them back."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model = model
        self.held = False
        self.syncs = True
        """The last forward pass was outside of no_sync."""

    def skip_sync(self) -> None:
        """Suppress the reduction of this step, as `no_sync` does: the wrapper decides on it in the forward pass."""
        self.syncs = self.model.require_backward_grad_sync
        self.model.require_backward_grad_sync, self.held = False, True

    def release(self) -> None:
        if self.held:
            # What the wrapper itself notes of a forward pass, so that it sends buffers around when it would have.
            self.model.require_backward_grad_sync = self.model.require_forward_param_sync = self.syncs
            self.held = False

    def reduce(self, total: Tensor) -> None:
        """The mean of the ranks, as the wrapper takes it: divided first, then added up."""
        if not self.syncs:
            raise RuntimeError(
                "The last micro-batch of the step ran under no_sync, so its sum would be local to this rank. Leave "
                "no_sync before the last one, or set micro_batches to the number per step."
            )
        group = self.model.process_group
        total.mul_(1 / torch.distributed.get_world_size(group))
        torch.distributed.all_reduce(total, group=group)


def _sums_of(model: nn.Module) -> _Sums | None:
    owners = (getattr(hook, "__self__", None) for hook in model._forward_pre_hooks.values())
    return next((owner for owner in owners if isinstance(owner, _Sums)), None)


def _cat(places: Mapping[nn.Parameter, slice], gradients: Mapping[nn.Parameter, Tensor], dtype: torch.dtype) -> Tensor:
    """One after the other; zeros for a parameter that took no part, as autograd makes them."""
    parts = (gradients[place] if place in gradients else torch.zeros_like(place, dtype=dtype) for place in places)
    return torch.cat([part.flatten() for part in parts])


def _refuse_outer_replicas(model: nn.Module) -> None:
    # That of a build without torch.distributed has none of this, and nothing to refuse.
    outer = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if outer is not None and outer is not model:
        raise ValueError(
            "This model runs inside DistributedDataParallel, whose reduction would overwrite the sums: undo, and apply "
            "FlatGradients to the wrapper, DistributedDataParallel(model), instead of to what is in it."
        )


def _refuse_distributed(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if module is not model and isinstance(module, DistributedDataParallel):
            raise ValueError(f"{name} is wrapped in DistributedDataParallel. Apply FlatGradients to that wrapper.")
        if type(module).__name__ == "FullyShardedDataParallel" or hasattr(type(module), "set_requires_gradient_sync"):
            raise ValueError(
                f"{name or 'This model'} is sharded or replicated by FSDP or replicate, which reduces gradients by "
                "itself, into tensors of its own: leave FlatGradients out, and let it sum in fp32, by "
                "MixedPrecisionPolicy(reduce_dtype=torch.float32), or in FSDP 1 by MixedPrecision with the same."
            )
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "placements") or getattr(parameter, "_fsdp_flattened", False):
            raise ValueError(f"{name} is a shard of a parameter (a {type(parameter).__name__}), not the whole of it.")
    if isinstance(model, DistributedDataParallel):
        _refuse_special_replicas(model)


def _refuse_special_replicas(model: Any) -> None:
    ignored = [name for name, weight in model.module.named_parameters() if weight.requires_grad]
    ignored = [name for name in ignored if name in model.parameters_to_ignore]
    why = {
        "a communication hook": bool(model._comm_hooks) or bool(model._get_ddp_logging_data().get("comm_hook")),
        "its own mixed precision": model.mixed_precision is not None,
        "the reducer of compiled autograd": model._use_python_reducer,
        f"parameters that it ignores, {', '.join(ignored)}": bool(ignored),
        "ranks with different numbers of batches (join)": model._join_config.enable,
        "a static graph, whose first step it must reduce itself (it needs none here: make it without)": (
            model.static_graph
        ),
    }
    for what, there in why.items():
        if there:
            raise ValueError(f"This DistributedDataParallel has {what}, which FlatGradients does not support.")


def _trained(model: nn.Module) -> list[nn.Parameter]:
    _refuse_distributed(model)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not trained:
        raise ValueError("No parameter of this model is trained, so there are no gradients.")
    for name, weight in trained.items():
        if weight.dtype not in _FITTING:
            raise ValueError(f"{name} is {weight.dtype}, which a sum in float32 cannot hold; bf16, fp16 and fp32 fit.")
    if len(devices := sorted({str(weight.device) for weight in trained.values()})) > 1:
        raise ValueError(f"One buffer lies on one device, and this model is on {', '.join(devices)}.")
    if any(getattr(module, "sparse", False) is True for module in model.modules()):
        raise ValueError("Sparse gradients do not fit in a flat buffer. Build the embedding with sparse=False.")
    return list(trained.values())
