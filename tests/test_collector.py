"""Python's garbage collector, kept still."""

from __future__ import annotations

import gc
import weakref

import pytest

from memviz.collector import without_collection


class Loop:
    """Holds itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def dead_loops() -> weakref.ref[Loop]:
    seen = weakref.ref(Loop())
    for _ in range(5_000):
        Loop()
    return seen


def test_nothing_is_collected_within_unless_somebody_asks_and_afterwards_as_before() -> None:
    with without_collection():
        with without_collection():
            seen = dead_loops()
        assert seen() is not None and not gc.isenabled()
        gc.collect()
        assert seen() is None
    assert gc.isenabled()
    assert dead_loops()() is None


def test_what_fails_within_leaves_it_on() -> None:
    with pytest.raises(ZeroDivisionError), without_collection():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_whoever_had_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
