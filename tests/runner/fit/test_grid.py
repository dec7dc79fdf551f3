"""Batch and sequence together: each border is exact, and nothing far beyond it is predicted."""

from collections.abc import Mapping

from memviz.runner.fit.largest import grid_json, grid_of

GiB = 1 << 30


class Machine:
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
    machine = Machine()
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


def test_a_sequence_that_the_model_does_not_take_has_no_row() -> None:
    grid = grid_of(Machine(longest=1024), 1024, 24 * GiB)
    assert [row["sequence"] for row in grid_json(grid)["rows"]] == [256, 512, 1024]


def test_where_not_even_one_fits_the_border_is_nothing() -> None:
    grid = grid_of(Machine(), 40_000, 24 * GiB)
    assert [row.largest for row in grid.rows][-1] == 0
