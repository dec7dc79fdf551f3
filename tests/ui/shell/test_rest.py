"""What waits until nobody is busy."""

from __future__ import annotations

import asyncio
from itertools import chain, repeat

import pytest

from memviz.ui.shell import housekeeping


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_LOOK_SECONDS", 0)


def test_it_waits_as_long_as_somebody_is_busy(monkeypatch: pytest.MonkeyPatch):
    looks = chain([True] * 5, repeat(False))
    seen = []

    def is_busy() -> bool:
        seen.append(next(looks))
        return seen[-1]

    monkeypatch.setattr(housekeeping, "_QUIET_SECONDS", 1e-9)
    assert asyncio.run(housekeeping.wait_until_idle(is_busy, lambda: True))
    assert seen[:5] == [True] * 5 and seen[-1] is False


def test_somebody_is_always_busy_and_it_goes_on_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(housekeeping, "_QUIET_SECONDS", 60)
    monkeypatch.setattr(housekeeping, "_LONGEST_SECONDS", 0)
    assert asyncio.run(housekeeping.wait_until_idle(lambda: True, lambda: True))


def test_what_nobody_wants_any_more_is_not_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(housekeeping, "_QUIET_SECONDS", 60)
    wanted = chain([True] * 3, repeat(False))
    assert not asyncio.run(housekeeping.wait_until_idle(lambda: True, lambda: next(wanted)))
