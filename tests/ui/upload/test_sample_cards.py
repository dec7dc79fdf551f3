"""What is kept of the samples' cards is what the files say."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from memviz.ui.upload.samples import OFFERED_SAMPLES, OfferedSample, card_of, draw_card

AGAIN = "Make them again: python -m memviz.ui.upload.samples"


@pytest.mark.parametrize("sample", OFFERED_SAMPLES, ids=lambda sample: sample.name)
def test_pictures_and_peaks_are_those_that_would_be_drawn(sample: OfferedSample) -> None:
    kept, now = card_of(sample), draw_card(sample)
    assert kept.peaks == now.peaks, AGAIN
    # Another zlib packs the same pixels into other bytes.
    for one, other in zip(kept.pictures, now.pictures, strict=True):
        assert np.array_equal(pixels(one), pixels(other)), AGAIN


def pixels(picture: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(picture)))
