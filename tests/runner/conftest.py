"""Fixtures of measured runs."""

import pytest

from memviz.runner.measure import cuda_device


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the minimum of timed steps."""
    monkeypatch.setattr(cuda_device, "FILLED_SECONDS", 0.0)
