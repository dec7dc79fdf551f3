"""The caching allocator's constants, and how it rounds a request to the size of a block.

The numbers are the same in every release from 2.0 on. They live under `trace`, because both the analysis
of a recorded history and a simulated allocator need them, and neither may import the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from memviz.trace.model import Ints8

MiB = 1 << 20

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""Size of a cuBLAS workspace on NVIDIA GPUs before Hopper (:4096:2:16:8), and of hardly any other request."""
HOPPER_WORKSPACE_BYTES = 33_554_432
"""The same on Hopper (:4096:8), and since torch 2.12 on newer GPUs. Weights may have this size, too."""
MIN_BLOCK = 512
"""Rounding unit and smallest block."""
SMALL_SIZE = 1 * MiB
"""Rounded sizes up to it are served by the small pool. The large pool never leaves a remainder this small."""
SMALL_SEGMENT = 2 * MiB
"""One cudaMalloc for the small pool, and its page where segments are expandable."""
LARGE_SEGMENT = 20 * MiB
"""One cudaMalloc for sizes below MIN_LARGE_ALLOC, and the large pool's page where segments are expandable."""
MIN_LARGE_ALLOC = 10 * MiB
"""From here on a segment is made to measure."""
ROUND_LARGE = 2 * MiB
"""Segments made to measure are rounded up to it."""
LARGEST_REQUEST = 1 << 60
"""From here on a request fails at once ("more than 1EB"), so there is no block to round it to."""

SLOTS = 16
Divisions = tuple[int, ...]
"""`roundup_power2_divisions`: SLOTS numbers; number k is for sizes in [2**k, 2**(k+1)) MiB; the first is
also for everything smaller and the last for everything larger. 0 and 1 mean the plain rule."""
NO_DIVISIONS: Divisions = (0,) * SLOTS

_LARGE_SEGMENT_MB = re.compile(r"\blarge_segment_size_mb\s*:\s*([0-9]{1,6})\b")


def round_sizes(requested: Ints8, divisions: Divisions = NO_DIVISIONS) -> Ints8:
    """Block sizes before any decision not to split. Zero asks for no block in PyTorch; here it gives MIN_BLOCK."""
    sizes = np.asarray(requested, dtype=np.int64)
    refused = sizes >= LARGEST_REQUEST
    served = np.where(refused, 0, sizes)
    rounded = np.maximum(_up(served, np.int64(MIN_BLOCK)), MIN_BLOCK)
    if max(divisions) > 1:
        power = _floor_power(served)
        slot = np.clip(power - 20, 0, SLOTS - 1)
        parts = np.array(divisions, dtype=np.int64)[slot]
        stepped = (parts > 1) & (served > MIN_BLOCK * parts)
        step = np.where(stepped, (np.int64(1) << power) // np.maximum(parts, 1), 1)
        rounded = np.where(stepped, _up(served, step), rounded)
    return np.where(refused, sizes, rounded)


def _up(sizes: Ints8, step: Any) -> Ints8:
    return np.asarray((sizes + step - 1) // step * step, dtype=np.int64)


def _floor_power(sizes: Ints8) -> Ints8:
    """floor(log2(size)), exact also where a float rounds a size up to the next power of two."""
    power = np.frexp(np.maximum(sizes, 1).astype(np.float64))[1].astype(np.int64) - 1
    return power - ((np.int64(1) << power) > np.maximum(sizes, 1))


def divisions_of(settings: Mapping[str, Any]) -> Divisions:
    """From `allocator_settings`, where they are {"1": n, "2": n, ..., "32768": n} with the slot's MiB as key."""
    table = settings.get("roundup_power2_divisions")
    if not isinstance(table, Mapping):
        return NO_DIVISIONS
    return tuple(_division(table.get(str(1 << slot))) for slot in range(SLOTS))


def _division(value: Any) -> int:
    """PyTorch takes only powers of two; anything else in a file is not a setting it ran with."""
    sound = type(value) is int and 0 < value <= LARGEST_REQUEST and value & (value - 1) == 0
    return value if sound else 0


def max_split_size_of(settings: Mapping[str, Any]) -> int | None:
    """None is unlimited, which files write as -1 or as the largest number of 64 bits."""
    value = settings.get("max_split_size")
    return value if type(value) is int and 0 < value < LARGEST_REQUEST else None


def large_segment_of(settings: Mapping[str, Any]) -> int:
    """A setting since 2.11, recorded only inside the raw text of the settings."""
    raw = settings.get("PYTORCH_CUDA_ALLOC_CONF")
    match = _LARGE_SEGMENT_MB.search(raw) if type(raw) is str else None
    return int(match[1]) * MiB if match and int(match[1]) else LARGE_SEGMENT
