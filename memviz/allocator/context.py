"""Device memory that CUDA takes outside PyTorch's allocator: its context, loaded kernels and libraries.

No snapshot says how much that is, and it depends on the card, the driver, the release and what a program loads. So it
is an interval, by generation of card: from the least to the most that one process with one GPU was seen to keep. Who
asks whether a run fits sets the most aside, and says that it is close where less would do. The readings are of programs
that computed, so cuBLAS's and cuDNN's handles and kernels are in them (`MATH_LIBRARIES`); NCCL's buffers come on top.
Public readings do not tell drivers apart, but they do tell CUDA before 11.7, which loads all kernels at the start.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from memviz.units import bytes_text

_MiB = 1 << 20

DEFAULT_CARD = "RTX 4090"
OVERHEAD_BYTES = 512 * _MiB
"""Taken from a card of which only the size is known, before PyTorch's allocator gets any: about what half of the
generations below were seen to keep. An assumption."""


@dataclass(frozen=True)
class CudaContext:
    kind: str
    """Kind of card: a generation by NVIDIA, or A100, which differs from the rest of its generation."""
    least_bytes: int
    most_bytes: int
    source: str = "by the figures of PyTorch's own messages about running out"
    is_known: bool = True

    @property
    def interval(self) -> str:
        least, most = (f"{size / (1 << 30):.2f}" for size in (self.least_bytes, self.most_bytes))
        return f"{least} to {most} GiB"

    @property
    def text(self) -> str:
        return f"{self.interval} on {self.kind}, {self.source}"

    def as_json(self) -> dict[str, Any]:
        return {"least_bytes": self.least_bytes, "most_bytes": self.most_bytes, "source": self.text}


_A100_BY_DRIVER = "the most of it by nvidia-smi in two public data sets, the least by PyTorch's own messages"
"""GPUMemNet's (itu-rad/GPUMemNet) is one of the two: 1,417 to 1,481 MiB more than was reserved, in each of 60 runs.
nvidia-smi may count what the driver keeps of an A100 besides, some 600 MiB that are not in the card's total."""
_VOLTA_BY_DRIVER = "the most of it by nvidia-smi in transformers' documentation, the least by PyTorch's own messages"
"""1,343 MiB with one small tensor on a V100."""

TURING = CudaContext("Turing cards", 64 * _MiB, 256 * _MiB)
VOLTA = CudaContext("a V100", 320 * _MiB, 1344 * _MiB, _VOLTA_BY_DRIVER)
A100 = CudaContext("an A100", 384 * _MiB, 1792 * _MiB, _A100_BY_DRIVER)
AMPERE = CudaContext("Ampere cards other than the A100", 192 * _MiB, 448 * _MiB)
ADA = CudaContext("Ada cards", 192 * _MiB, 512 * _MiB)
HOPPER = CudaContext("Hopper cards", 512 * _MiB, 768 * _MiB)
BLACKWELL = CudaContext("Blackwell cards", 448 * _MiB, 768 * _MiB)
KNOWN = (TURING, VOLTA, A100, AMPERE, ADA, HOPPER, BLACKWELL)
"""`python -m tests.benchmarks.contexts` makes these of the public readings, in whole 64 MiB outwards."""
UNKNOWN = CudaContext(
    "any card",
    min(context.least_bytes for context in KNOWN),
    max(context.most_bytes for context in KNOWN),
    "by what was seen on all generations together",
    is_known=False,
)

ALL_KERNELS = CudaContext(
    "any card with all kernels loaded",
    576 * _MiB,
    1536 * _MiB,
    "by nvidia-smi and cudaMemGetInfo in five public reports of CUDA before 11.7 or without lazy loading",
)
"""PyTorch with nothing but a small tensor: 636 MiB (pytorch#86509), 879 on an RTX 2080 Ti and 1,488 on an RTX 3090
(pytorch#49877), 1,005 on a Titan V (pytorch#28394), 1,105 (pytorch#60150)."""
LOADING_FACT = "CUDA_MODULE_LOADING"
_LAZY_SINCE = (11, 7)

MATH_LIBRARIES = 64 * _MiB, 112 * _MiB
"""Handles and kernels of cuBLAS and cuDNN. Measured on an H200 with torch 2.11, CUDA 13.0 and driver 580: 0.07 GiB more
after a first product, 0.02 more after a convolution and an attention (tests/gpu/README.md)."""
LINALG_AND_FFT_BYTES = 92 * _MiB
"""cuSOLVER and cuFFT after a first call of each, on the same H200."""

_NAMES = (
    (TURING, r"\bT4\b|\bRTX 20\d\d|TITAN RTX|Quadro RTX"),
    (VOLTA, r"\bV100\b"),
    (A100, r"\bA100\b"),
    (AMPERE, r"\bRTX 30\d\d|\bRTX A\d|\bA10G?\b|\bA40\b"),
    (ADA, r"\bRTX 40\d\d|\bAda\b|\bL(4|20|40S?)\b"),
    (HOPPER, r"\bG?H(20|100|200)\b"),
    (BLACKWELL, r"\bG?B200\b|\bRTX 50\d\d|\bBlackwell\b"),
)


class Communicator(NamedTuple):
    """An NCCL communicator, as far as its buffers depend on it."""

    ranks: int
    exchanges: bool = False
    """It sent from rank to rank, as in an all-to-all: NCCL connects each pair."""


NCCL_FACT = "nccl communicators"
"""Fact of a trace: '1 of 8 ranks, 2 of 2 ranks that exchange'."""
OUTSIDE_FACT = "outside PyTorch"
"""Fact of a recording: '0: 1073741824 to 1073741824 bytes, 2 readings', from the least to the most of each device."""
_NCCL = re.compile(r"(\d{1,6}) of (\d{1,6}) ranks( that exchange)?")
_MOST_KINDS = 1000
_NCCL_CONNECTION = 12 * _MiB
"""Buffers of one channel to one rank: 512 KiB for LL, 4.69 MiB for LL128, 4 MiB for Simple (`init.cc`, `device.h`),
each side's in whole 2 MiB, so 10 MiB to receive and 2 MiB to send; nccl#1685 lists allocations of these two sizes."""
_NCCL_LEAST_CHANNELS, _NCCL_MOST_CHANNELS = 2, 32
"""2 over PCIe; 24 on A100 and up to 32 on H100 over NVLink."""
_NCCL_NETWORK = 512 * _MiB
"""Shared by all channels to a network: 64 channels of 16 steps of 512 KiB (`net.cc`, nccl#2363)."""
_NCCL_KERNELS = 128 * _MiB
"""Once in a process: the first collective of one process alone took 0.62 GiB on an H200 (tests/gpu/README.md)."""
_NCCL_MULTICAST = 512 * _MiB
"""NVLink multicast of Hopper and later: 32 channels, 2 directions, 8 steps of 128 KiB, 8 GPUs (`nvls.cc`)."""
_GPUS_OF_A_MACHINE = 8
NCCL_SOURCE = (
    "by NCCL 2.30's source for 2 to 32 channels; public readings are 544 to 688 MiB for a group of A100s (nccl#964) "
    "and 3.3 GiB more after an all-to-all of 8 H100s (nccl#1685)"
)


def communicators_text(communicators: Iterable[Communicator]) -> str:
    counts = sorted(Counter(communicators).items())
    return ", ".join(f"{count} of {one.ranks} ranks{' that exchange' * one.exchanges}" for one, count in counts)


def communicators_of(facts: Mapping[str, str]) -> Counter[Communicator]:
    """Read the communicators from a trace's facts, which may come from a file."""
    found: Counter[Communicator] = Counter()
    for kind in islice(_NCCL.finditer(facts.get(NCCL_FACT, "")), _MOST_KINDS):
        found[Communicator(int(kind[2]), bool(kind[3]))] += int(kind[1])
    return found


def nccl_bytes(communicators: Counter[Communicator], card: str) -> tuple[int, int]:
    """Return the least and the most that NCCL's buffers take on one card."""
    least, most = 0, _NCCL_KERNELS * bool(communicators)
    has_multicast = context_on(card) in (HOPPER, BLACKWELL, UNKNOWN)
    for one, count in communicators.items():
        most += count * _NCCL_NETWORK
        if one.ranks < 2:
            continue
        least += count * _NCCL_LEAST_CHANNELS * _NCCL_CONNECTION
        # Of a ring and a tree a rank has two neighbours; an all-to-all reaches its machine, itself included.
        connected = 2 + one.exchanges * min(one.ranks, _GPUS_OF_A_MACHINE)
        most += count * connected * _NCCL_MOST_CHANNELS * _NCCL_CONNECTION
        most += count * _NCCL_MULTICAST * (has_multicast and one.ranks > 2)
    return least, most


_WHAT = "The CUDA context and loaded kernels are outside PyTorch's allocator and in no peak here"
_MORE = "Several processes on one card, NCCL and libraries that allocate on their own use more"


LIBRARIES_FACT = "other GPU libraries"
"""Fact of a trace: 'CuPy 1048576 bytes, JAX'; bytes where the library says how much it reserved."""
_LIBRARIES = {
    "cupy": "CuPy",
    "rmm": "RAPIDS (rmm)",
    "nvidia.dali": "DALI",
    "tensorrt": "TensorRT",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "onnxruntime": "ONNX Runtime",
    "numba.cuda": "Numba",
}
_LIBRARY = re.compile(rf"({'|'.join(map(re.escape, _LIBRARIES.values()))})(?: (\d{{1,15}}) bytes)?")


def libraries_fact(modules: Mapping[str, Any]) -> dict[str, str]:
    """Return the imported libraries that take device memory outside PyTorch as a fact; `modules` is `sys.modules`."""
    texts = []
    for module, name in _LIBRARIES.items():
        if module not in modules:
            continue
        texts.append(name)
        if name == "CuPy":
            with suppress(Exception):
                texts[-1] += f" {int(modules[module].get_default_memory_pool().total_bytes())} bytes"
    return {LIBRARIES_FACT: ", ".join(texts)} if texts else {}


def libraries_of(facts: Mapping[str, str]) -> dict[str, int | None]:
    """Read the libraries and their bytes, None where unknown, from a trace's facts, which may come from a file."""
    found = _LIBRARY.finditer(facts.get(LIBRARIES_FACT, ""))
    return {one[1]: None if one[2] is None else int(one[2]) for one in islice(found, _MOST_KINDS)}


def context_on(card: str, facts: Mapping[str, str] | None = None) -> CudaContext:
    """Return the context of a card by its CUDA name, and by the CUDA release where a trace's facts name it."""
    if facts and _loads_all_kernels(facts):
        return ALL_KERNELS
    words = card.replace("-", " ")
    return next((context for context, pattern in _NAMES if re.search(pattern, words)), UNKNOWN)


def _loads_all_kernels(facts: Mapping[str, str]) -> bool:
    if facts.get(LOADING_FACT, "").upper() == "EAGER":
        return True
    release = re.match(r"(\d{1,3})\.(\d{1,3})", facts.get("cuda", ""))
    return release is not None and (int(release[1]), int(release[2])) < _LAZY_SINCE


def overhead_on(card: str) -> int:
    """To set aside of this card: the most that was seen, so that what is said to fit does fit."""
    return context_on(card).most_bytes


def context_sentence(card: str) -> str:
    """Return one sentence on the context, for predictions."""
    context = context_on(card)
    known = f": {context.text}" if context.is_known else f". Its size on this card is not published; {context.text}"
    aside = bytes_text(context.most_bytes)
    return f"{_WHAT}{known}. {_MORE}. The verdict on fitting sets {aside} aside for them."
