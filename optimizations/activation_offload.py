"""Activation offload: tensors saved for backward wait in pinned host memory until backward needs them.

Every tensor that a forward pass of the model saves is copied to pinned host memory and let go on the device; backward
copies it back where it is used. Weights stay, and so does what is smaller than `least_mib`, whose copies would cost
more time than they save memory. What to know before using it:

* It pays where activations make the peak. Where the loss does, or the optimizer, it moves bytes for nothing.
* A tensor saved by several operators is copied once. Copies run on the computing stream, not in parallel.
* Inside checkpointed blocks nothing is saved; what is moved there are the inputs of the blocks.
* What a loss outside of the model saves stays on the device, and so do sparse and jagged tensors.
* PyTorch rounds each piece of pinned memory up to a power of two, and keeps what was given back for others of its size.
  `most_gib` bounds what it holds so: beyond it tensors stay where they are.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class ActivationOffload:
    """`undo = ActivationOffload().apply(model)`; `host_bytes(model)` says what waits on the host now and at most."""

    least_mib: float = field(
        default=1.0, metadata={"help": "smaller tensors stay on the GPU", "unit": "MiB", "least": 0, "reduced": 0.0}
    )
    most_gib: float = field(
        default=0.0, metadata={"help": "limit of pinned CPU memory; 0: no limit", "unit": "GiB", "least": 0}
    )
    from_host: bool = field(
        default=False,
        repr=False,
        metadata={
            "help": "also copy tensors that are on the host, to test on a CPU",
            "python_only": True,
            "reduced": True,
        },
    )

    name: ClassVar[str] = "activation_offload"
    title: ClassVar[str] = "Activation offload"
    sentence: ClassVar[str] = "Keep saved activations in pinned CPU memory until backward."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["bitwise"]] = "bitwise"
    """Bits come back as they went."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    pins_host_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for knob in fields(self):
            if getattr(self, knob.name) < 0:
                raise ValueError(f"{knob.name} is {getattr(self, knob.name)}; the minimum is 0.")

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference saves no activations for backward. Use it in training only.")

    def apply(self, model: nn.Module) -> Callable[[], None]:
        if _mover_of(model) is not None:
            raise ValueError("Activations of this model are already offloaded. Undo that first.")
        mover = _Mover(self)
        undo = contextlib.ExitStack()
        undo.callback(model.register_forward_pre_hook(mover.enter).remove)
        undo.callback(model.register_forward_hook(mover.leave, always_call=True).remove)
        return undo.close


@dataclass(frozen=True)
class HostBytes:
    now: int
    most: int
    pinned: int
    """Pinned memory that PyTorch reserves for them, in blocks that are powers of two."""


def host_bytes(model: nn.Module) -> HostBytes:
    """Return how many bytes of the model's activations are in host memory."""
    mover = _mover_of(model)
    if mover is None:
        raise ValueError("Activations of this model are not offloaded. Apply ActivationOffload first.")
    return HostBytes(mover.waiting, mover.most, mover.pinned)


def _mover_of(model: nn.Module) -> _Mover | None:
    hooks = (getattr(hook, "__self__", None) for hook in model._forward_pre_hooks.values())
    return next((hook for hook in hooks if isinstance(hook, _Mover)), None)


_Layout = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, int]


class _Mover:
    """Moves the saved tensors of one model to the host and back."""

    def __init__(self, knobs: ActivationOffload) -> None:
        self.knobs = knobs
        self.waiting = self.most = self.pinned = 0
        self.used, self.made = Counter[int](), Counter[int]()
        """Blocks of pinned memory, by their size."""
        self.entered: list[saved_tensors_hooks] = []
        self.stays: set[int] = set()
        """Storages of weights."""
        self.known: dict[int, tuple[weakref.ref[Any], dict[_Layout, weakref.ref[_HostCopy]]]] = {}
        """Copies made so far, by the id of their storage; the weak reference tells whether that storage still lives."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model begins with nothing moved."""
        return _Mover, (self.knobs,)

    def enter(self, model: nn.Module, _: Any) -> None:
        self.stays = {_storage_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
        hooks = saved_tensors_hooks(self.to_host, _to_device)
        self.entered.append(hooks)
        hooks.__enter__()

    def leave(self, *_: Any) -> None:
        if self.entered:
            self.entered.pop().__exit__()

    def to_host(self, saved: Tensor) -> Tensor | _HostCopy:
        if saved.layout is not torch.strided:
            return saved
        size = saved.numel() * saved.element_size()
        is_small = size < max(self.knobs.least_mib * _MIB, 1)
        if is_small or (_is_on_host(saved) and not self.knobs.from_host) or _storage_of(saved) in self.stays:
            return saved
        copied = self._copies_of(saved)
        layout = int(saved.storage_offset()), tuple(saved.shape), saved.stride(), saved.dtype, saved._version
        there = copied[layout]() if layout in copied else None
        if there is None:
            block = _block(size)
            is_there = self.used[block] < self.made[block]
            if self.knobs.most_gib and not is_there and self.pinned + block > self.knobs.most_gib * _GIB:
                return saved
            there = _HostCopy(saved)
            copied[layout] = weakref.ref(there)
            self.waiting += size
            self.most = max(self.most, self.waiting)
            self.used[block] += 1
            if self.used[block] > self.made[block]:
                self.made[block] += 1
                self.pinned += block
            weakref.finalize(there, self._discount_copy, size)
        return there

    def _copies_of(self, saved: Tensor) -> dict[_Layout, weakref.ref[_HostCopy]]:
        storage, key = saved.untyped_storage(), _storage_of(saved)
        reference, copied = self.known.get(key, (None, {}))
        if reference is None or reference() is None:
            copied = {}
            self.known[key] = weakref.ref(storage, lambda gone: self._forget(key, gone)), copied
        return copied

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        if key in self.known and self.known[key][0] is gone:
            del self.known[key]

    def _discount_copy(self, size: int) -> None:
        self.waiting -= size
        self.used[_block(size)] -= 1


class _HostCopy:
    """A tensor's copy in host memory, and a weak reference to the tensor that it was copied back to."""

    def __init__(self, saved: Tensor) -> None:
        self.device = saved.device
        self.back: weakref.ref[Tensor] | None = None
        with torch.no_grad():
            # Not torch.empty: what is transposed must come back transposed, or other kernels would run on it.
            self.host = torch.empty_like(saved, device="cpu", pin_memory=saved.is_cuda)
            if self.host.is_meta or not saved.is_meta:
                self.host.copy_(saved, non_blocking=True)


def _to_device(packed: Tensor | _HostCopy) -> Tensor:
    if not isinstance(packed, _HostCopy):
        return packed
    back = None if packed.back is None else packed.back()
    if back is None:
        back = torch.empty_like(packed.host, device=packed.device)
        if back.is_meta or not packed.host.is_meta:
            back.copy_(packed.host, non_blocking=True)
        packed.back = weakref.ref(back)
    return back


def _block(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
