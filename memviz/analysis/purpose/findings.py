"""What has been found of each allocation so far."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.model import Bools, Category


class Findings:
    """Columns in the making, one row per row of `lifetimes`."""

    def __init__(self, count: int) -> None:
        self.category = np.full(count, Category.UNKNOWN, dtype=np.uint8)
        self.reason = np.full(count, Reason.NONE, dtype=np.uint8)
        self.certainty = np.full(count, Certainty.OPEN, dtype=np.uint8)

    @property
    def open(self) -> Bools:
        """Of which nobody has spoken."""
        return np.asarray(self.reason == Reason.NONE)

    def say(self, rows: npt.NDArray[Any], category: Any, reason: Reason, certainty: Any) -> None:
        """`rows` are numbers or a mask; `category` and `certainty`, a Certainty, are one for all, or one each."""
        self.category[rows] = category
        self.reason[rows] = reason
        self.certainty[rows] = certainty
