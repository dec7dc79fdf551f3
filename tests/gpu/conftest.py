"""Tests that need a real GPU: `pytest tests/gpu -m gpu -n 0`. Without `-m gpu` they are skipped."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from memviz.predictor.cards import KnownCard

ROOT = Path(__file__).resolve().parents[2]


class Gpu(NamedTuple):
    card: KnownCard
    """The card as the predictor describes it, with CUDA's own figures."""
    release: tuple[int, int]
    """Release of torch."""


@pytest.fixture(scope="session")
def gpu(pytestconfig: pytest.Config) -> Gpu:
    if pytestconfig.option.markexpr != "gpu":
        pytest.skip("needs a GPU: `pytest tests/gpu -m gpu -n 0`")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    card = torch.cuda.get_device_properties(0)
    known = KnownCard(card.name, card.total_memory / (1 << 30), (card.major, card.minor), card.multi_processor_count)
    major, minor = torch.__version__.split(".")[:2]
    return Gpu(known, (int(major), int(minor)))


Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def python() -> Python:
    """Run Python in a new process: allocator settings are read once, and some CUDA errors outlive a test."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done

    return run
