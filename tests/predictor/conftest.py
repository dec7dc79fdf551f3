"""The predicted card of most tests."""

from collections.abc import Iterator

import pytest

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100


@pytest.fixture
def device() -> Iterator[PredictedDevice]:
    with PredictedDevice(A100) as predicted:
        yield predicted
