"""What our video models share: an autoencoder folds frames and pixels into latents, and patches make tokens of them."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from memviz.runner.workloads.workload import FromConfiguration, check_multiple, plural

VIDEO_SIDES = {"resolution": ("height", "width"), "video": ("frames", "height", "width")}


class VideoModel(FromConfiguration):
    """Subclasses say how their autoencoder folds, where it is not as most do."""

    together: ClassVar[dict[str, tuple[str, ...]]] = VIDEO_SIDES
    frames_per_latent: ClassVar[int] = 4
    """After the first, which is folded alone."""
    pixels_per_latent: ClassVar[int] = 8
    patch: ClassVar[int] = 2
    """Latents a side that make one token."""
    batch: int
    frames: int
    height: int
    width: int

    def _check(self) -> None:
        why = f"the autoencoder folds {self.frames_per_latent} frames after the first into one latent"
        check_multiple("frames", self.frames, self.frames_per_latent, plus=1, why=why)
        side = self.pixels_per_latent * self.patch
        why = f"the autoencoder folds {side} pixels a side into one latent"
        if self.patch > 1:
            why = f"the autoencoder and the patches fold {side} pixels a side into one token"
        for name, value in (("height", self.height), ("width", self.width)):
            check_multiple(name, value, side, why=why)

    @property
    def latents(self) -> tuple[int, int, int]:
        """Frames, height and width after the autoencoder."""
        frames = (self.frames - 1) // self.frames_per_latent + 1
        return frames, self.height // self.pixels_per_latent, self.width // self.pixels_per_latent

    @property
    def tokens(self) -> int:
        """Of the video alone."""
        frames, height, width = self.latents
        return frames * (height // self.patch) * (width // self.patch)

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output[0].mean()
        return mean

    def _videos(self) -> str:
        return f"{plural(self.batch, 'video')} of {self.frames} x {self.height} x {self.width}"
