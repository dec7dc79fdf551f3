"""Real cards: how much memory each has for a program, and what of its architecture PyTorch looks at.

Memory is what CUDA reports as the card's total, as PyTorch's messages about running out quote it, in GiB of two
decimals; drivers differ by some tens of MiB. It is less than what the card is sold with: page tables take a part,
and error correction another on cards without HBM.
"""

from __future__ import annotations

from dataclasses import dataclass

from memviz.errors import UsageError
from memviz.runner.knobs import nearest

_KiB, _GiB = 1 << 10, 1 << 30
_WORKSPACE = (2 * 4096 + 8 * 16) * _KiB
_HOPPER_WORKSPACE = 4096 * 8 * _KiB
_HOPPER = 9
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
_MOST_THREADS = 2048


@dataclass(frozen=True)
class KnownCard:
    name: str
    """As CUDA names it, shortened where it names the board's form."""
    memory_gib: float
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * _GiB)

    @property
    def architecture(self) -> int:
        """90 for Hopper: how CUDA's `sm_90` counts."""
        major, minor = self.capability
        return 10 * major + minor

    @property
    def threads_per_multiprocessor(self) -> int:
        """That one holds at a time: the architecture's."""
        return _THREADS.get(self.capability, _MOST_THREADS)

    @property
    def cublas_workspace_bytes(self) -> int:
        """Taken from PyTorch's allocator for every cuBLAS handle, and kept."""
        return _HOPPER_WORKSPACE if self.capability[0] >= _HOPPER else _WORKSPACE

    @property
    def prefers_cudnn_attention(self) -> bool:
        """Of wheels with cuDNN 9.15.1 and later, which torch 2.10 and later have for CUDA 13."""
        return self.capability in ((9, 0), (10, 0), (10, 3))


CARDS = (
    KnownCard("NVIDIA B200", 178.35, (10, 0), 148),
    KnownCard("NVIDIA H200", 139.72, (9, 0), 132),
    KnownCard("NVIDIA H100 80GB", 79.11, (9, 0), 132),
    KnownCard("NVIDIA A100 80GB", 79.15, (8, 0), 108),
    KnownCard("NVIDIA A100 40GB", 39.39, (8, 0), 108),
    KnownCard("NVIDIA L40S", 44.39, (8, 9), 142),
    KnownCard("NVIDIA A10", 22.07, (8, 6), 72),
    KnownCard("NVIDIA L4", 22.03, (8, 9), 58),
    KnownCard("NVIDIA GeForce RTX 5090", 31.36, (12, 0), 170),
    KnownCard("NVIDIA GeForce RTX 4090", 23.64, (8, 9), 128),
    KnownCard("NVIDIA GeForce RTX 3090", 23.69, (8, 6), 82),
    KnownCard("NVIDIA V100 32GB", 31.73, (7, 0), 80),
    KnownCard("NVIDIA T4", 14.74, (7, 5), 40),
)
"""Those of the last generations that models are run on, largest first within a kind."""


def card_named(name: str) -> KnownCard:
    """By its name or a part of it, in any case: 'h200', 'RTX 4090', 'a100 40'."""
    wanted = name.lower()
    words = wanted.split()
    exact = [card for card in CARDS if wanted in (card.name.lower(), _short(card).lower())]
    fitting = exact or [card for card in CARDS if words and all(word in card.name.lower() for word in words)]
    if not fitting:
        raise UsageError(f"No card is known as {name!r}.{nearest(name, map(_short, CARDS))}")
    if len(fitting) > 1:
        several = " or ".join(map(_short, fitting))
        raise UsageError(f"{name!r} may be {several}: say which.")
    return fitting[0]


def _short(card: KnownCard) -> str:
    return card.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
