"""What CUDA keeps of a card beside PyTorch's allocator: its context, and the kernels that are loaded.

No snapshot says how much that is, and it depends on the card, the driver, the release and what a program loads. Here
stands where it is known, with its source. For all else there is only `OVERHEAD_BYTES`, an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass

from memviz.allocator.what_if import OVERHEAD_BYTES
from memviz.units import bytes_text

_MiB = 1 << 20


@dataclass(frozen=True)
class Seen:
    kind: str
    """Of card, as it stands in CUDA's name of it."""
    least_bytes: int
    most_bytes: int
    source: str

    @property
    def text(self) -> str:
        least, most = (f"{size / (1 << 30):.2f}" for size in (self.least_bytes, self.most_bytes))
        return f"{least} to {most} GiB on an {self.kind}, {self.source}"


A100 = Seen(
    "A100",
    1417 * _MiB,
    1792 * _MiB,
    "by nvidia-smi in two public data sets",
)
"""GPUMemNet's (itu-rad/GPUMemNet) is one of the two: 1,417 to 1,481 MiB more than was reserved, in each of 60 runs."""
SEEN = (A100,)
_WHAT = "The CUDA context and loaded kernels lie beside PyTorch's allocator and are in no peak here"


def seen_on(card: str) -> Seen | None:
    """By the card's name."""
    return next((context for context in SEEN if context.kind in card.split()), None)


def overhead_on(card: str) -> int:
    """To set aside of this card: the most that was seen, so that what is said to fit does fit."""
    seen = seen_on(card)
    return OVERHEAD_BYTES if seen is None else seen.most_bytes


def context_sentence(card: str) -> str:
    """For whoever predicts a run on a card."""
    seen, aside = seen_on(card), bytes_text(overhead_on(card))
    if seen is not None:
        return f"{_WHAT}: {seen.text}. Whether it fits is judged with {aside} set aside for them."
    return (
        f"{_WHAT}. How much they take is not known for this card; it was {A100.text}. "
        f"Whether it fits is judged with {aside} set aside for them, an assumption."
    )
