"""Older words for tensors on a card, `torch.cuda.FloatTensor(3)`, and defaults that are set to the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from memviz.runner.predict.named_devices import META, NamedDevices
from memviz.runner.predict.torch_patches import Patches

_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}
_MODULE = "torch.cuda"


class _CardType(type):
    dtype: torch.dtype

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor) and value.is_cuda and value.dtype == cls.dtype

    def __repr__(cls) -> str:
        return f"<class '{_MODULE}.{cls.__name__}'>"


class CardType(metaclass=_CardType):
    """A kind of tensors on the card; to call it makes one."""

    dtype: ClassVar[torch.dtype]

    def __new__(cls, *args: Any, device: Any = None) -> Any:
        if args and not isinstance(args[0], int):
            if isinstance(args[0], torch.Size):
                return torch.empty(args[0], dtype=cls.dtype, device="cuda")
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(args or (0,), dtype=cls.dtype, device="cuda")


def cast(tensor: Tensor, kind: Any) -> Any:
    """`tensor.type(kind)`; NotImplemented where torch's own is right."""
    name = kind.__name__ if isinstance(kind, _CardType) else kind
    if isinstance(name, str) and name.removeprefix("torch.") in (f"cuda.{type_name}" for type_name in _TYPES):
        return tensor.to(META, _TYPES[name.rpartition(".")[2]])
    if isinstance(kind, _CardType):
        return tensor.to(META, kind.dtype)
    if isinstance(kind, str) and kind.startswith("torch.") and tensor.is_meta:
        return tensor.to("cpu", _TYPES[kind.rpartition(".")[2]])
    return NotImplemented


def follow_types(patches: Patches, named: NamedDevices) -> None:
    for name, dtype in _TYPES.items():
        patches.put(torch.cuda, name, _CardType(name, (CardType,), {"dtype": dtype, "__module__": _MODULE}))
    set_type: Any = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        name = kind.__name__ if isinstance(kind, _CardType) else str(kind)
        if isinstance(kind, _CardType) or name.startswith(f"{_MODULE}."):
            torch.set_default_dtype(_TYPES[name.rpartition(".")[2]])
            torch.set_default_device("cuda")
        else:
            torch.set_default_device(None)
            set_type(kind)

    before = torch.get_default_dtype()
    patches.call_back(lambda: torch.set_default_dtype(before))
    patches.put(torch, "set_default_tensor_type", set_default_tensor_type)
    _follow_default_device(patches, named)


def _follow_default_device(patches: Patches, named: NamedDevices) -> None:
    """torch keeps it below every mode, where no word of ours is heard any more."""
    set_device: Callable[[Any], None] = torch.set_default_device
    get_device: Callable[[], torch.device] = torch.get_default_device
    chosen: list[bool] = []

    def set_default_device(device: Any) -> None:
        ours = named.means_us(device, numbers=True)
        chosen[:] = [True] if ours else []
        set_device(META if ours else device)

    def get_default_device() -> torch.device:
        return named.own if chosen else get_device()

    def take_back() -> None:
        if chosen:
            set_device(None)

    patches.put(torch, "set_default_device", set_default_device)
    patches.put(torch, "get_default_device", get_default_device)
    patches.call_back(take_back)
