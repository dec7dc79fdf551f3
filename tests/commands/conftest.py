"""A small recording, and the same with one allocation twice as large."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.answers import EVENTS, written


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return written(tmp_path, "small.pickle", EVENTS)


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    grown = [{**each, "size": 2 * each["size"]} if each["addr"] == 4096 else each for each in EVENTS]
    return written(tmp_path, "larger.pickle", grown)
