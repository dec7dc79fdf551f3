"""The program's threads and child processes: torch keeps its modes for one thread alone."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.cuda_memory import OutOfMemoryError, without_our_frames
from memviz.runner.predict.dispatch_mode import AllocationMode
from memviz.runner.predict.named_devices import on_card
from memviz.runner.predict.prediction_errors import data_needed
from memviz.runner.predict.torch_patches import Patches

Mode = Callable[[], AbstractContextManager[Any]]
_RUNS_PYTHON = re.compile(r"(python|pypy)[\d.]*(\.exe)?|torchrun|accelerate|deepspeed|.*\.py")
_LONGEST_COMMAND = 100
_NEVER_ON_A_CARD = ("torch.utils.data", "multiprocessing.managers")
"""Modules whose processes load or hold data."""


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


class ChildProcesses:
    """Processes that the program starts: the pretended card is this process's alone.

    A fork has a copy of it, and tells by a shared byte that it allocated there. Another Python finds no card at all,
    and nothing is known of it but its command.
    """

    def __init__(self, recorder: AllocationRecorder) -> None:
        self._used = mmap.mmap(-1, 1)
        self._recorder = recorder
        self.commands: dict[str, int] = {}
        """Python commands that the program started, and how often."""

    @property
    def used_the_card(self) -> bool:
        return self._used[0] != 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        patches = Patches()
        try:
            self._follow(patches)
            yield
        finally:
            patches.undo()

    def _follow(self, patches: Patches) -> None:
        begin: Any = subprocess.Popen.__init__
        start: Any = BaseProcess.start
        shell: Any = os.system

        def begun(self_: Any, args: Any, *more: Any, **named: Any) -> None:
            self._command(args)
            begin(self_, args, *more, **named)

        def started(process: BaseProcess) -> None:
            self._process(process)
            start(process)

        def system(command: Any) -> int:
            self._command(command)
            return int(shell(command))

        patches.put(subprocess.Popen, "__init__", wraps(begin)(begun))
        patches.put(BaseProcess, "start", wraps(start)(started))
        patches.put(os, "system", wraps(shell)(system))
        _followed.append(self)
        patches.call_back(lambda: _followed.remove(self))

    def forked(self) -> None:
        """In the child."""
        ledger = self._recorder.ledger
        first_used = ledger.first_used

        def used() -> None:
            self._used[0] = 1
            if first_used is not None:
                first_used()

        ledger.first_used = used

    def _command(self, args: Any) -> None:
        words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        text = " ".join(map(os.fsdecode, words))
        try:
            parts = shlex.split(text)
        except ValueError:
            parts = text.split()
        if any(_RUNS_PYTHON.fullmatch(os.path.basename(part)) for part in parts):
            self._add(text)

    def _process(self, process: Any) -> None:
        method = process._start_method or multiprocessing.get_start_method()
        module = str(getattr(process._target, "__module__", ""))
        if method != "fork" and not module.startswith(_NEVER_ON_A_CARD):
            self._add(f"{method}: {getattr(process._target, '__qualname__', type(process).__qualname__)}")

    def _add(self, command: str) -> None:
        shown = " ".join(command.split())
        shown = shown if len(shown) <= _LONGEST_COMMAND else f"{shown[:_LONGEST_COMMAND]}..."
        self.commands[shown] = self.commands.get(shown, 0) + 1


_followed: list[ChildProcesses] = []
"""Those of the device in use; what Python does in a fork cannot be taken back."""


def _forked() -> None:
    for children in _followed:
        children.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


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
            raise data_needed("sending a tensor of the card to another process", takes_value=False)
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
