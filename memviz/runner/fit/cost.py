"""Time of a configuration as an interval, estimated from its work and the card's data sheet (a roofline), and what
is best among several.

Speeds are dense figures, without sparsity, of the form that is sold most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Keep = Literal["outputs", "training", "nothing"]
"""Properties that must not change, from the strictest: outputs to the bit or to rounding; the model, though it
is trained with other arithmetic; nothing."""
KEEPS: tuple[Keep, ...] = get_args(Keep)


@dataclass(frozen=True)
class CardSpeed:
    half_tflops: float
    """Matrix products in bf16, or in fp16 on cards without bf16."""
    single_tflops: float
    """fp32 without tensor cores, PyTorch's default."""
    memory_gb_per_second: float
    host_gb_per_second: float
    """GB/s in one direction, of the bus of the card's form factor."""
    link: float | None = None
    """GB/s in one direction of NVLink or similar; None if cards communicate over the bus."""


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
    """Return the data sheet speeds of a card; None for an unlisted card."""
    return _SPEEDS.get(card)


_USUAL_COMPUTE, _USUAL_MEMORY, _USUAL_HOST = 0.3, 0.5, 0.4
"""Shares of the data sheet that ordinary PyTorch programs reach at least."""
_NETWORK_GB_PER_SECOND = 50.0
"""Bandwidth from one card to another machine, with one 400 Gb/s adapter per card."""
_HALVES = ("bf16", "fp16")


@dataclass(frozen=True)
class Work:
    flops: int
    bytes_moved: int
    host_bytes: int
    """Between the device and the host."""
    link_bytes: int = 0
    """To other devices."""
    leaves_machine: bool = False
    """True if some of these devices are in another machine."""
    stretch: float = 1.0
    """How much longer a step is than this device works: stages of a pipeline wait for each other."""


@dataclass(frozen=True)
class Cost:
    flops: int
    bytes_moved: int
    host_bytes: int
    seconds_low: float | None
    """Everything at the card's limits and all at once; None for a card whose limits are not known."""
    seconds_high: float | None
    """At the share of them that ordinary programs reach, one after the other."""
    link_bytes: int = 0

    @property
    def rank(self) -> float:
        """Sort key of configurations: mean seconds, or the work itself where seconds are unknown."""
        if self.seconds_low is None or self.seconds_high is None:
            return self.flops + self.bytes_moved + self.host_bytes + self.link_bytes
        return (self.seconds_low + self.seconds_high) / 2


def cost_of(work: Work, speed: CardSpeed | None, dtype: str = "") -> Cost:
    """`dtype` is what the model computes in; where it is not known, the interval holds halves and singles."""
    if speed is None:
        return Cost(work.flops, work.bytes_moved, work.host_bytes, None, None, work.link_bytes)
    both = speed.half_tflops, speed.single_tflops
    tflops = {"fp32": both[1:], **dict.fromkeys(_HALVES, both[:1])}.get(dtype, both)
    memory, host = work.bytes_moved / speed.memory_gb_per_second, work.host_bytes / speed.host_gb_per_second
    link = speed.host_gb_per_second if speed.link is None else speed.link
    slow_link = min(link, _NETWORK_GB_PER_SECOND) if work.leaves_machine else link
    low = max(work.flops / max(tflops) / 1e12, memory / 1e9, host / 1e9, work.link_bytes / link / 1e9)
    parts = (memory / _USUAL_MEMORY + host / _USUAL_HOST + work.link_bytes / slow_link / _USUAL_HOST) / 1e9
    high = work.flops / min(tflops) / 1e12 / _USUAL_COMPUTE + parts
    seconds = low * work.stretch, high * work.stretch
    return Cost(work.flops, work.bytes_moved, work.host_bytes, *seconds, work.link_bytes)


class Rating(NamedTuple):
    """Facts that decide between configurations that fit, in this order."""

    keeps: int
    """Its place in `KEEPS`: the strictest class in which any fits is taken."""
    rank: float
    """`Cost.rank`."""
    is_close: bool
    changes: int
    peak_reserved_bytes: int
    fits: bool


def cheapest_that_fits(ways: Sequence[Rating]) -> int | None:
    """Return its number; None if none fits."""
    return min((number for number, way in enumerate(ways) if way.fits), key=ways.__getitem__, default=None)


def class_shown(ways: Sequence[Rating]) -> int:
    """The class whose front leads on: that of the cheapest that fits, else the weakest that was tried."""
    number = cheapest_that_fits(ways)
    return max((way.keeps for way in ways), default=0) if number is None else ways[number].keeps


def pareto_front(ways: Sequence[Rating], keeps: int) -> tuple[int, ...]:
    """Numbers of a class, cheapest first: each next one costs more and needs less memory. Ties: the fewest changes."""
    of_class = [(way.rank, way.peak_reserved_bytes, way.changes, n) for n, way in enumerate(ways) if way.keeps == keeps]
    front: list[int] = []
    for _, peak, _, number in sorted(of_class):
        if not front or peak < ways[front[-1]].peak_reserved_bytes:
            front.append(number)
    return tuple(front)
