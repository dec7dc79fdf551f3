"""`diff`, as people and scripts use it: what differs, and a gate for a peak that grew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.answers import EVENTS, answer, written
from tests.real import FOLDER, requires_real
from tests.second_process import memviz
from tests.traces import event


def test_diff_names_settings_that_are_known_to_differ_and_no_others(tmp_path: Path) -> None:
    older = written(tmp_path, "older.pickle", EVENTS, allocator_settings={"expandable_segments": False})
    newer = {"expandable_segments": True, "only_newer_files_say": False}
    done = memviz("diff", older, written(tmp_path, "newer.pickle", EVENTS, allocator_settings=newer))
    assert "expandable_segments: False, True" in done.stdout
    assert "only_newer_files_say" not in done.stdout


@pytest.mark.parametrize(
    ("allowed", "status"), [("5%", 1), ("75%", 0), ("3000", 0), ("2999", 1), ("2KiB", 1), ("1MiB", 0)]
)
def test_growth_beyond_what_is_allowed_is_the_exit_status(small: Path, larger: Path, allowed: str, status: int) -> None:
    done = memviz("diff", small, larger, "--max-growth", allowed)
    assert done.returncode == status
    assert ("larger.pickle grew by +2.93 KiB (75 %)" in done.stderr) == bool(status)


@pytest.mark.parametrize("allowed", ["nan%", "inf%", "1e400%", "-5%", "-3"])
def test_what_is_allowed_is_a_share_or_a_size(small: Path, larger: Path, allowed: str) -> None:
    done = memviz("diff", small, larger, f"--max-growth={allowed}")
    assert done.returncode == 2
    assert f"'{allowed}' is neither a percentage nor a size, such as 5% or 200MiB" in done.stderr


def test_one_that_ran_out_of_memory_is_no_gain(small: Path, tmp_path: Path) -> None:
    ran_out = written(tmp_path, "ran-out.pickle", [EVENTS[0], event("oom", 0, 1 << 40)])
    done = memviz("diff", small, ran_out, "--max-growth", "0%")
    assert done.returncode == 1
    assert "ran-out ran out of memory at event 1; its peak is without what was refused." in done.stdout
    assert "ran-out.pickle ran out of memory at event 1, and small.pickle did not" in done.stderr
    sides = answer("diff", small, ran_out)
    assert [sides[side]["ran_out_at_event"] for side in "ab"] == [None, 1]
    for pair in ((ran_out, small), (ran_out, ran_out)):
        assert memviz("diff", *pair, "--max-growth", "1GiB").returncode == 0, "the first did as well"


def test_shrinking_is_never_growth(small: Path, larger: Path) -> None:
    assert memviz("diff", larger, small, "--max-growth", "0%").returncode == 0


@requires_real
def test_a_real_pair_adds_up_to_the_byte() -> None:
    found = answer("diff", FOLDER / "train-complete.pickle", FOLDER / "train-mixed-precision.pickle", "--top", 5)
    assert found["delta_bytes"] == 977167528 - 682735240
    assert sum(each["delta_bytes"] for each in found["rows"]) + found["rest_bytes"] == found["delta_bytes"]
