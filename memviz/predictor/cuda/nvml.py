"""NVML and `nvidia-smi` of the pretended cards: their name, their memory, and the one process on them.

Programs ask them for a heading of their log, or watch the memory that the whole card has in use. Sensors (utilization,
temperature, power, clocks) read 0; what else is not here is refused, as by a card that does not support it.
`nvidia-smi` runs this file by its path, so it imports only Python's own library.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memviz.predictor.compat import Patches
    from memviz.predictor.cuda.machine import FakeMachine
    from memviz.predictor.hooks import ChildProcesses


class NVMLError(Exception):
    """Error of the pretended library, with NVML's number."""

    def __init__(self, value: int = 999) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return "Not Supported" if self.value == _NOT_SUPPORTED else "Unknown Error"


class NVMLError_NotSupported(NVMLError):
    """Named as in nvidia-ml-py, as programs catch it."""

    def __init__(self, *_: Any) -> None:
        super().__init__(_NOT_SUPPORTED)


class NVMLError_DriverNotLoaded(NVMLError):
    """Never raised; programs import it to catch it."""


_NOT_SUPPORTED = 3
_SENSORS = tuple(
    f"nvmlDeviceGet{name}"
    for name in ("Temperature", "PowerUsage", "EnforcedPowerLimit", "TotalEnergyConsumption", "FanSpeed")
    + ("ClockInfo", "MaxClockInfo", "PowerManagementLimit")
)


class _NVML(ModuleType):
    """Module `pynvml`: what it lacks raises NVMLError_NotSupported when it is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):

            def unsupported(*_: Any, **__: Any) -> Any:
                raise NVMLError_NotSupported

            return unsupported
        if name.startswith("NVMLError_"):
            return NVMLError_NotSupported
        if name.startswith("NVML_"):
            return 0
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def follow_management(
    patches: Patches, machine: FakeMachine, memory: Callable[[int], tuple[int, int]], children: ChildProcesses | None
) -> None:
    """Put NVML in place, and `nvidia-smi` for the processes that a program starts.

    `memory` returns the free and the total bytes of a card.
    """
    import torch

    module = _nvml_module(machine, memory)
    for name in ("pynvml", "pynvml.nvml"):
        patches.restore(sys.modules, name)
        sys.modules[name] = module
    patches.put_all(torch.cuda, {"_HAS_PYNVML": True, "pynvml": module})
    if children is None or os.name != "posix":
        return
    folder = Path(tempfile.mkdtemp(prefix="memviz-nvidia-smi-"))
    patches.callback(shutil.rmtree, folder, ignore_errors=True)
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(__file__)} "$0" "$@"\n')
    program.chmod(0o755)
    patches.restore(os.environ, "PATH")
    os.environ["PATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PATH"))))

    def write_state() -> None:
        (_, total), properties, count = memory(0), machine.properties, machine.named.count
        state = {
            "cards": count,
            "name": properties.name,
            "uuid": [f"GPU-{machine.get_properties(card).uuid}" for card in range(count)],
            "total": total,
            "used": [total - memory(machine.named.own_number(card))[0] for card in range(count)],
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": machine.version,
            "pid": os.getpid(),
        }
        (folder / "state.json").write_text(json.dumps(state))

    children.before_start = write_state


def _nvml_module(machine: FakeMachine, memory: Callable[[int], tuple[int, int]]) -> ModuleType:
    """Return the module `pynvml` of this machine; its handles are the numbers of cards."""

    def info(handle: int, *_: Any) -> Any:
        free, total = memory(machine.named.own_number(handle))
        return SimpleNamespace(total=total, free=free, used=total - free, reserved=0)

    def processes(handle: int) -> list[Any]:
        free, total = memory(machine.named.own_number(handle))
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=total - free)] if total > free else []

    def handle_at(index: int) -> int:
        machine.named.exists(index)
        return index

    def cards() -> range:
        return range(machine.named.count)

    def uuid_of(handle: int) -> str:
        return f"GPU-{machine.get_properties(handle).uuid}"

    functions: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"), lambda *_: None),
        "nvmlDeviceGetCount": lambda: machine.named.count,
        "nvmlDeviceGetHandleByIndex": handle_at,
        "nvmlDeviceGetHandleByUUID": lambda uuid: next((at for at in cards() if uuid_of(at) == str(uuid)), 0),
        "nvmlDeviceGetHandleByPciBusId": lambda bus: 0,
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetName": lambda handle: machine.properties.name,
        "nvmlDeviceGetUUID": uuid_of,
        "nvmlDeviceGetMemoryInfo": info,
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: [],
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=0, memory=0),
        **dict.fromkeys(_SENSORS, lambda *_: 0),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (machine.properties.major, machine.properties.minor),
        "nvmlSystemGetDriverVersion": lambda: DRIVER,
        "nvmlSystemGetCudaDriverVersion": lambda: _version_number(machine.version),
        "nvmlSystemGetCudaDriverVersion_v2": lambda: _version_number(machine.version),
        "nvmlSystemGetProcessName": lambda pid: "python",
    }
    module = _NVML("pynvml")
    errors = {kind.__name__: kind for kind in (NVMLError, NVMLError_NotSupported, NVMLError_DriverNotLoaded)}
    vars(module).update(functions, **errors, __path__=[], nvml=module)
    return module


def _version_number(version: str) -> int:
    major, minor = map(int, version.split("."))
    return 1000 * major + 10 * minor


DRIVER = "580.00"
"""A driver that runs every CUDA that torch has wheels for."""
_MIB = 1 << 20
_SENSOR_UNITS = {"utilization": "%", "fan": "%", "temperature": "", "power": "W", "clocks": "MHz"}
_IN_MIB = ("memory.total", "memory.used", "memory.free", "used_memory", "used_gpu_memory")


def _query_rows(state: dict[str, Any], fields: list[str], options: list[str]) -> Iterator[list[str]]:
    """Yield the rows of `--query-...=FIELDS --format=csv,...`."""
    with_units = "nounits" not in options
    if "noheader" not in options:
        yield [f"{name} [{unit}]" if (unit := _unit(name)) and with_units else name for name in fields]
    for index in range(state["cards"]):
        used, total = state["used"][index] // _MIB, state["total"] // _MIB
        card = {
            **dict.fromkeys(("name", "gpu_name"), state["name"]),
            **dict.fromkeys(("uuid", "gpu_uuid"), state["uuid"][index]),
            "index": index,
            "count": state["cards"],
            "driver_version": DRIVER,
            "compute_cap": state["capability"],
            "memory.total": total,
            "memory.used": used,
            "memory.free": total - used,
            "pid": state["pid"],
            "process_name": "python",
            **dict.fromkeys(("used_memory", "used_gpu_memory"), used),
        }
        yield [f"{card.get(name, _unread(name))}{f' {_unit(name)}' if with_units else ''}".strip() for name in fields]


def _unit(name: str) -> str:
    return "MiB" if name in _IN_MIB else _SENSOR_UNITS.get(name.partition(".")[0], "")


def _unread(name: str) -> str:
    return "0" if name.partition(".")[0] in _SENSOR_UNITS else "[N/A]"


def _table_lines(state: dict[str, Any]) -> Iterator[str]:
    line = f"+{'-' * 77}+"
    yield line
    heading = f"NVIDIA-SMI {DRIVER}    Driver Version: {DRIVER}    CUDA Version: {state['cuda']}"
    yield f"| {heading:<75} |"
    yield line
    for index in range(state["cards"]):
        memory = f"{state['used'][index] // _MIB}MiB / {state['total'] // _MIB}MiB"
        yield f"| {index:>3}  {state['name']:<40} {memory:>29} |"
    yield line
    yield f"| {'Predicted by memviz: sensors read 0.':<75} |"
    yield line


def main(state: dict[str, Any], arguments: list[str], write: Callable[[str], Any]) -> None:
    options = dict(argument.lstrip("-").partition("=")[::2] for argument in arguments)
    queries = [name for name in options if name.startswith("query-")]
    if queries:
        fields = [field.strip() for field in options[queries[0]].split(",")]
        for row in _query_rows(state, fields, options.get("format", "").split(",")):
            write(", ".join(row) + "\n")
    elif "L" in options or "list-gpus" in options:
        for index in range(state["cards"]):
            write(f"GPU {index}: {state['name']} (UUID: {state['uuid'][index]})\n")
    else:
        write("\n".join(_table_lines(state)) + "\n")


if __name__ == "__main__":
    folder = Path(sys.argv[1]).parent
    main(json.loads((folder / "state.json").read_text()), sys.argv[2:], sys.stdout.write)
