"""How fast a card is at most, by its maker's data sheet: what an estimate of seconds stands on.

Dense figures, without sparsity, of the form that is sold most; tensor cores with sums in fp32, as PyTorch uses them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CardSpeed:
    half_tflops: float
    """Of matrix products in bf16, or in fp16 on cards without bf16."""
    single_tflops: float
    """Of fp32 as PyTorch computes it unless told otherwise, without tensor cores."""
    memory_gb_per_second: float
    host_gb_per_second: float
    """One way, of the bus that the card's form has."""
    link: float | None = None
    """NVLink or its like, one way; None where cards talk over the bus."""

    @property
    def link_gb_per_second(self) -> float:
        return self.host_gb_per_second if self.link is None else self.link


_PCIE3, _PCIE4, _PCIE5 = 16.0, 32.0, 64.0

_SPEEDS = {
    "NVIDIA B200": CardSpeed(2250, 75, 7700, _PCIE5, 900.0),
    "NVIDIA H200": CardSpeed(989, 67, 4800, _PCIE5, 450.0),
    "NVIDIA GH200 480GB": CardSpeed(989, 67, 4000, 450.0),
    "NVIDIA H20": CardSpeed(148, 44, 4000, _PCIE5, 450.0),
    "NVIDIA H100 80GB": CardSpeed(989, 67, 3350, _PCIE5, 450.0),
    "NVIDIA A100 80GB": CardSpeed(312, 19.5, 2039, _PCIE4, 300.0),
    "NVIDIA A100 40GB": CardSpeed(312, 19.5, 1555, _PCIE4, 300.0),
    "NVIDIA L40S": CardSpeed(362, 91.6, 864, _PCIE4),
    "NVIDIA L40": CardSpeed(181, 90.5, 864, _PCIE4),
    "NVIDIA A40": CardSpeed(149.7, 37.4, 696, _PCIE4),
    "NVIDIA A10": CardSpeed(125, 31.2, 600, _PCIE4),
    "NVIDIA L4": CardSpeed(121, 30.3, 300, _PCIE4),
    "Tesla V100 32GB": CardSpeed(125, 15.7, 900, _PCIE3, 150.0),
    "Tesla V100 16GB": CardSpeed(125, 15.7, 900, _PCIE3, 150.0),
    "Tesla T4": CardSpeed(65, 8.1, 320, _PCIE3),
    "AMD Instinct MI300X": CardSpeed(1307, 163.4, 5300, _PCIE5, 448.0),
    "NVIDIA RTX A6000": CardSpeed(155, 38.7, 768, _PCIE4),
    "NVIDIA GeForce RTX 5090": CardSpeed(209.5, 104.8, 1792, _PCIE5),
    "NVIDIA GeForce RTX 4090": CardSpeed(165.2, 82.6, 1008, _PCIE4),
    "NVIDIA GeForce RTX 4080": CardSpeed(97.5, 48.7, 717, _PCIE4),
    "NVIDIA GeForce RTX 3090": CardSpeed(71, 35.6, 936, _PCIE4),
    "NVIDIA GeForce RTX 3080": CardSpeed(59.5, 29.8, 760, _PCIE4),
    "NVIDIA GeForce RTX 2080 Ti": CardSpeed(53.8, 13.4, 616, _PCIE3),
}


def speed_of(card: str) -> CardSpeed | None:
    """None where nobody has looked the card up."""
    return _SPEEDS.get(card)
