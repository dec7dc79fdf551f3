"""Parameters that wait for the second test line."""

from typing import Any

import pytest


def slow(*values: object) -> list[Any]:
    """Mark each value as slow, for a test whose other values are enough for the quick suite."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def slow_rows(*rows: tuple[Any, ...]) -> list[Any]:
    """Do the same with the rows of a table that has several columns."""
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]
