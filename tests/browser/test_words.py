"""Words for bytes, times and counts are the same in the browser's scripts as in Python."""

from __future__ import annotations

import random
from typing import Any

import pytest

from memviz.units import bytes_text, delta_text, duration_text
from tests.browser.mounting import load

WORDS = "words.js"
_SEED = 7


@pytest.fixture
def page(same_page: Any) -> Any:
    return same_page


def said_by_browser(page: Any, function: str, values: list[int]) -> list[str]:
    page.goto("about:blank")
    load(page, WORDS)
    found: list[str] = page.evaluate(f"(values) => values.map((each) => memviz.words.{function}(each))", values)
    return found


def numbers(most_bits: int) -> list[int]:
    """Return numbers of every magnitude, multiples of powers of two (often half-way cases), and values near borders."""
    chance = random.Random(_SEED)
    found = [chance.getrandbits(chance.randint(1, most_bits)) for _ in range(4000)]
    found += [chance.randrange(1, 4096) << chance.randint(0, most_bits - 12) for _ in range(4000)]
    borders = [round(digits * unit) for unit in (1, 1 << 10, 1 << 20, 1 << 30, 1 << 40) for digits in _BORDERS]
    return found + [border + near for border in borders for near in range(-3, 4) if border + near >= 0]


_BORDERS = (1, 9.995, 10, 99.95, 100, 999.5, 1000, 1023, 1023.5, 1023.996, 1024, 10240)


def test_bytes_have_the_same_words_in_the_browser(page: Any) -> None:
    values = [sign * number for number in numbers(47) for sign in (1, -1)]
    assert said_by_browser(page, "bytesText", values) == [bytes_text(value) for value in values]


def test_changes_have_the_same_words_in_the_browser(page: Any) -> None:
    values = [sign * number for number in numbers(47)[::4] for sign in (1, -1)]
    assert said_by_browser(page, "deltaText", values) == [delta_text(value) for value in values]


def test_times_have_the_same_words_in_the_browser(page: Any) -> None:
    values = [*numbers(40), *range(0, 20_000, 7), *(10**k + near for k in range(3, 9) for near in range(-600, 600))]
    assert said_by_browser(page, "durationText", values) == [duration_text(value) for value in values]


def test_neighbouring_ticks_of_a_time_axis_never_read_the_same(page: Any) -> None:
    """Zoomed far in, 1.2345 s and 1.2346 s are not both '1.23 s', and a tick at 2.5 µs is not labelled 3."""
    page.goto("about:blank")
    load(page, WORDS)
    texts = page.evaluate(
        """(axes) => axes.map(([step, first]) => [0, 1, 2, 3, 4].map((k) => {
            const place = (first + k) * step;
            return [place, memviz.words.timeTick(place, step)];
        }))""",
        [[2.5, 1], [25, 100], [100, 12345], [500, 1999], [2500, 399], [0.5, 4000], [250000, 3]],
    )
    units = {"µs": 1.0, "ms": 1e3, "s": 1e6}
    for axis in texts:
        for place, text in axis:
            figure, unit = text.split()
            assert abs(float(figure.replace(",", "")) * units[unit] - place) < 1e-6 * place, (place, text)
        assert len({text for _, text in axis}) == len(axis)


def test_an_event_axis_has_no_tick_between_two_events(page: Any) -> None:
    page.goto("about:blank")
    load(page, WORDS)
    steps = page.evaluate("() => Array.from({ length: 2000 }, (_, i) => memviz.words.roundStep(i / 20, 1))")
    assert all(step == int(step) >= i / 20 for i, step in enumerate(steps))


def test_ticks_between_two_heights_stand_where_they_say_and_differ(page: Any) -> None:
    """From a whole GPU down to one block of it; their base is given to the byte."""
    page.goto("about:blank")
    load(page, WORDS)
    chance = random.Random(_SEED)
    heights = []
    for _ in range(2000):
        span = 2 ** chance.uniform(9, 36)
        bottom = chance.choice([0, chance.uniform(0, 80 * (1 << 30)), chance.uniform(0, 2) * span])
        heights.append((bottom, bottom + span))
    axes = page.evaluate("(all) => all.map(([a, b]) => memviz.words.byteTicksBetween(a, b))", heights)
    units = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}
    for (bottom, top), axis in zip(heights, axes, strict=True):
        ticks = axis["ticks"]
        assert 1 <= len(ticks) <= 7, (bottom, top)
        assert axis["from"] == int(axis["from"]) <= bottom
        unit = 1024 ** units[ticks[-1]["text"].split()[1]]
        for tick in ticks:
            assert bottom - 1 <= tick["value"] <= top + 1
            figure = float(tick["text"].split()[0].replace(",", ""))
            assert figure * unit + axis["from"] == pytest.approx(tick["value"], abs=1e-6 * unit)
            assert len(tick["text"]) <= 10
            assert tick["text"].startswith("+") == (axis["from"] > 0)


def test_a_long_name_loses_its_middle_and_keeps_what_tells_it_from_others(page: Any) -> None:
    page.goto("about:blank")
    load(page, WORDS)
    names = ["short", "exactly-ten", "profile_of_a_long_run_fp32", "profile_of_a_long_run_bf16", "🟦" * 30]
    cut = page.evaluate("(names) => names.map((name) => memviz.words.cutMiddle(name, 11))", names)
    assert cut == ["short", "exactly-ten", "profi…_fp32", "profi…_bf16", "🟦" * 5 + "…" + "🟦" * 5]
