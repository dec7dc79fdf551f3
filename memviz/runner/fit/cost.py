"""What a way of running costs in time: an interval, estimated from the work and the card's own limits (a roofline)."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.runner.fit.card_speeds import CardSpeed

_USUAL_COMPUTE, _USUAL_MEMORY, _USUAL_HOST = 0.3, 0.5, 0.4
"""Shares of the data sheet that ordinary PyTorch programs reach at least."""
_NETWORK_GB_PER_SECOND = 50.0
"""Of one card to another machine, where there is one adapter of 400 Gb/s a card."""
_HALVES = ("bf16", "fp16")


@dataclass(frozen=True)
class Work:
    """Of one step."""

    flops: int
    bytes_moved: int
    host_bytes: int
    """Between the device and the host."""
    link_bytes: int = 0
    """To other devices."""
    leaves_machine: bool = False
    """Whether some of these are in another machine."""
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
        """By which ways are compared; without seconds, the work itself."""
        if self.seconds_low is None or self.seconds_high is None:
            return self.flops + self.bytes_moved + self.host_bytes + self.link_bytes
        return (self.seconds_low + self.seconds_high) / 2


def cost_of(work: Work, speed: CardSpeed | None, dtype: str = "") -> Cost:
    """`dtype` is what the model computes in; where it is not known, the interval holds halves and singles."""
    if speed is None:
        return Cost(work.flops, work.bytes_moved, work.host_bytes, None, None, work.link_bytes)
    fastest, slowest = _tflops(speed, dtype)
    memory, host = work.bytes_moved / speed.memory_gb_per_second, work.host_bytes / speed.host_gb_per_second
    link = speed.link_gb_per_second
    slow_link = min(link, _NETWORK_GB_PER_SECOND) if work.leaves_machine else link
    low = max(work.flops / fastest / 1e12, memory / 1e9, host / 1e9, work.link_bytes / link / 1e9)
    parts = (memory / _USUAL_MEMORY + host / _USUAL_HOST + work.link_bytes / slow_link / _USUAL_HOST) / 1e9
    high = work.flops / slowest / 1e12 / _USUAL_COMPUTE + parts
    seconds = low * work.stretch, high * work.stretch
    return Cost(work.flops, work.bytes_moved, work.host_bytes, *seconds, work.link_bytes)


def _tflops(speed: CardSpeed, dtype: str) -> tuple[float, float]:
    """The most, and what is reckoned with at least."""
    both = speed.half_tflops, speed.single_tflops
    known = {"fp32": (speed.single_tflops,), **{dtype: (speed.half_tflops,) for dtype in _HALVES}}.get(dtype, both)
    return max(known), min(known)
