"""What torch's Python asks of its C++ about the machine: a build of torch for CUDA, on a machine with one card.

`torch.cuda` is written in Python over some hundred functions of C++, which a build for the host does not have. They
are given here, so that every release's own Python runs above them, with its own warnings and old names.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch

from memviz.runner.predict.card_properties import properties_of
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.named_devices import NamedDevices
from memviz.runner.predict.torch_patches import Patches

_VERSIONS = {6: "12.4", 7: "12.6", 8: "12.8", 9: "12.8", 10: "12.8"}
"""Of CUDA, in the wheels of torch 2.x that pip gives."""
_LATER_VERSION = "13.0"
_CUDNN = {"12.4": 90100, "12.6": 90501, "12.8": 91002, "13.0": 91501}
_ARCHITECTURES = {"12": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", "13": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"}
_MOST_PLANS = 4096
"""Of Fourier transforms, kept by cuFFT."""
_NO_CARD = (
    "No CUDA GPUs are available: CUDA_VISIBLE_DEVICES hides the one that is pretended. Leave it out, or set it to 0."
)


class FakeMachine:
    """With one card, unless the program hides it from itself; of a group, with one for each process."""

    def __init__(self, card: KnownCard, named: NamedDevices, mem_get_info: Callable[[], tuple[int, int]]) -> None:
        self.card = card
        self._named = named
        self._mem_get_info = mem_get_info
        self._process = os.getpid()
        self._sync_debug_mode = 0
        self._properties = properties_of(card)
        self.version = _VERSIONS.get(int(str(torch.__version__).split(".")[1]), _LATER_VERSION)

    def count(self) -> int:
        """Whichever card a program chooses of its own machine is ours."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = visible is not None and (not visible.strip() or visible.strip().startswith("-"))
        return 0 if hidden else self._named.count

    def begin(self) -> None:
        if not self.count():
            raise RuntimeError(_NO_CARD)

    def is_in_fork(self) -> bool:
        """A child process cannot use what its parent began with."""
        return os.getpid() != self._process

    def exchange(self, device: int) -> int:
        if device >= 0:
            self._named.check(device)
        return self.current()

    def current(self) -> int:
        index: int = self._named.own.index
        return index

    def describe(self, device: int) -> Any:
        self._named.exists(device)
        return self._properties

    def capability(self, device: int) -> dict[str, Any]:
        self._named.exists(device)
        kinds = vars(torch).values()
        return {"supported_dtypes": {kind for kind in kinds if isinstance(kind, torch.dtype)}}

    def set_sync_debug_mode(self, mode: int) -> None:
        self._sync_debug_mode = mode

    def functions(self) -> dict[str, Any]:
        """Of `torch._C`."""
        check = self._named.check
        architectures = _ARCHITECTURES[self.version.partition(".")[0]]
        return {
            "_has_cuda": True,
            "_has_cudnn": True,
            "_cuda_isInBadFork": self.is_in_fork,
            "_cuda_getDeviceCount": self.count,
            "_cuda_getDevice": self.current,
            "_cuda_setDevice": check,
            "_cuda_exchangeDevice": self.exchange,
            "_cuda_maybeExchangeDevice": self.exchange,
            "_cuda_canDeviceAccessPeer": lambda device, peer: False,
            "_cuda_hasPrimaryContext": lambda device: True,
            "_cuda_getArchFlags": lambda: architectures,
            "_cuda_getCompiledVersion": lambda: int(self.version.replace(".", "0")) * 10,
            "_cuda_get_sync_debug_mode": lambda: self._sync_debug_mode,
            "_cuda_set_sync_debug_mode": self.set_sync_debug_mode,
            "_cuda_getCurrentBlasHandle": lambda: 0x1,
            "_cuda_getCurrentSolverHandle": lambda: 0x1,
            "_cuda_ipc_collect": lambda: None,
            "_cuda_sleep": lambda cycles: None,
            "_cuda_lock_mutex": lambda: None,
            "_cuda_unlock_mutex": lambda: None,
            "_cuda_get_cudnn_benchmark_limit": lambda: 10,
            "_cuda_set_cudnn_benchmark_limit": lambda limit: None,
            "_get_accelerator": lambda *check_available: torch.device("cuda"),
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_accelerator_getDeviceIndex": self.current,
            "_accelerator_setDeviceIndex": check,
            "_accelerator_exchangeDevice": self.exchange,
            "_accelerator_maybeExchangeDevice": self.exchange,
            "_accelerator_getDeviceCapability": self.capability,
            "_accelerator_deviceCount": self.count,
            "_accelerator_hooks_device_count": self.count,
            "_accelerator_hooks_set_current_device": check,
            "_accelerator_hooks_get_current_device": self.current,
            "_accelerator_hooks_exchange_device": self.exchange,
            "_accelerator_hooks_maybe_exchange_device": self.exchange,
        }

    def runtime(self) -> Any:
        """In place of `torch.cuda.cudart()`."""
        done = int
        names = ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister", "cudaStreamCreate")
        return SimpleNamespace(
            cudaError=IntEnum("cudaError", {"success": 0}),
            cudaGetErrorString=lambda code: "no error",
            cudaMemGetInfo=lambda device: self._mem_get_info(),
            **{name: lambda *args: done() for name in (*names, "cudaStreamDestroy", "cudaDeviceSynchronize")},
        )


def follow_machine(patches: Patches, machine: FakeMachine, begin: Callable[[], None]) -> None:
    """`begin` is called when the program first uses CUDA."""

    def first_used() -> None:
        machine.begin()
        begin()

    # We use it; a build for CUDA would complain of what it misses, and a profile with stacks of its being imported.
    importlib.import_module("torch.utils.flop_counter")
    cuda: Any = torch.cuda
    for name, function in {**machine.functions(), "_cuda_init": first_used}.items():
        patches.put(torch._C, name, function)
    for name, value in {
        "_initialized": False,
        "_queued_calls": list(cuda._queued_calls),
        "_cached_device_count": None,
        # It would look at the real machine's cards.
        "_HAS_PYNVML": False,
        "_cudart": machine.runtime(),
        "_is_in_bad_fork": machine.is_in_fork,
        "_exchange_device": machine.exchange,
        "_maybe_exchange_device": machine.exchange,
        "_get_device_properties": machine.describe,
        "_device_count_nvml": lambda: -1,
        "has_magma": True,
    }.items():
        patches.put(cuda, name, value)
    patches.put(torch.version, "cuda", machine.version)
    cudnn: Any = getattr(torch.backends.cudnn, "m", torch.backends.cudnn)
    patches.put(cudnn, "version", lambda: _CUDNN[machine.version])
    # Without one there would be a warning; recurrent layers are predicted step by step.
    patches.put(cudnn, "is_acceptable", lambda tensor: False)
    plans: Any = torch.backends.cuda.cuFFTPlanCache
    patches.put(plans, "size", 0)
    patches.put(plans, "max_size", _MOST_PLANS)
    patches.put(torch, "_cufft_clear_plan_cache", lambda *args: None)
