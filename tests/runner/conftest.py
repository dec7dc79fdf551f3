"""For measured runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from memviz.runner.measure import cuda_device


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As few timed steps as count, and a rubbish collector that looks only at what a test made."""
    monkeypatch.setattr(cuda_device, "FILLED_SECONDS", 0.0)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
