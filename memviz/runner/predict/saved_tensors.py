"""Files of safetensors: their headers are read, and of large tensors nothing more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.named_devices import META, NamedDevices
from memviz.runner.predict.torch_patches import Patches
from memviz.runner.predict.unwritten_files import is_empty

_NAMES = ("safe_open", "save_file", "safe_save_file")
_FOLDERS = ("safetensors", "transformers", "diffusers", "accelerate", "peft")


@dataclass(frozen=True)
class _Followed:
    named: NamedDevices
    keeps: Callable[[Any, Any, Any], bool]
    lose: Callable[[Tensor], None]


_followed: list[_Followed] = []
"""One, while a device is in use. Libraries that are loaded meanwhile hold our functions for good."""


def follow_safetensors(
    patches: Patches, named: NamedDevices, keeps: Callable[[Any, Any, Any], bool], lose: Callable[[Tensor], None]
) -> None:
    """Only where a program has it anyway. `keeps` says whether a file's tensors were kept instead of written."""
    functions = _functions()
    if functions is None:
        return
    _followed.append(_Followed(named, keeps, lose))
    patches.call_back(_followed.clear)
    for original, ours in functions:
        _replace_everywhere(patches, original, ours)


@cache
def _functions() -> tuple[tuple[Any, Any], ...] | None:
    """Their own, and ours instead."""
    try:
        from safetensors import safe_open as open_
        from safetensors.torch import save_file as save
    except ImportError:
        return None

    def save_file(tensors: Any, filename: Any, metadata: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not _followed or not _followed[0].keeps(tensors, filename, metadata):
            save(tensors, filename, metadata, *args, **kwargs)

    def safe_open(filename: Any, framework: Any = "pt", device: Any = "cpu", **kwargs: Any) -> Any:
        on_card = bool(_followed) and _followed[0].named.means_us(device, numbers=True)
        opened = open_(filename, framework, "cpu" if on_card else device, **kwargs)
        lose = _followed[0].lose if _followed and is_empty(filename) else None
        if not on_card and lose is None:
            return opened
        return _Opened(opened, lambda tensor: _arrived(tensor, lose, on_card))

    return (open_, safe_open), (save, save_file)


def _arrived(tensor: Tensor, lose: Callable[[Tensor], None] | None, on_card: bool) -> Tensor:
    with torch._C.DisableTorchFunction():
        if lose is not None:
            lose(tensor)
        return tensor.to(META) if on_card else tensor


def _replace_everywhere(patches: Patches, original: Any, ours: Any) -> None:
    """Libraries that are loaded already have it under names of their own."""
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] in _FOLDERS:
            for attribute in _NAMES:
                if vars(module).get(attribute) is original:
                    patches.replace(module, attribute, ours)


class _Opened:
    """A file of safetensors whose tensors are the card's, or have no values."""

    def __init__(self, opened: Any, arrived: Callable[[Any], Any]) -> None:
        self._opened = opened
        self._arrived = arrived

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __enter__(self) -> _Opened:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        return self._arrived(self._opened.get_tensor(name))

    def get_tensors(self, *names: Any) -> Any:
        return {name: self._arrived(tensor) for name, tensor in self._opened.get_tensors(*names).items()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._opened.get_slice(name), self._arrived)


class _Slice:
    def __init__(self, of: Any, arrived: Callable[[Any], Any]) -> None:
        self._of = of
        self._arrived = arrived

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __getitem__(self, where: Any) -> Any:
        return self._arrived(self._of[where])


def path_of(file: Any) -> str | None:
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, str | os.PathLike) else None
