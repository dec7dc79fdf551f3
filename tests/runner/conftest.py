"""Fixtures of measured runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from memviz.runner.measure import cuda_device


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the minimum of timed steps, and exclude earlier objects from garbage collection."""
    monkeypatch.setattr(cuda_device, "FILLED_SECONDS", 0.0)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
