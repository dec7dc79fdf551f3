"""Device interface of a step, shared by the predictor and the recorder of a real device."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from memviz.trace.model import Trace


class TakesInputs(Protocol):
    """Part of a workload that a device calls for inputs."""

    def inputs(self, device: torch.device) -> dict[str, Any]: ...


class RunDevice(Protocol):
    """Bytes are those of PyTorch's allocator on this device; peaks count from the last `reset_peak`."""

    @property
    def name(self) -> str: ...

    is_predicted: bool
    """True for a predicted device."""

    @property
    def torch_device(self) -> torch.device:
        """Device on which tensors are created."""

    def place(self, model: nn.Module, on_host: Collection[nn.Parameter] = ()) -> nn.Module:
        """`model.to(device)`, tensor by tensor in torch's own order; tied weights stay tied.

        Weights of `on_host` stay in host memory.
        """

    def inputs(self, workload: TakesInputs) -> dict[str, Any]:
        """Made there, and known as inputs."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """'forward', 'backward', 'optimizer step', 'warm-up' ...; they nest."""

    def empty_cache(self) -> None: ...

    def reset_peak(self) -> None: ...

    @property
    def allocated_bytes(self) -> int: ...

    @property
    def reserved_bytes(self) -> int: ...

    @property
    def peak_allocated_bytes(self) -> int: ...

    @property
    def peak_reserved_bytes(self) -> int: ...

    def finish(self) -> Trace:
        """Return the trace until now, with stacks, phases, modules and categories."""
