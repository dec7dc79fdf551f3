"""The pretended functions of `torch._C`, as one table.

`torch.cuda` and `torch.accelerator` are Python over some hundred functions of C++ that a build for the host lacks.
They are supplied here, so every release's own Python runs above them, with its own warnings and deprecated names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from memviz.predictor.assumptions import not_predicted, refusing
from memviz.predictor.compat import Patches
from memviz.predictor.cuda.machine import FakeMachine
from memviz.predictor.cuda.memory import MemoryFunctions, MemoryHistory
from memviz.predictor.cuda.streams import FakeStream, GraphPools

_WITHOUT_EFFECT = (
    *("_cuda_ipc_collect", "_cuda_sleep", "_cuda_lock_mutex", "_cuda_unlock_mutex", "_cuda_releasePool"),
    *("_cuda_set_cudnn_benchmark_limit", "_cuda_cudaCachingAllocator_enable"),
    *("_cuda_resetPeakHostMemoryStats", "_cuda_resetAccumulatedHostMemoryStats"),
    *("_host_emptyCache", "_accelerator_emptyHostCache"),
)
_OWN_ALLOCATOR = ("a custom allocator (CUDAPluggableAllocator)", "its rules are unknown")
_UNSUPPORTED = {
    "_cuda_customAllocator": _OWN_ALLOCATOR,
    "_cuda_changeCurrentAllocator": _OWN_ALLOCATOR,
    "_cuda_getAllocator": _OWN_ALLOCATOR,
    "_cuda_jiterator_compile_and_launch_kernel": (
        "torch.cuda.jiterator",
        "it compiles C++ for the card, which cannot run here",
    ),
}
Checked = Callable[[Callable[[int], Any]], Callable[..., Any]]
_TUNING = "while it tunes kernels it copies their operands, as often as its timing requires"


def pretended_functions(
    machine: FakeMachine, memory: MemoryFunctions, history: MemoryHistory, pools: GraphPools, stream: type[FakeStream]
) -> dict[str, Any]:
    """Return the functions by name; `stream` is the class of `torch.Stream` on the card."""

    def checked(answer: Callable[[int], Any]) -> Callable[..., Any]:
        """For functions that are given the number of a device."""
        return lambda device=None: answer(machine.named.card(device))

    table = {
        **_machine_table(machine),
        **_memory_table(memory, history, checked),
        **_stream_table(pools, stream, checked),
    }
    return {
        **dict.fromkeys(_WITHOUT_EFFECT, lambda *args: None),
        **{name: refusing(*reason) for name, reason in _UNSUPPORTED.items()},
        **{name: answer for names, answer in table.items() for name in names.split()},
    }


def _machine_table(machine: FakeMachine) -> dict[str, Any]:
    def enable_tuning(is_on: bool) -> None:
        if is_on:
            raise not_predicted("torch.cuda.tunable", _TUNING)

    return {
        "_has_cuda _has_cudnn": True,
        "_cuda_isInBadFork": machine.is_in_fork,
        "_cuda_getDeviceCount _accelerator_deviceCount _accelerator_hooks_device_count": machine.count,
        "_cuda_getDevice _accelerator_getDeviceIndex _accelerator_hooks_get_current_device": machine.current,
        "_cuda_setDevice _accelerator_setDeviceIndex _accelerator_hooks_set_current_device": machine.named.choose,
        "_cuda_exchangeDevice _accelerator_exchangeDevice _accelerator_hooks_exchange_device": machine.exchange,
        "_cuda_maybeExchangeDevice _accelerator_maybeExchangeDevice": machine.exchange,
        "_accelerator_hooks_maybe_exchange_device": machine.exchange,
        "_get_accelerator _accelerator_getAccelerator": lambda *check_available: torch.device("cuda"),
        "_accelerator_getDeviceCapability": machine.capability,
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer and machine.has_peers,
        "_cuda_hasPrimaryContext": lambda device: True,
        "_cuda_getArchFlags": lambda: machine.architectures,
        "_cuda_getCompiledVersion": lambda: int(machine.version.replace(".", "0")) * 10,
        "_cuda_get_sync_debug_mode": lambda: machine.sync_debug_mode,
        "_cuda_set_sync_debug_mode": partial(setattr, machine, "sync_debug_mode"),
        "_cuda_getCurrentBlasHandle _cuda_getCurrentSolverHandle": lambda: 0x1,
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
        "_cuda_tunableop_enable": enable_tuning,
        "_cuda_tunableop_is_enabled": lambda: False,
    }


def _memory_table(memory: MemoryFunctions, history: MemoryHistory, checked: Checked) -> dict[str, Any]:
    device, workspaces = memory.device, memory.workspaces
    cards = device.recorder.ledger.cards
    return {
        "_cuda_memoryStats _accelerator_getDeviceStats": checked(memory.stats),
        "_cuda_hostMemoryStats": memory.host_stats,
        "_cuda_resetPeakMemoryStats _accelerator_resetPeakStats": checked(device.reset_peak),
        "_cuda_resetAccumulatedMemoryStats _accelerator_resetAccumulatedStats": checked(
            lambda card: cards[card].allocator.statistics.reset_accumulated()
        ),
        "_cuda_emptyCache _accelerator_emptyCache": device.empty_cache,
        "_cuda_setMemoryFraction": memory.set_fraction,
        "_cuda_getMemoryFraction": checked(lambda card: cards[card].allocator.settings.per_process_memory_fraction),
        "_cuda_cudaCachingAllocator_raw_alloc": memory.raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": memory.raw_delete,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_set_allocator_settings": device.set_allocator_settings,
        "_accelerator_setAllocatorSettings": device.set_allocator_settings,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_setMemoryMetadata": partial(setattr, memory, "metadata"),
        "_cuda_getMemoryMetadata": lambda: memory.metadata,
        "_cuda_attach_out_of_memory_observer": memory.report.observers.append,
        "_accelerator_getMemoryInfo": checked(memory.get_info),
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_cuda_getCublasWorkspaceSize": lambda: workspaces.sizes.cublas,
        "_cuda_setCublasWorkspaceSize": lambda size: workspaces.set_size("cublas", size),
        "_cuda_resetCublasWorkspaceSize": lambda: workspaces.reset_size("cublas"),
        "_cuda_getCublasLtWorkspaceSize": lambda: workspaces.sizes.reported_lt,
        "_cuda_setCublasLtWorkspaceSize": lambda size: workspaces.set_size("lt_told", size),
        "_cuda_resetCublasLtWorkspaceSize": lambda: workspaces.reset_size("lt_told"),
        "_cuda_clearCublasWorkspaces": workspaces.clear,
        # The recorded history
        "_cuda_record_memory_history": history.record,
        "_cuda_record_memory_history_legacy": history.record_legacy,
        "_cuda_memorySnapshot": history.snapshot,
        "_cuda_isHistoryEnabled": lambda: history.is_on,
    }


def _stream_table(pools: GraphPools, stream: type[FakeStream], checked: Checked) -> dict[str, Any]:
    order = pools.order
    return {
        "_cuda_getCurrentStream": checked(lambda card: stream.of(order.current_on(card)).key),
        "_cuda_getDefaultStream": checked(lambda card: stream.of(order.defaults[card]).key),
        "_cuda_getCurrentRawStream": checked(lambda card: order.current_on(card).handle),
        "_cuda_getStreamFromExternal": lambda pointer, device: stream.of(order.external(pointer, device)).key,
        "_cuda_setStream": lambda stream_id, device_index, device_type: order.set_current(
            order.numbered(stream_id, device_index)
        ),
        "_cuda_synchronize": checked(order.host_waits_for_all),
        "_cuda_isCurrentStreamCapturing": lambda: order.current.capture is not None,
        "_accelerator_getStream": checked(lambda card: stream.of(order.current_on(card))),
        "_accelerator_setStream": lambda stream: order.set_current(stream.lane),
        "_accelerator_synchronizeDevice": checked(order.host_waits_for_all),
        # Pools of memory
        "_graph_pool_handle": lambda: pools.new(by_user=True),
        "_cuda_beginAllocateToPool _cuda_beginAllocateCurrentThreadToPool": pools.enter,
        "_cuda_beginAllocateCurrentStreamToPool": pools.enter,
        "_cuda_endAllocateToPool _cuda_endAllocateCurrentStreamToPool": pools.leave,
    }


def follow_functions(patches: Patches, functions: dict[str, Any]) -> None:
    """Supply the functions in `torch._C`, and where torch's own Python has imported them by name."""
    patches.put_all(torch._C, functions)
    for owner in (torch.cuda.graphs, torch.cuda.memory):
        patches.put_all(owner, {name: functions[name] for name in functions.keys() & vars(owner).keys()})
