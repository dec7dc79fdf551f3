"""What our models of pictures share: height and width that can be folded, and what is said of them."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from memviz.runner.knobs import knob
from memviz.runner.workloads.workload import FromConfiguration, check_multiple, plural

_MOST_TILES = 2.5
"""A side of a reduced picture, which is larger than a tile by part of one at least."""


class PictureModel(FromConfiguration):
    """Subclasses say what a side of a picture must be a multiple of, and why."""

    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}
    side: ClassVar[int]
    """Pixels that a side is a multiple of."""
    why: ClassVar[str]
    batch: int
    height: int
    width: int

    def _check(self) -> None:
        for name, value in (("height", self.height), ("width", self.width)):
            check_multiple(name, value, self.side, why=self.why)

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output[0].mean()
        return mean

    def _pictures(self) -> str:
        return f"{plural(self.batch, 'picture')} of {self.height} x {self.width}"


def side_in_tiles(side: int, tile: int, *, reduced_tile: int, of: int) -> int:
    """Of a reduced picture: as many tiles as the picture's side has, up to two and a half; a multiple of `of`.

    A side that one tile holds stays within the reduced tile, and a larger one goes beyond it.
    """
    share = min(side / tile, _MOST_TILES)
    reduced = round(share * reduced_tile / of) * of
    return min(max(reduced, of), reduced_tile) if side <= tile else max(reduced, reduced_tile + of)


def pictures_knob() -> Any:
    return knob(1, "pictures at once", least=1)


def side_knob(of: int, *, default: int = 1024, what: str = "picture") -> Any:
    return knob(default, f"of the {what}: a multiple of {of}", unit="pixels", least=1)
