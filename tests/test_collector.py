"""Pausing of Python's garbage collector."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from memviz.memory import without_collection
from tests.house.repository import ROOT

count_frozen = gc.get_freeze_count


@pytest.fixture(autouse=True)
def nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what `tests/conftest.py` does for all other tests."""
    monkeypatch.setattr(gc, "get_freeze_count", count_frozen)
    gc.unfreeze()
    yield
    gc.freeze()


class Loop:
    """Holds itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def dead_loops() -> weakref.ref[Loop]:
    seen = weakref.ref(Loop())
    for _ in range(3 * gc.get_threshold()[0]):
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


def test_what_was_set_aside_before_stays_so() -> None:
    with without_collection():
        before = gc.get_freeze_count()
        assert before
        with without_collection():
            pass
        assert gc.get_freeze_count() >= before * 0.99
    assert gc.get_freeze_count() == 0


SERVER = """
import gc
from memviz.memory import freeze_startup_objects, without_collection

before = [[] for _ in range(1000)]
freeze_startup_objects()
with without_collection():
    pass
assert not any(each is before for each in gc.get_objects())
later = []
later.append(later)
assert any(each is later for each in gc.get_objects())
del later
assert gc.collect() == 1
"""


def test_what_a_server_begins_with_is_looked_through_no_more_and_what_comes_later_is() -> None:
    subprocess.run([sys.executable, "-c", SERVER], check=True, cwd=ROOT)
