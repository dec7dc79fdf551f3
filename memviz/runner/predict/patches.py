"""What torch does differently where a CUDA device is, put in place for as long as the device lives."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from memviz.runner.predict.device import PretendedDevice


@contextmanager
def applied(device: PretendedDevice) -> Iterator[None]:
    patches = Patches()
    try:
        _follow_modules(patches, device)
        _follow_optimizers(patches, device)
        _follow_resizing(patches, device)
        yield
    finally:
        patches.undo()


class Patches:
    """Attributes of torch replaced, and how to put them back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """What was there before; None where this release of torch has no such thing."""
        before = vars(owner).get(name)
        if before is None:
            return None
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)
        return before

    def give(self, owner: Any, name: str, value: Any) -> None:
        """In front of what the owner inherits."""
        self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def call_back(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def _follow_modules(patches: Patches, device: PretendedDevice) -> None:
    where = device.recorder.where
    before = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        device.called(self)
        with where.inside(self):
            out = before(self, *args, **kwargs)
        if not where.modules:
            device.gave(self, out)
        return out

    patches.replace(nn.Module, "__call__", call)


def _follow_optimizers(patches: Patches, device: PretendedDevice) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    where = device.recorder.where

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        where.steps += 1

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        where.steps -= 1
        device.stepped(optimizer)

    patches.call_back(register_optimizer_step_pre_hook(begins).remove)
    patches.call_back(register_optimizer_step_post_hook(ends).remove)
    names = ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices")
    for path in ("torch.optim.optimizer", "torch.utils._foreach_utils", "torch.optim.swa_utils"):
        module = importlib.import_module(path)
        for name in names:
            there = vars(module).get(name)
            if there is not None:
                patches.replace(module, name, _with_our_device(there))


def _follow_resizing(patches: Patches, device: PretendedDevice) -> None:
    """Of a storage by itself, as programs do to keep a tensor and let its memory go."""
    resize: Any = torch.UntypedStorage.resize_

    def resized(self: torch.UntypedStorage, size: int) -> Any:
        result = resize(self, size)
        if self.device.type == "meta":
            device.recorder.resized(self, "resize_")
        return result

    patches.give(torch.UntypedStorage, "resize_", resized)


def _with_our_device(supported: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [*supported(), "meta"]
