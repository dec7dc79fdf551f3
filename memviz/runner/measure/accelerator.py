"""The GPU part of torch: `torch.cuda`, or `torch.xpu` where that records history, and the state of this machine's GPUs.

Everything that measuring and recording ask of torch's GPU goes through `Accelerator`. Run as a module it prints the
GPUs as JSON in a process of its own, since a driver that was started holds memory of every card until its process ends.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memviz.errors import UsageError
from memviz.units import bytes_text

_WORDS = re.compile(
    r"(?:cu|hip|roc)[a-z]+_(?:status_)?alloc_failed"
    r"|_internal_error_device_allocation_failed"
    r"|_insufficient_resources"
    r"|miopenstatusallocfailed"
    r"|error_out_of_(?:device_|resources)"
    r"|erroroutofmemory"
    r"|failed to (?:cuda|hip)? ?[cm]alloc"
    r"|out of (?:device )?memory"
)
_OF_THE_HOST = ("defaultcpuallocator", "host_allocation_failed", "cannot allocate memory in static tls")


_ASKED_OF_THE_HOST = re.compile(r"DefaultCPUAllocator: .*?(\d+) bytes", re.DOTALL)


def host_is_full(error: BaseException | None) -> str:
    """Return a message if torch ran out of host memory; empty otherwise."""
    match = _ASKED_OF_THE_HOST.search(str(error)) if isinstance(error, RuntimeError) else None
    if match is None:
        return ""
    size = bytes_text(int(match[1]))
    return f"This machine ran out of host memory: {size} were requested. Use smaller knobs."


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error or one of its causes is out of memory: programs may wrap it in their own."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        message = str(cause).lower() if isinstance(cause, RuntimeError) else ""
        is_of_the_host = any(host_text in message for host_text in _OF_THE_HOST)
        if "OutOfMemory" in type(cause).__name__ or _WORDS.search(message) and not is_of_the_host:
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


Observer = Callable[[int, int, int, int], None]
"""Called with device, requested bytes, limit and free bytes, just before OutOfMemoryError is raised."""

_OBSERVERS = {"cuda": "_cuda_attach_out_of_memory_observer", "xpu": "_xpu_attachOutOfMemoryObserver"}
_PATIENCE_SECONDS = 20.0


def _no_driver(*_: str) -> None:
    return None


@dataclass(frozen=True)
class Accelerator:
    kind: str
    """Type of `torch.device`, such as "cuda"."""
    api: Any
    """`torch.cuda`, or a module with the same names."""
    attach_observer: Callable[[Observer], object] | None = None
    """None where torch has no observer of out of memory."""
    versions: tuple[tuple[str, str], ...] = ()
    """For the reader of a trace: ("torch", "2.13.0")."""
    history_is_on: Callable[[], bool] | None = None
    """Returns True if memory history is enabled, by memviz or the program; None if torch cannot tell."""
    clock_us: Callable[[], int] | None = None
    """Counter that serves as the clock of a predicted GPU; None where time is this machine's."""
    ask_driver: Callable[..., str | None] = _no_driver
    """Runs `nvidia-smi` with these arguments, on NVIDIA cards."""

    def wake(self) -> None:
        """Start the driver, which may refuse a card that is listed.

        Raises:
            UsageError: Why this card cannot be used from here, in torch's words.
        """
        with _in_words():
            self.api.init()

    def start(self) -> None:
        """Start the driver and run a kernel: PyTorch may be built without any for this card."""
        self.wake()
        with _in_words():
            self.try_it()

    def try_it(self) -> None:
        """Run one small kernel. After some errors a card fails until the process ends."""
        torch = importlib.import_module("torch")
        torch.ones(1, device=self.kind).add_(1)
        self.api.synchronize()
        self.api.memory.empty_cache()

    def count(self) -> int:
        return int(self.api.device_count())

    def when_used(self, start: Callable[[], None]) -> None:
        """Call `start` now if the driver is up, else when the program starts it, before its first allocation."""
        self.api._lazy_call(start)

    def name_of(self, index: int) -> str:
        """Return the card's name, or its device where it does not answer any more."""
        try:
            return str(self.api.get_device_name(index))
        except RuntimeError:
            return f"{self.kind}:{index}"


def find_accelerator() -> Accelerator:
    """Return the GPU that can be recorded; raise UsageError with the reason if there is none."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        reason = f"Recording needs PyTorch, which cannot be imported here ({error})."
        raise UsageError(f"{reason} Run memviz with the Python of your script.") from None
    for kind in ("cuda", "xpu"):
        api = getattr(torch, kind, None)
        if api is not None and _is_there(torch, api) and records(api):
            observer = getattr(torch._C, _OBSERVERS[kind], None)
            is_on = getattr(torch._C, f"_{kind}_isHistoryEnabled", None)
            asks = _nvidia_smi if kind == "cuda" and _is_built_for_cuda(torch) else _no_driver
            clock = getattr(api.memory, "_pretended_clock_us", None)
            parts = {
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "rocm": getattr(torch.version, "hip", None),
            }
            versions = tuple((name, str(version)) for name, version in parts.items() if version)
            return Accelerator(kind, api, observer, versions, is_on, clock_us=clock, ask_driver=asks)
    why = "PyTorch sees no GPU here (nvidia-smi shows what the driver sees; CUDA_VISIBLE_DEVICES hides some of it)."
    if not _is_built_for_cuda(torch) and getattr(torch.version, "hip", None) is None:
        why = f"This PyTorch ({torch.__version__}) is built without CUDA."
    raise UsageError(f"{why} Recording needs a GPU. `python -m memviz run` predicts a run's memory without one.")


def records(api: Any) -> bool:
    """XPU has a history from torch 2.11 on."""
    memory = getattr(api, "memory", None)
    return hasattr(memory, "_record_memory_history") and hasattr(memory, "_snapshot")


def _is_there(torch: Any, api: Any) -> bool:
    """Ask the driver's monitoring library (NVML) first: `is_available` itself would start the driver."""
    counts = getattr(api, "_device_count_nvml", None)
    if counts is not None and _is_built_for_cuda(torch):
        number = int(counts())
        if number >= 0:
            return number > 0
    return bool(api.is_available())


def _is_built_for_cuda(torch: Any) -> bool:
    return getattr(torch.version, "cuda", None) is not None


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        what = "This PyTorch cannot use the GPU of this machine:"
        remedy = "Driver and PyTorch must match: `nvidia-smi` shows the newest CUDA version of the driver."
        if is_out_of_memory(error):
            what, remedy = "The GPU of this machine has no free memory:", "`nvidia-smi` shows which processes use it."
        raise UsageError(f"{what} {error_sentence(error)} {remedy}") from error


def error_sentence(error: BaseException) -> str:
    """Return the first line of torch's long errors; the class where an error has no text or fails to make it."""
    try:
        text = str(error).strip().partition("\n")[0].rstrip(" .")
    except Exception:
        text = ""
    return f"{text}." if text else f"{type(error).__name__}."


def _nvidia_smi(*arguments: str) -> str | None:
    """Return the output of nvidia-smi; None if it is missing or fails.

    So nothing has to be installed, and nothing of the driver can end this process.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, *arguments, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


_WAITING = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The second is the name with drivers before 535."""
_HELD_BACK = {
    0x04: "its power limit",
    0x08: "a hardware slowdown",
    0x20: "its temperature",
    0x40: "its temperature (hardware)",
    0x80: "a power brake",
}
_MiB = 1 << 20


class Disturbances:
    """Create before the driver starts: all listed processes are then foreign."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._listed = _processes(accelerator)

    def notes(self, index: int = 0) -> Iterator[str]:
        """Yield notes on measured seconds; call right after the measurement."""
        card = uuid_of(self._accelerator, index)
        others = [row[1:] for row in self._listed if row[0] == card and row[1] != str(os.getpid())]
        if others:
            used_bytes = sum(int(memory) for _, memory in others if memory.isdigit()) * _MiB
            count = "Another process was" if len(others) == 1 else f"{len(others)} other processes were"
            size_text = f" with {bytes_text(used_bytes)}" if used_bytes else ""
            pids = ", ".join(pid for pid, _ in others)
            yield f"{count} on this card{size_text} when the run began (pid {pids}): they may have slowed it down."
        now, _, top = (self._ask(card, "clocks.sm,clocks.max.sm") or "").partition(",") if card else ("", "", "")
        if now.strip().isdigit() and top.strip().isdigit():
            clock = f"{int(now):,} of at most {int(top):,} MHz"
            yield f"Clock of the card right after the timing: {clock}.{self._limited_clock(card)}"
        for name in _WAITING:
            if os.environ.get(name, "0") not in ("", "0"):
                yield f"{name} is set: it waits for every kernel, so these seconds are longer than without it."

    def _limited_clock(self, card: str) -> str:
        text = next(filter(None, (self._ask(card, name) for name in _REASONS)), "")
        try:
            bits = int(text.strip(), 16)
        except ValueError:
            return ""
        reasons = [reason for bit, reason in _HELD_BACK.items() if bits & bit]
        return f" It was limited by {' and '.join(reasons)}." if reasons else ""

    def _ask(self, card: str, fields: str) -> str | None:
        return self._accelerator.ask_driver(f"--query-gpu={fields}", "-i", card)


def _processes(accelerator: Accelerator) -> list[list[str]]:
    """Return card, process and MiB of each process that the driver lists, as texts."""
    listed = accelerator.ask_driver("--query-compute-apps=gpu_uuid,pid,used_memory") or ""
    rows = ([cell.strip() for cell in line.split(",")] for line in listed.splitlines())
    return [row for row in rows if len(row) == 3]


def driver_bytes(accelerator: Accelerator, index: int) -> tuple[int, str] | None:
    """Return the memory in use on a card, as the driver counts it, and what that includes.

    In containers the driver does not list this process; then it is the whole card. None on a predicted card.
    """
    if accelerator.clock_us is not None:
        return None
    own = [uuid_of(accelerator, index), str(os.getpid())]
    size = next((row[2] for row in _processes(accelerator) if row[:2] == own), "")
    if size.isdigit():
        return int(size) * _MiB, "of this process"
    asks = getattr(accelerator.api, "mem_get_info", None)
    if asks is None:
        return None
    free, total = asks(index)
    return total - free, "of the whole card, other processes included"


def uuid_of(accelerator: Accelerator, index: int) -> str:
    """Return the driver's UUID, since torch numbers GPUs differently; empty where torch does not know it."""
    try:
        uuid = str(accelerator.api.get_device_properties(index).uuid)
    except (AttributeError, RuntimeError):
        return ""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def visible_gpus() -> dict[str, Any]:
    """Their names and the driver's own words for them, or why there is none."""
    try:
        accelerator = find_accelerator()
        accelerator.start()
    except UsageError as error:
        return {"gpus": [], "why": str(error).split(" Recording needs")[0]}
    return {"gpus": gpus_of(accelerator), "why": ""}


def gpus_of(accelerator: Accelerator) -> list[dict[str, str]]:
    """All that can be chosen by a word of the driver's; the first, where there is no such word."""
    gpus = [
        {"name": accelerator.name_of(index), "uuid": uuid_of(accelerator, index)}
        for index in range(accelerator.count())
    ]
    chosen = [gpu for gpu in gpus if gpu["uuid"]] if accelerator.kind == "cuda" else []
    return chosen or gpus[:1]


if __name__ == "__main__":
    json.dump(visible_gpus(), sys.stdout)
