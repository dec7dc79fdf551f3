"""Colours that several traces share."""

import pytest

from memviz.figures.colouring import OTHER, colouring, group_colour, largest_of_all
from memviz.trace.model import Trace
from tests.traces import MiB, alloc, frame, pairs_of, trace_of

# A site or module has one colour: in every trace that is compared, and, as far as hues go, in any trace at all.

LINES = range(1, 12)


def of_lines(*sizes: tuple[int, int]) -> Trace:
    """Return a trace with so many MiB allocated at each line."""
    return trace_of(
        [
            alloc(line << 40, size * MiB, frames=[frame("step", "/p/train.py", line), frame("main", "/p/train.py", 99)])
            for line, size in sizes
        ]
    )


def shades(trace: Trace, among: tuple[str, ...] = ()) -> dict[str, str]:
    colours = colouring(trace, trace.devices[0], "site", among)
    return {label: group_colour(colours, group, dark=False) for group, label in enumerate(colours.labels)}


def test_compared_traces_give_the_same_site_the_same_hue_whatever_else_they_hold() -> None:
    one = of_lines(*((line, line) for line in LINES))
    other = of_lines(*((line, 20 - line) for line in LINES if line % 2), (20, 500))
    hues = largest_of_all(pairs_of(one, other), "site")
    assert len({hue.shades for hue in hues}) == len(hues) == 7
    assert hues[0].label == "train.py:20 step"
    wanted = {hue.label: hue.shades[0] for hue in hues}
    for trace in (one, other):
        shown = shades(trace, tuple(hue.key for hue in hues))
        assert {label: shade for label, shade in shown.items() if label != OTHER}.items() <= wanted.items()
    assert "train.py:20 step" not in shades(one, tuple(hue.key for hue in hues))


def test_every_allocation_of_a_shared_site_is_counted_to_it_whatever_a_browser_asks() -> None:
    trace = of_lines((1, 3), (2, 5), (1, 7))
    colours = colouring(trace, trace.devices[0], "site", ("/p/train.py:1 step", "nowhere"))
    assert colours.labels == ("train.py:1 step", OTHER)
    assert colours.group.tolist() == [0, 1, 0]
    trace = of_lines((1, 3))
    many = tuple(f"key {i}" for i in range(50))
    assert colouring(trace, trace.devices[0], "site", (*many, "/p/train.py:1 step")).labels == (OTHER,)


@pytest.mark.parametrize("line", LINES)
def test_the_largest_site_has_its_hue_in_any_trace(line: int) -> None:
    alone, among_others = of_lines((line, 5)), of_lines((line, 50), (30, 2), (31, 1))
    label = f"train.py:{line} step"
    assert shades(alone)[label] == shades(among_others)[label]
