"""Where a figure is from: the GPU, the driver, the versions, the commit."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memviz.runner.predict.cards import Card

ROOT = Path(__file__).resolve().parents[2]
_LIBRARIES = ("numpy", "diffusers", "transformers")
_SOURCES = ("memviz", "optimizations", "tests/gpu")
_QUERY = ["nvidia-smi", "--query-gpu=driver_version,memory.total,memory.used", "--format=csv,noheader"]


def known_outside() -> dict[str, str]:
    """What a process that started no CUDA can say; asked once for all cases."""
    return {"commit": _commit(), "source": _source(), "nvidia_smi": _said(_QUERY)}


def facts() -> dict[str, Any]:
    """Of this process; the GPU's are there only where there is one."""
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        **{name: text for name in _LIBRARIES if (text := _version(name))},
    }
    if not torch.cuda.is_available():
        return found
    card = torch.cuda.get_device_properties(0)
    return {
        **found,
        "device": card.name,
        "memory_bytes": card.total_memory,
        "capability": [card.major, card.minor],
        "multiprocessors": card.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    }


def card_of(machine: Mapping[str, Any]) -> Card:
    """The card that a result was measured on, as the predictor wants it: by what CUDA says of it, not by its name."""
    from memviz.runner.predict.cards import Card

    major, minor = machine["capability"]
    gib = machine["memory_bytes"] / (1 << 30)
    return Card(machine["device"], gib, (major, minor), machine["multiprocessors"])


def release_of(machine: Mapping[str, Any]) -> str:
    """As `--torch` takes it: '2.11' of '2.11.0+cu130'."""
    return ".".join(str(machine["torch"]).split(".")[:2])


def has_gpu() -> bool:
    """Asked of a process of its own: a context of the one that waits would take memory of the card all the while."""
    asks = [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"]
    return _said(asks, seconds=120) == "True"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    commit = _said(["git", "rev-parse", "HEAD"])
    changed = commit and _said(["git", "status", "--porcelain", "--untracked-files=no"])
    return f"{commit} and changes" if changed else commit or "not a checkout"


def _source() -> str:
    """Of the code itself, which tells versions apart where there is no git."""
    digest = hashlib.sha256()
    for path in sorted(each for folder in _SOURCES for each in (ROOT / folder).rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _said(command: list[str], *, seconds: float = 20) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
