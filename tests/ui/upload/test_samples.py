"""Tests of the samples: their saved pictures, and the lines that record a snapshot."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from memviz.ui.upload.samples import OFFERED_SAMPLES, RECORD, OfferedSample, card_of, draw_card
from tests.house.repository import text_of

FAKE_TORCH = """
from types import SimpleNamespace

said = []

def dump(path):
    with open(path, "w") as file:
        file.write(" ".join(said))

memory = SimpleNamespace(_record_memory_history=lambda enabled="all": said.append(str(enabled)), _dump_snapshot=dump)
cuda = SimpleNamespace(memory=memory)
"""
OUT_OF_MEMORY = """import torch

def train_a_few_steps():
    raise RuntimeError("CUDA out of memory")

"""


def test_a_training_that_runs_out_of_memory_leaves_its_snapshot(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    (tmp_path / "train.py").write_text(OUT_OF_MEMORY + RECORD)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "CUDA out of memory" in done.stderr and done.returncode
    assert (tmp_path / "run.pickle").read_text() == "all", "recorded until it was written"


def test_the_readme_says_the_same() -> None:
    assert f"```python\n{RECORD}\n```" in text_of("README.md")


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
