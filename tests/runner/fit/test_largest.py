"""The largest values that fit: exact for any peak, in few predictions where it is nearly linear; and a grid of them."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.runner.fit.largest import Largest, SearchStopped, grid_json, grid_of, largest_that_fits

GiB = 1 << 30
SEGMENTS = (
    *(3560, 3264, 3524, 3770, 4028, 4270, 4534, 3762, 4644, 5148, 5594, 5260, 5650, 6050, 6406, 6784, 7172, 7528),
    *(7906, 8274, 8670, 9028, 9420, 9776, 10168, 10536, 10920, 11278, 11680, 12040, 10472, 10770, 11110, 11406),
    *(11720, 12042, 12380, 12674, 12980, 13286, 13614, 13928),
)
"""MiB that two layers of Llama reserve with 1, 2 ... sequences of 128 tokens, predicted: where a buffer of a batch
begins to fit into a segment that was too small or too large before, the peak falls."""


class Machine:
    """A predictor stand-in that records the values it is called with."""

    def __init__(self, peak: object, usable: int, refused_from: int = 1 << 60) -> None:
        self.peak, self.usable, self.refused_from = peak, usable, refused_from
        self.asked: list[int] = []

    def __call__(self, value: int) -> tuple[bool, int] | str:
        assert value not in self.asked, "asked twice"
        self.asked.append(value)
        if value >= self.refused_from:
            return f"{value} is too long."
        peak = self.peak(value)
        return peak <= self.usable, peak


@given(
    at_rest=st.integers(0, 20 * GiB),
    slope=st.integers(1 << 10, 4 * GiB),
    floor=st.integers(0, 24 * GiB),
    first=st.integers(1, 50),
)
def test_it_fits_and_the_next_does_not(at_rest: int, slope: int, floor: int, first: int) -> None:
    """An optimizer's own peak is a floor under the line of the activations."""
    machine = Machine(lambda value: max(floor, at_rest + slope * value), 24 * GiB)
    found = largest_that_fits(machine, machine.usable, first)
    if max(floor, at_rest + slope) > machine.usable:
        assert found is None
    else:
        assert found == Largest((machine.usable - at_rest) // slope, True, len(machine.asked))


def test_below_a_value_that_does_not_fit_smaller_ones_that_the_model_refuses_are_passed_over() -> None:
    """Gradient accumulation into 8 micro-batches refuses smaller batches."""
    asked: list[int] = []

    def ask(value: int) -> tuple[bool, int] | str:
        asked.append(value)
        return "a batch of 8 or more" if value < 8 else (value <= 21, value * GiB)

    assert largest_that_fits(ask, 21 * GiB, 64) == Largest(21, True, len(asked))


def test_where_the_search_is_to_end_the_largest_until_then_is_the_answer() -> None:
    asked: list[int] = []

    def ask(value: int) -> tuple[bool, int] | str:
        asked.append(value)
        if len(asked) == 3:
            raise SearchStopped
        return value <= 1000, value

    assert largest_that_fits(ask, 1000) == Largest(asked[1], False, 2, is_stopped=True)
    asked.clear()

    def refuse(value: int) -> tuple[bool, int] | str:
        raise SearchStopped

    assert largest_that_fits(refuse, 1000) is None


@given(at_rest=st.integers(GiB, 12 * GiB), slope=st.integers(1 << 20, 2 * GiB))
def test_a_line_takes_six_predictions_at_most(at_rest: int, slope: int) -> None:
    machine = Machine(lambda value: at_rest + slope * value, 24 * GiB)
    assert largest_that_fits(machine, machine.usable) is not None
    assert len(machine.asked) <= 6


@pytest.mark.parametrize("border", [3, 7, 13, 22, 29, 39])
def test_a_floor_that_rises_slowly_at_first_takes_six_predictions_at_most(border: int) -> None:
    """The slope between 1 and 2 misleads, as with the optimizer step in backward; peaks are rounded to segments."""

    def peak(value: int) -> int:
        exact = max(3700 + 38 * value, 3200 + 139 * value)
        return -(-exact // 20) * 20 << 20

    machine = Machine(peak, peak(border))
    found = largest_that_fits(machine, machine.usable)
    assert found is not None
    assert machine.peak(found.value) <= machine.usable < machine.peak(found.value + 1)
    assert len(machine.asked) <= 6


@given(st.lists(st.integers(0, 5 * GiB), min_size=3, max_size=40), st.integers(1, 39))
def test_steps_of_any_size_are_no_trouble(steps: list[int], first: int) -> None:
    """Blocks are rounded and segments reserved, so a real peak goes up by jumps."""
    peaks = [sum(steps[: number + 1]) for number in range(len(steps))]
    machine = Machine(lambda value: peaks[min(value, len(peaks)) - 1] + (value >= len(peaks)) * 100 * GiB, 24 * GiB)
    fitting = [value for value in range(1, len(peaks) + 1) if machine.peak(value) <= machine.usable]
    found = largest_that_fits(machine, machine.usable, first)
    assert (found.value if found else 0) == max(fitting, default=0)


def test_a_peak_that_falls_here_and_there_by_segments_takes_seldom_more_than_six() -> None:
    counts = []
    for usable in SEGMENTS[:39]:
        more = (SEGMENTS[-1] - SEGMENTS[0]) / len(SEGMENTS)
        machine = Machine(
            lambda value, more=more: SEGMENTS[value - 1] if value <= 42 else int(SEGMENTS[-1] + more * (value - 42)),
            usable,
        )
        found = largest_that_fits(machine, usable)
        counts.append(len(machine.asked))
        if found is not None:
            assert machine.peak(found.value) <= usable < machine.peak(found.value + 1)
    assert max(counts) <= 7
    assert sum(count > 6 for count in counts) <= 4


def test_what_fits_because_segments_are_given_back_is_found_too() -> None:
    """A tiny model on a T4: 68 thousand sequences fit, 27 GB without a limit, and the line ends at 38 thousand."""
    asked: list[int] = []

    def ask(value: int) -> tuple[bool, int]:
        asked.append(value)
        return value <= 67_840, (23 << 20) + 402_000 * value

    assert largest_that_fits(ask, 15_558_519_030) == Largest(67_840, True, len(asked))
    assert len(asked) <= 25


def test_a_value_that_the_model_does_not_take_does_not_fit() -> None:
    """GPT-2 has 1,024 positions and no more."""
    machine = Machine(lambda value: value << 20, 24 * GiB, refused_from=1025)
    found = largest_that_fits(machine, machine.usable)
    assert found is not None
    assert (found.value, found.next_fails, found.refused) == (1024, True, "1025 is too long.")
    # Memory that does not grow ends without a border.
    endless = largest_that_fits(Machine(lambda value: GiB, 24 * GiB), 24 * GiB)
    assert endless is not None and not endless.next_fails


class Grown:
    """Memory that grows with tokens, and a table that grows with the square of a sequence."""

    def __init__(self, longest: int = 10**6) -> None:
        self.longest = longest
        self.asked: list[tuple[int, int]] = []

    def peak(self, batch: int, sequence: int) -> int:
        return 2 * GiB + batch * (sequence * (1 << 20) + sequence * sequence)

    def __call__(self, values: Mapping[str, int]) -> tuple[bool, int] | str:
        batch, sequence = values["batch"], values["sequence"]
        self.asked.append((batch, sequence))
        if sequence > self.longest:
            return f"The longest is {self.longest}."
        return self.peak(batch, sequence) <= 24 * GiB, self.peak(batch, sequence)


def test_every_border_is_the_last_batch_that_fits() -> None:
    machine = Grown()
    grid = grid_of(machine, 1024, 24 * GiB)
    assert [row.sequence for row in grid.rows] == [256, 512, 1024, 2048, 4096]
    for row in grid.rows:
        fitting = [batch for batch in range(1, 200) if machine.peak(batch, row.sequence) <= 24 * GiB]
        assert (row.largest, row.is_exact) == (max(fitting), True)
        assert all(peak == machine.peak(batch, row.sequence) for batch, peak in row.peaks.items())
    # Every column up to the border, and one beyond it.
    assert grid.batches[0] == 1 and grid.batches[-1] > max(row.largest for row in grid.rows)
    for row in grid.rows:
        assert {batch for batch in grid.batches if batch <= row.largest} <= set(row.peaks)
    assert len(machine.asked) == len(set(machine.asked)) <= 60


def test_a_sequence_that_the_model_does_not_take_has_no_row_and_where_not_even_one_fits_the_border_is_nothing() -> None:
    grid = grid_of(Grown(longest=1024), 1024, 24 * GiB)
    assert [row["sequence"] for row in grid_json(grid)["rows"]] == [256, 512, 1024]
    assert [row.largest for row in grid_of(Grown(), 40_000, 24 * GiB).rows][-1] == 0
