"""Real cards: how much memory each has for a program, and what of its architecture PyTorch looks at.

Memory is what CUDA reports as the card's total under Linux, in GiB of two decimals, taken from what PyTorch prints in
public logs (`_CudaDeviceProperties(..., total_memory=...)`, "has a total capacity of ..."); drivers differ by some
tens of MiB, and Windows reports what the card is sold with. It is less than that: page tables take a part, and error
correction another on cards without HBM. Multiprocessors and capabilities are the vendors' data sheets.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from memviz.allocator.context import DEFAULT_CARD
from memviz.allocator.replayer import CardMemory
from memviz.errors import UsageError
from memviz.text import nearest
from memviz.units import parse_bytes

_KiB, _MiB, _GiB = 1 << 10, 1 << 20, 1 << 30
_WORKSPACE = (2 * 4096 + 8 * 16) * _KiB
_HOPPER_WORKSPACE = 4096 * 8 * _KiB
_AMD_WORKSPACE = 128 * _MiB
_HOPPER, _NEWER = (9,), (10, 11, 12)
_NEWER_AS_HOPPER_SINCE = (2, 12)
"""PyTorch's pull request 175344, of February 2026: until then 32 MiB were Hopper's alone."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
_MOST_THREADS = 2048
_NEWEST = (99, 0)
_AMD = "AMD "
_ANY = "a card of "
_LEAST_BYTES = 1 << 30
"""A smaller number without a unit is part of a name: no card has so little memory."""
_WITH = " with "
"""Separates a card's name from a stated memory."""
NATIVE_SINCE = {"bf16": (8, 0), "fp8": (8, 9)}
"""Compute capability from which matrix products of a dtype run in hardware, by NVIDIA's programming guide."""
_WITHOUT = {
    "bf16": "PyTorch emulates it, far slower than fp16, and some kernels refuse it",
    "fp8": "weights can be stored in it and cast for each use, but fp8 matrix products do not run",
}
_FAMILIES = ("NVIDIA ", "Tesla ", _AMD, "GeForce ", "Instinct ")


@dataclass(frozen=True)
class KnownCard:
    name: str
    """CUDA's name without the board's form, and with the memory size where several cards share the name."""
    memory_gib: float
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def model(self) -> str:
        """The name without a stated memory."""
        return self.name.partition(_WITH)[0]

    @property
    def is_only_memory(self) -> bool:
        """True for a card stated by its memory alone; all else is that of the default card."""
        return self.name.startswith(_ANY)

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * _GiB)

    @property
    def architecture(self) -> int:
        """90 for Hopper: how CUDA's `sm_90` counts."""
        major, minor = self.capability
        return 10 * major + minor

    @property
    def is_amd(self) -> bool:
        # The rules of CUDA's kernels are applied to ROCm, whose kernels were not read.
        return self.name.startswith(_AMD)

    @property
    def threads_per_multiprocessor(self) -> int:
        return _THREADS.get(self.capability, _MOST_THREADS)

    @property
    def cublas_workspace_bytes(self) -> int:
        """Workspace of a cuBLAS handle in the newest torch release."""
        return self.cublas_workspace_in(_NEWEST)

    def cublas_workspace_in(self, release: tuple[int, int]) -> int:
        """Taken from PyTorch's allocator for every cuBLAS handle, and kept."""
        if self.is_amd:
            return _AMD_WORKSPACE
        large = (*_HOPPER, *_NEWER) if release >= _NEWER_AS_HOPPER_SINCE else _HOPPER
        return _HOPPER_WORKSPACE if self.capability[0] in large else _WORKSPACE

    @property
    def prefers_cudnn_attention(self) -> bool:
        """True where wheels with cuDNN 9.15.1 or later (torch 2.10 and later, for CUDA 13) prefer cuDNN attention."""
        return self.capability in ((9, 0), (10, 0), (10, 3))


CARD_KINDS = {
    "Data centres": (
        KnownCard("NVIDIA B200", 178.35, (10, 0), 148),
        KnownCard("NVIDIA H200", 139.72, (9, 0), 132),
        KnownCard("NVIDIA GH200 480GB", 95.0, (9, 0), 132),
        KnownCard("NVIDIA H20", 95.0, (9, 0), 78),
        KnownCard("NVIDIA H100 80GB", 79.11, (9, 0), 132),
        KnownCard("NVIDIA A100 80GB", 79.15, (8, 0), 108),
        KnownCard("NVIDIA A100 40GB", 39.39, (8, 0), 108),
        KnownCard("NVIDIA L40S", 44.39, (8, 9), 142),
        KnownCard("NVIDIA L40", 44.39, (8, 9), 142),
        KnownCard("NVIDIA L20", 44.39, (8, 9), 92),
        KnownCard("NVIDIA A40", 44.42, (8, 6), 84),
        KnownCard("NVIDIA A10G", 22.19, (8, 6), 80),
        KnownCard("NVIDIA A10", 22.07, (8, 6), 72),
        KnownCard("NVIDIA L4", 22.03, (8, 9), 58),
        KnownCard("Tesla V100 32GB", 31.73, (7, 0), 80),
        KnownCard("Tesla V100 16GB", 15.77, (7, 0), 80),
        KnownCard("Tesla T4", 14.74, (7, 5), 40),
        KnownCard("AMD Instinct MI300X", 191.98, (9, 4), 304),
    ),
    "Workstations": (
        KnownCard("NVIDIA RTX PRO 6000 Blackwell", 94.97, (12, 0), 188),
        KnownCard("NVIDIA RTX PRO 5000 Blackwell", 47.4, (12, 0), 110),
        KnownCard("NVIDIA RTX PRO 4500 Blackwell", 31.36, (12, 0), 82),
        KnownCard("NVIDIA RTX PRO 4000 Blackwell", 23.5, (12, 0), 70),
        KnownCard("NVIDIA RTX 6000 Ada Generation", 47.5, (8, 9), 142),
        KnownCard("NVIDIA RTX 5000 Ada Generation", 31.5, (8, 9), 100),
        KnownCard("NVIDIA RTX 4500 Ada Generation", 23.6, (8, 9), 60),
        KnownCard("NVIDIA RTX 4000 Ada Generation", 19.58, (8, 9), 48),
        KnownCard("NVIDIA RTX A6000", 47.53, (8, 6), 84),
        KnownCard("NVIDIA RTX A5500", 23.68, (8, 6), 80),
        KnownCard("NVIDIA RTX A5000", 23.68, (8, 6), 64),
        KnownCard("NVIDIA RTX A4500", 19.62, (8, 6), 56),
        KnownCard("NVIDIA RTX A4000", 15.61, (8, 6), 48),
    ),
    "Desktops": (
        KnownCard("NVIDIA GeForce RTX 5090", 31.36, (12, 0), 170),
        KnownCard("NVIDIA GeForce RTX 5080", 15.47, (12, 0), 84),
        KnownCard("NVIDIA GeForce RTX 5070 Ti", 15.47, (12, 0), 70),
        KnownCard("NVIDIA GeForce RTX 5070", 11.49, (12, 0), 48),
        KnownCard("NVIDIA GeForce RTX 5060 Ti 16GB", 15.47, (12, 0), 36),
        KnownCard("NVIDIA GeForce RTX 5060 Ti", 7.5, (12, 0), 36),
        KnownCard("NVIDIA GeForce RTX 5060", 7.5, (12, 0), 30),
        KnownCard("NVIDIA GeForce RTX 4090", 23.64, (8, 9), 128),
        KnownCard("NVIDIA GeForce RTX 4090 D", 23.64, (8, 9), 114),
        KnownCard("NVIDIA GeForce RTX 4080 SUPER", 15.67, (8, 9), 80),
        KnownCard("NVIDIA GeForce RTX 4080", 15.67, (8, 9), 76),
        KnownCard("NVIDIA GeForce RTX 4070 Ti SUPER", 15.6, (8, 9), 66),
        KnownCard("NVIDIA GeForce RTX 4070 Ti", 11.72, (8, 9), 60),
        KnownCard("NVIDIA GeForce RTX 4070 SUPER", 11.72, (8, 9), 56),
        KnownCard("NVIDIA GeForce RTX 4070", 11.72, (8, 9), 46),
        KnownCard("NVIDIA GeForce RTX 4060 Ti 16GB", 15.6, (8, 9), 34),
        KnownCard("NVIDIA GeForce RTX 4060 Ti", 7.63, (8, 9), 34),
        KnownCard("NVIDIA GeForce RTX 4060", 7.63, (8, 9), 24),
        KnownCard("NVIDIA GeForce RTX 3090 Ti", 23.68, (8, 6), 84),
        KnownCard("NVIDIA GeForce RTX 3090", 23.69, (8, 6), 82),
        KnownCard("NVIDIA GeForce RTX 3080 Ti", 11.76, (8, 6), 80),
        KnownCard("NVIDIA GeForce RTX 3080 12GB", 11.76, (8, 6), 70),
        KnownCard("NVIDIA GeForce RTX 3080", 9.78, (8, 6), 68),
        KnownCard("NVIDIA GeForce RTX 3070 Ti", 7.78, (8, 6), 48),
        KnownCard("NVIDIA GeForce RTX 3070", 7.78, (8, 6), 46),
        KnownCard("NVIDIA GeForce RTX 3060 Ti", 7.78, (8, 6), 38),
        KnownCard("NVIDIA GeForce RTX 3060", 11.66, (8, 6), 28),
        KnownCard("NVIDIA GeForce RTX 3050", 7.78, (8, 6), 20),
        KnownCard("NVIDIA TITAN RTX", 23.65, (7, 5), 72),
        KnownCard("NVIDIA GeForce RTX 2080 Ti", 10.75, (7, 5), 68),
        KnownCard("NVIDIA GeForce RTX 2080 SUPER", 7.79, (7, 5), 48),
        KnownCard("NVIDIA GeForce RTX 2080", 7.79, (7, 5), 46),
        KnownCard("NVIDIA GeForce RTX 2070 SUPER", 7.79, (7, 5), 40),
        KnownCard("NVIDIA GeForce RTX 2070", 7.76, (7, 5), 36),
        KnownCard("NVIDIA GeForce RTX 2060 SUPER", 7.79, (7, 5), 34),
        KnownCard("NVIDIA GeForce RTX 2060", 5.79, (7, 5), 30),
    ),
    "Laptops": (
        KnownCard("NVIDIA GeForce RTX 5090 Laptop GPU", 23.5, (12, 0), 82),
        KnownCard("NVIDIA GeForce RTX 5080 Laptop GPU", 15.47, (12, 0), 60),
        KnownCard("NVIDIA GeForce RTX 5070 Ti Laptop GPU", 11.49, (12, 0), 46),
        KnownCard("NVIDIA GeForce RTX 5070 Laptop GPU", 7.5, (12, 0), 36),
        KnownCard("NVIDIA GeForce RTX 5060 Laptop GPU", 7.5, (12, 0), 26),
        KnownCard("NVIDIA GeForce RTX 4090 Laptop GPU", 15.6, (8, 9), 76),
        KnownCard("NVIDIA GeForce RTX 4080 Laptop GPU", 11.6, (8, 9), 58),
        KnownCard("NVIDIA GeForce RTX 4070 Laptop GPU", 7.63, (8, 9), 36),
        KnownCard("NVIDIA GeForce RTX 4060 Laptop GPU", 7.63, (8, 9), 24),
        KnownCard("NVIDIA GeForce RTX 4050 Laptop GPU", 5.64, (8, 9), 20),
        KnownCard("NVIDIA GeForce RTX 3080 Ti Laptop GPU", 15.74, (8, 6), 58),
        KnownCard("NVIDIA GeForce RTX 3080 Laptop GPU", 7.78, (8, 6), 48),
        KnownCard("NVIDIA GeForce RTX 3070 Laptop GPU", 7.78, (8, 6), 40),
        KnownCard("NVIDIA GeForce RTX 3060 Laptop GPU", 5.79, (8, 6), 30),
        KnownCard("NVIDIA GeForce RTX 3050 Laptop GPU", 3.81, (8, 6), 16),
    ),
}
CARDS = tuple(card for cards in CARD_KINDS.values() for card in cards)
"""Cards of the last generations, largest first within a kind."""

_COMMON = ("RTX 4060", "RTX 3060", "T4", "RTX 4080", "RTX 4090", "RTX 5090", "A100 40GB", "L40S", "A100 80GB", "H200")


def common_cards() -> tuple[KnownCard, ...]:
    return tuple(map(card_named, _COMMON))


def card_text(card: str | None, memory: str | None) -> str:
    """Join a card's name and a stated memory to one text for `card_named`; empty for none."""
    if not memory:
        return card or ""
    size = _size_of(memory)
    return ", ".join(filter(None, [card, size_text(size)]))


def _size_of(memory: str) -> int:
    try:
        size = parse_bytes(memory)
    except ValueError as error:
        raise UsageError(f"The memory of a card: {error}.") from None
    if size <= 0:
        raise UsageError("The memory of a card must be more than 0, such as 24GiB.")
    return size


def card_names(text: str) -> tuple[str, ...]:
    """Split names at commas: 'L4, A100 80GB' are two, and 'RTX 4090, 48GiB' is one with another memory size."""
    names: list[str] = []
    for part in map(str.strip, text.split(",")):
        if names and _is_size(part) and not _is_size(names[-1]):
            names[-1] += f", {part}"
        else:
            names.append(part)
    return tuple(names)


def card_named(name: str) -> KnownCard:
    """Return a card by its name or a part of it, in any case: 'h200', 'RTX 4090', 'a100 40'. Base models come first.

    'RTX 4090, 48GiB' is the same card with another memory size. '48GiB' is any card of that size: its context is the
    largest measured on any card, and its kernels are those of the default card.
    """
    model, comma, memory = name.rpartition(",")
    if comma:
        card, size = card_named(model), _size_of(memory)
        return replace(card, name=f"{card.model}{_WITH}{CardMemory(size).name}", memory_gib=size / _GiB)
    if not _is_size(name):
        return _card_from_list(name)
    size = _size_of(name)
    return replace(_card_from_list(DEFAULT_CARD), name=f"{_ANY}{CardMemory(size).name}", memory_gib=size / _GiB)


@lru_cache(maxsize=256)
def _is_size(text: str) -> bool:
    """'48GiB' and '25769803776', and not '4090' or '80GB', which are parts of names."""
    with suppress(ValueError):
        is_plausible = parse_bytes(text) >= _LEAST_BYTES or not text.strip()[-1].isdigit()
        return is_plausible and not any(text.lower() in card.name.lower() for card in CARDS)
    return False


def size_text(size: int) -> str:
    """Format a size so that `parse_bytes` reads it back to the byte: '48GiB'."""
    unit, name = next(((unit, name) for unit, name in _UNITS if size % unit == 0), (1, "B"))
    return f"{size // unit}{name}"


def memory_args(card: str) -> tuple[str, ...]:
    """Return the command-line options for a text of `card_text`."""
    model, comma, memory = card.rpartition(", ")
    if not comma:
        model, memory = ("", card) if _is_size(card) else (card, "")
    return (*(("--card", model) if model else ()), *(("--memory", memory) if memory else ()))


def is_native(dtype: str, card: KnownCard) -> bool:
    return card.is_amd or card.capability >= NATIVE_SINCE.get(dtype, (0, 0))


def dtype_warnings(dtypes: Iterable[str], card: KnownCard) -> tuple[str, ...]:
    """Return a sentence for each dtype without native support on the card."""
    own = ".".join(map(str, card.capability))
    return tuple(
        f"{dtype} has no native support on {card.name} (compute capability {own}; native since "
        f"{'.'.join(map(str, NATIVE_SINCE[dtype]))}): {_WITHOUT[dtype]}."
        for dtype in sorted(set(dtypes))
        if not is_native(dtype, card)
    )


@lru_cache(maxsize=256)
def _card_from_list(name: str) -> KnownCard:
    wanted = short_name(name).lower()
    parts = wanted.replace("-", " ").replace("_", " ").split()
    exact = [card for card in CARDS if wanted == short_name(card.name).lower()]
    fitting = exact or [card for card in CARDS if parts and all(part in card.name.lower() for part in parts)]
    if not fitting:
        hint = nearest(name, [short_name(card.name) for card in CARDS])
        raise UsageError(f"Unknown card {name!r}.{hint} Or give its memory, such as 48GiB.")
    plain = min(fitting, key=lambda card: len(card.name.split()))
    if not all(set(plain.name.split()) <= set(card.name.split()) for card in fitting):
        several = " or ".join(short_name(card.name) for card in fitting)
        raise UsageError(f"{name!r} matches several cards: {several}. Choose one.")
    return plain


def short_name(name: str) -> str:
    """Return the name without maker and family: "RTX 4090", "A100 80GB"."""
    for family in _FAMILIES:
        if name.lower().startswith(family.lower()):
            name = name[len(family) :]
    return name
