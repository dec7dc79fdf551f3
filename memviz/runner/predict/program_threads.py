"""The program's threads and child processes: torch keeps its modes for one thread alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from multiprocessing.reduction import ForkingPickler
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.dispatch_mode import AllocationMode
from memviz.runner.predict.named_devices import on_card
from memviz.runner.predict.out_of_memory import OutOfMemoryError, without_our_frames
from memviz.runner.predict.prediction_errors import data_needed
from memviz.runner.predict.torch_patches import Patches

Mode = Callable[[], AbstractContextManager[Any]]


class SharedAllocationMode(AllocationMode):  # type: ignore[no-untyped-call]
    """One operator at a time, and nothing left of one that found no memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            with self.recorder.ledger.lock:
                return super().__torch_dispatch__(func, types, args, kwargs)
        except OutOfMemoryError as error:
            args = kwargs = None
            raise without_our_frames(error) from None


def follow_threads(patches: Patches, modes: tuple[Mode, ...]) -> None:
    """Each thread that begins from now on sees the same device."""
    bootstrap = vars(threading.Thread)["_bootstrap_inner"]

    def begun(self: threading.Thread) -> None:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            bootstrap(self)

    patches.put(threading.Thread, "_bootstrap_inner", begun)


def follow_workers(patches: Patches, recorder: AllocationRecorder) -> None:
    """Worker processes that load data: they compute as their parent would, and send what has no values as such."""
    from torch.multiprocessing import reductions
    from torch.utils.data._utils import worker

    run: Any = worker._worker_loop

    @wraps(run)
    def run_apart(*args: Any, **kwargs: Any) -> None:
        # Another thread may have held it when this process was made.
        recorder.ledger.lock = RLock()
        recorder.ledger.closed = True
        run(*args, **kwargs)

    patches.put(worker, "_worker_loop", run_apart)
    whole: Any = reductions.reduce_tensor

    def reduced(tensor: Tensor) -> Any:
        if on_card(tensor):
            raise data_needed("sending a tensor of the card to another process")
        if not recorder.host.is_unknown(tensor):
            return whole(tensor)
        return _unknown_again, (tuple(tensor.shape), tensor.stride(), tensor.dtype)

    _rebuilds.append(recorder)
    patches.call_back(_rebuilds.clear)
    for kind in (Tensor, Parameter):
        ForkingPickler.register(kind, reduced)
        patches.call_back(lambda kind=kind: ForkingPickler.register(kind, whole))  # type: ignore[misc]


_rebuilds: list[AllocationRecorder] = []
"""That of the device in use; who receives a tensor is called by pickle."""


def _unknown_again(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return _rebuilds[0].host.blank_like(torch.empty_strided(shape, stride, dtype=dtype, device="meta"))
