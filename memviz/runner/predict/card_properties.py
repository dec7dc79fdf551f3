"""What CUDA says of a card beside its memory: mostly the architecture's, by its capability."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import NAMESPACE_URL, UUID, uuid5

from memviz.runner.predict.cards import KnownCard

_KiB, _MiB = 1 << 10, 1 << 20
_REGISTERS = 65_536
_SHARED_PER_BLOCK = 48 * _KiB
_SHARED = {(7, 0): 96, (7, 5): 64, (8, 0): 164, (8, 6): 100, (8, 9): 100, (12, 0): 100}
"""KiB of a multiprocessor; later ones of data centres have more."""
_MOST_SHARED = 228
_L2 = {
    "NVIDIA L40S": 96,
    "NVIDIA GeForce RTX 5090": 96,
    "NVIDIA GeForce RTX 4090": 72,
    "NVIDIA RTX PRO 6000 Blackwell": 128,
}
"""MiB of second-level cache, where it is not that of most cards of its capability."""
_L2_OF_CAPABILITY = {(7, 0): 6, (7, 5): 4, (8, 0): 40, (8, 6): 6, (8, 9): 48, (9, 0): 50, (9, 4): 4, (10, 0): 126}
_LATER_L2 = 64


@dataclass(frozen=True)
class CardProperties:
    """What `torch.cuda.get_device_properties` gives: the names are torch's."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    uuid: UUID
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    L2_cache_size: int
    max_threads_per_block: int = 1024
    warp_size: int = 32
    regs_per_multiprocessor: int = _REGISTERS
    shared_memory_per_block: int = _SHARED_PER_BLOCK
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 1
    pci_device_id: int = 0
    pci_domain_id: int = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // _MiB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // _MiB}MB)"
        )


def properties_of(card: KnownCard) -> CardProperties:
    """Of two cards of a kind these are the same; even the number that is a card's own is made from its name."""
    major, minor = card.capability
    shared = _SHARED.get(card.capability, _MOST_SHARED) * _KiB
    is_old = major == 7
    return CardProperties(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.memory_bytes,
        multi_processor_count=card.multiprocessors,
        uuid=uuid5(NAMESPACE_URL, card.name),
        max_threads_per_multi_processor=card.threads_per_multiprocessor,
        shared_memory_per_multiprocessor=shared,
        shared_memory_per_block_optin=shared if is_old else shared - _KiB,
        L2_cache_size=_L2.get(card.name, _L2_OF_CAPABILITY.get(card.capability, _LATER_L2)) * _MiB,
    )
