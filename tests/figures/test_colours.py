"""Colours: the palette's are distinguishable and readable, and a site has one that several traces share."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from memviz.figures.colouring import OTHER, colouring, group_colour, largest_of_all
from memviz.figures.theme import CONFIG, DARK, LIGHT, mixed, text_on
from memviz.trace.model import Category, Trace
from tests.traces import MiB, alloc, frame, pairs_of, trace_of

Vector = npt.NDArray[np.float64]

# Machado, Oliveira and Fernandes 2009, severity 1, for linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}

# Björn Ottosson's OKLab.
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> Vector:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(colour: str, sight: str) -> Vector:
    seen = np.clip(SIGHT[sight] @ linear(colour), 0, 1)
    return TO_LAB @ np.cbrt(TO_LMS @ seen)


def distance(one: str, other: str, sight: str) -> float:
    return float(np.linalg.norm(oklab(one, sight) - oklab(other, sight)))


def contrast(one: str, other: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    light, dark = sorted((float(weights @ linear(each)) for each in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


LEAST_DISTANCE = 0.08
both_modes = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])


@both_modes
@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_categories_and_growing_and_shrinking_look_different(colours, sight):
    hues = set(colours.categories.values())
    assert min(distance(one, other, sight) for one, other in combinations(hues, 2)) >= LEAST_DISTANCE
    assert distance(colours.grew, colours.shrank, sight) > 0.17


@both_modes
def test_words_and_text_on_any_fill_can_be_read_and_every_category_has_a_colour(colours):
    assert contrast(colours.ink, colours.page) > 15
    assert contrast(colours.ink_2, colours.page) > 7
    assert contrast(colours.ink_3, colours.page) > 4.5
    assert min(contrast(each, colours.page) for each in (colours.grew, colours.shrank, colours.bad, colours.warn)) > 4.5
    assert min(contrast(text_on(fill), fill) for fill in colours.categories.values()) > 4.5
    assert set(colours.categories) == set(Category)
    # Trainers by reinforcement have both in one process.
    assert colours.category(Category.KV_CACHE) != colours.category(Category.OPTIMIZER_STATE)


def test_mixing_goes_from_one_colour_to_the_other_and_nothing_is_sent_anywhere():
    assert [mixed("#000000", "#ff8000", share) for share in (0, 0.5, 1)] == ["#000000", "#804000", "#ff8000"]
    assert CONFIG["showSendToCloud"] is False
    assert CONFIG["displaylogo"] is False


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
