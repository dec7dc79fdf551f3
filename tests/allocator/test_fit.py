"""The verdict on whether a run fits when memory outside the allocator is only known as a range."""

from __future__ import annotations

import pytest

from memviz.allocator.context import CudaContext
from memviz.allocator.replay import source_of
from memviz.allocator.what_if import CardMemory, Doubt, figures_on, fit_word
from memviz.trace.model import Trace
from tests.allocator.recording import Recorder

MiB = 1 << 20
CONTEXT = CudaContext("a card", 100 * MiB, 300 * MiB)


def held(*mebibytes: int) -> Trace:
    """Return a trace with blocks of these sizes live at once."""
    run = Recorder()
    for size in mebibytes:
        run.malloc(size * MiB)
    return run.trace()


def one_after_another(*mebibytes: int) -> Trace:
    """The cache of those before goes back where memory is short."""
    run = Recorder()
    for size in mebibytes:
        run.cached(size * MiB)
    return run.trace()


def word(trace: Trace, card: int, known_in: int | None, *, more: float = 0.0, less: float = 0.0) -> str:
    source = source_of(trace, trace.devices[0])
    memory = None if known_in is None else CardMemory(known_in * MiB, 0)
    known = figures_on(source, None, memory)
    return fit_word(source, None, card * MiB, Doubt(CONTEXT, more, less), known=known)


@pytest.mark.parametrize("known_in", [None, 500, 700, 800, 900, 1000])
@pytest.mark.parametrize(
    ("card", "expected"), [(1400, "yes"), (1300, "yes"), (1298, "close"), (1100, "close"), (1098, "no")]
)
def test_the_context_decides_from_its_least_to_its_most(card: int, expected: str, known_in: int | None) -> None:
    """The verdict for 1,000 MiB plus a context of 100 to 300, with or without a run of known memory."""
    assert word(held(600, 400), card, known_in) == expected


def test_the_prediction_may_be_wrong_either_way() -> None:
    assert word(held(1000), 1350, 1050) == "yes"
    assert word(held(1000), 1350, 1050, more=0.06) == "close"
    assert word(held(1000), 1090, 790) == "no"
    assert word(held(1000), 1090, 790, less=0.02) == "close"


def test_what_gives_back_its_cache_is_replayed() -> None:
    """500 MiB are enough for it, though it would reserve 900 without a limit."""
    trace = one_after_another(400, 500)
    assert word(trace, 800, None) == word(trace, 800, 500) == word(trace, 800, 520) == "yes"
    assert word(trace, 798, None) == word(trace, 798, 498) == "close"
    assert word(trace, 598, None) == word(trace, 598, 298) == "no"


def test_of_a_card_that_the_context_fills_nothing_is_left() -> None:
    assert word(held(1), 100, None) == "no"
