"""The host beside the device: real CPU tensors, whose memory stays untouched where it would hold the device's data.

A tensor on the device has no data, so a copy of it to the host is memory that nobody writes to: it costs address
space only. What the program makes on the host itself, a counter or a schedule, is computed there for real.
"""

from __future__ import annotations

from typing import Any

import torch

from memviz.errors import UsageError
from memviz.runner.pretend.stacks import Stacks

aten = torch.ops.aten
_NO_OVERFLOW = 0.0
"""What a scaler of gradients looks for: it is taken to find none, so every step is taken."""


def is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def copy_to_host(func: Any, args: Any, kwargs: Any) -> Any:
    """`tensor.to("cpu")`; anything else is NotImplemented."""
    device = kwargs.get("device")
    if device is None or device.type != "cpu" or not is_on_device(args[0]):
        return NotImplemented
    return torch.empty_like(args[0], device=device, dtype=kwargs.get("dtype") or args[0].dtype)


def copy_into_host(func: Any, args: Any, kwargs: Any) -> Any:
    """`host_tensor.copy_(device_tensor)`."""
    if is_on_device(args[0]) or not is_on_device(args[1]):
        return NotImplemented
    return args[0]


def copies_into_host(func: Any, args: Any, kwargs: Any) -> Any:
    """`torch._foreach_copy_(host_tensors, device_tensors)`."""
    if not args[0] or is_on_device(args[0][0]) or not is_on_device(args[1][0]):
        return NotImplemented
    return None


def refuse_to_look(func: Any, args: Any, kwargs: Any) -> Any:
    """Operators whose answer is in the data."""
    if not any(is_on_device(each) for each in args):
        return NotImplemented
    if func is aten._local_scalar_dense.default and Stacks.calls_from("torch/amp/grad_scaler.py"):
        return _NO_OVERFLOW
    raise data_needed(func)


def data_needed(func: Any) -> DataNeeded:
    return DataNeeded(
        f"{func.overloadpacket} asks for the values of a tensor on the device{Stacks.place_of_caller()}, and a "
        "predicted device has none. Take the value from the host, give it as a constant, or leave the call out of "
        "what is predicted."
    )


class DataNeeded(UsageError):
    """The program branches on data, or a shape depends on it."""


IN_PLACE_OF = {
    aten._to_copy.default: copy_to_host,
    aten.copy_.default: copy_into_host,
    aten._foreach_copy_.default: copies_into_host,
}
