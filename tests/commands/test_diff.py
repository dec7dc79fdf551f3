"""`diff`: what differs, a gate for a peak that grew, and the text of a pull request comment."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from memviz.commands.diff import code, plain
from tests.commands.answers import EVENTS, answer, written
from tests.facts import missing
from tests.marks import slow, slow_rows
from tests.ranks.files import write_ranks
from tests.real import FOLDER, requires_real
from tests.second_process import memviz
from tests.traces import MiB, alloc, event, frame, snapshot


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
    assert (missing(done.stderr, "larger.pickle", "+2.93 KiB", "75 %") == []) == bool(status)
    assert memviz("diff", larger, small, "--max-growth", allowed).returncode == 0, "shrinking is never growth"


@pytest.mark.parametrize("allowed", ["nan%", "inf%", "1e400%", "-5%", "-3"])
def test_what_is_allowed_is_a_share_or_a_size(small: Path, larger: Path, allowed: str) -> None:
    done = memviz("diff", small, larger, f"--max-growth={allowed}")
    assert done.returncode == 2
    assert f"'{allowed}' is not a percentage or a size, such as 5% or 200MiB" in done.stderr


def test_one_that_ran_out_of_memory_is_no_gain(small: Path, tmp_path: Path) -> None:
    ran_out = written(tmp_path, "ran-out.pickle", [EVENTS[0], event("oom", 0, 1 << 40)])
    done = memviz("diff", small, ran_out, "--max-growth", "0%")
    assert done.returncode == 1
    assert missing(done.stdout, "event 1", "ran out of memory") == []
    assert missing(done.stderr, "ran-out.pickle", "small.pickle", "event 1", "ran out of memory") == []
    sides = answer("diff", small, ran_out)
    assert [sides[side]["ran_out_at_event"] for side in "ab"] == [None, 1]
    for pair in ((ran_out, small), (ran_out, ran_out)):
        assert memviz("diff", *pair, "--max-growth", "1GiB").returncode == 0, "the first did as well"


@requires_real
def test_a_real_pair_adds_up_to_the_byte() -> None:
    found = answer("diff", FOLDER / "train-complete.pickle", FOLDER / "train-mixed-precision.pickle", "--top", 5)
    assert found["delta_bytes"] == 977167528 - 682735240
    assert sum(each["delta_bytes"] for each in found["rows"]) + found["rest_bytes"] == found["delta_bytes"]


def saved(folder: Path, name: str, *sizes: int, function: str = "forward") -> Path:
    path = folder / name
    events: list[Any] = [
        alloc(at << 30, size * MiB, frames=[frame(function, "model.py", at)]) for at, size in enumerate(sizes) if size
    ]
    path.write_bytes(pickle.dumps(snapshot(events)))
    return path


def comment(*arguments: Any) -> str:
    done = memviz("diff", *arguments, "--markdown")
    assert done.returncode in (0, 1), done.stderr
    return str(done.stdout)


def test_the_three_largest_causes_and_the_rest_add_up(tmp_path: Path) -> None:
    base, head = saved(tmp_path, "base.pickle", 10, 20, 30, 40), saved(tmp_path, "head.pickle", 10, 21, 33, 45, 7)
    text = comment(base, head, "--max-growth", "5%", "--link", "https://host/space?trace=a")
    assert text.splitlines()[2:] == [
        "|  | trace | live at the peak | peak reserved | change from A |",
        "| --- | --- | ---: | ---: | ---: |",
        "| A | ` base.pickle ` | 100 MiB | not known | baseline |",
        "| B | ` head.pickle ` | 116 MiB | not known | +16.0 MiB, 16 % |",
        "",
        "| from A to B | A | B | change |",
        "| --- | ---: | ---: | ---: |",
        "| ` model.py:4 forward ` | 0 B | 7.00 MiB | +7.00 MiB |",
        "| ` model.py:3 forward ` | 40.0 MiB | 45.0 MiB | +5.00 MiB |",
        "| ` model.py:2 forward ` | 30.0 MiB | 33.0 MiB | +3.00 MiB |",
        "| everything else | 30.0 MiB | 31.0 MiB | +1.00 MiB |",
        "| **peak** | 100 MiB | 116 MiB | +16.0 MiB |",
        "",
        "**The peak of B grew by more than allowed.**",
        "",
        "[Open it in memviz](https://host/space?trace=a)",
        "",
    ]
    assert text.startswith("### head peaks 16.0 MiB higher than base.")


@pytest.mark.parametrize("evil", ["`x` | **b** | @team", "``` <img src=x> ```", "a\n\n# heading", "[x](https://evil)"])
def test_names_from_a_file_stay_in_their_code_span(tmp_path: Path, evil: str) -> None:
    base, head = saved(tmp_path, "base.pickle", 1), saved(tmp_path, "head.pickle", 2, function=evil)
    lines = [line for line in comment(base, head).splitlines() if "model.py" in line and line.startswith("|")]
    assert len(lines) == 2
    for line in lines:
        cells = line.replace("\\|", "").split(" | ")
        assert len(cells) == 4
        fence = cells[0].removeprefix("| ").partition(" ")[0]
        assert set(fence) == {"`"} and cells[0].endswith(f" {fence}") and cells[0].count(fence) == 2


def test_marks_of_markup_are_escaped_and_a_link_leads_to_a_page_and_nowhere_else(tmp_path: Path) -> None:
    assert plain("*a* [b](c) @all <i>") == r"\*a\* \[b\]\(c\) &#64;all \<i\>"
    assert code("a``b|c") == r"``` a``b\|c ```"
    base = saved(tmp_path, "base.pickle", 1)
    for wrong in ("javascript:alert(1)", "https://a b", "https://a)(x"):
        assert memviz("diff", base, base, "--markdown", "--link", wrong).returncode == 2
    assert memviz("diff", base, base, "--markdown", "--json").returncode == 2
    base = saved(tmp_path, "base.pickle", 10)
    assert missing(comment(base, base), "peaks", "allocations") == []


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The second keeps 32 MiB more on rank 3, and has rank 4 as well."""
    folder = tmp_path_factory.mktemp("jobs")
    return write_ranks(folder / "base", 4, rank1=2 * MiB), write_ranks(
        folder / "head", 5, rank1=2 * MiB, rank3=32 * MiB
    )


@pytest.mark.parametrize("by", ["site", *slow("category")])
def test_two_jobs_add_up_by_rank_by_group_and_by_cause(jobs: tuple[Path, Path], by: str) -> None:
    found = answer("diff", *jobs, "--by", by, "--top", 1)
    assert found["delta_bytes"] == found["b_bytes"] - found["a_bytes"] == 32 * MiB
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2, 3], "only the ranks of both are summed"
    assert [one["ranks"] for one in found["groups"]] == [[3], [0, 2], [1]]
    for part in (found["ranks"], found["groups"]):
        for size in ("a_bytes", "b_bytes", "delta_bytes"):
            assert sum(one[size] for one in part) == found[size]
    for one in (found, *found["ranks"], *found["groups"]):
        assert sum(row["delta_bytes"] for row in one["rows"]) + one["rest_bytes"] == one["delta_bytes"]
    assert (found["a"]["alone"], found["b"]["alone"]) == ([], [4])
    if by == "site":
        assert found["rows"] == [{"site": "train.py:99 cache", "delta_bytes": 32 * MiB}]


@pytest.mark.parametrize(("allowed", "status"), [("31MiB", 1), ("32MiB", 0), *slow_rows(("5%", 1), ("30%", 0))])
def test_the_gate_holds_for_each_rank(jobs: tuple[Path, Path], allowed: str, status: int) -> None:
    done = memviz("diff", *jobs, "--max-growth", allowed)
    assert done.returncode == status
    assert (missing(done.stderr, "Rank 3", "+32.0 MiB", "27 %") == []) == bool(status)
    assert "Only in head: rank 4." in done.stdout


@pytest.mark.slow
def test_the_gate_does_not_pass_a_rank_that_is_gone_or_ran_out(jobs: tuple[Path, Path], tmp_path: Path) -> None:
    gone = memviz("diff", *reversed(jobs), "--max-growth", "5%")
    assert gone.returncode == 2
    assert "rank 4" in gone.stderr
    head = shutil.copytree(jobs[0], tmp_path / "head")
    written(head, "run.rank0.pickle", [EVENTS[0], event("oom", 0, 1 << 40)])
    done = memviz("diff", jobs[0], head, "--max-growth", "5%")
    assert (done.returncode, memviz("diff", jobs[0], head).returncode) == (1, 0)
    assert missing(done.stderr, "Rank 0", "ran out of memory") == []


@pytest.mark.slow
def test_jobs_as_a_comment_and_from_the_table_of_one(jobs: tuple[Path, Path], tmp_path: Path) -> None:
    lines = comment(*jobs, "--max-growth", "5%").splitlines()
    assert lines[2:8] == [
        "| ranks | A | B | change | largest site |",
        "| --- | ---: | ---: | ---: | --- |",
        "| Rank 3 | 120 MiB | 152 MiB | +32.0 MiB | ` +32.0 MiB train.py:99 cache ` |",
        "| Ranks 0, 2 | 240 MiB | 240 MiB | +0 B |  |",
        "| Rank 1 | 122 MiB | 122 MiB | +0 B |  |",
        "| **sum** | 482 MiB | 514 MiB | +32.0 MiB |  |",
    ]
    assert lines[-2] == r"**Rank 3 grew by more than allowed: +32.0 MiB \(27 %\).**"
    assert memviz("ranks", jobs[0], "-o", tmp_path / "base.parquet").returncode == 0
    assert answer("diff", tmp_path / "base.parquet", jobs[1])["ranks"] == answer("diff", *jobs)["ranks"]


@pytest.mark.slow
def test_jobs_that_cannot_be_compared_are_refused(jobs: tuple[Path, Path], small: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    refusals = {
        (jobs[0], small): "Compare two folders, or files of one rank each.",
        (*jobs, jobs[0]): "two jobs, not 3.",
        (*jobs, "--by", "module"): "Jobs are compared by site or category.",
        (jobs[0], elsewhere): "There is no snapshot in",
    }
    saved(elsewhere, "rank9.pickle", 1)
    saved_alone = memviz("diff", jobs[0], elsewhere)
    assert (saved_alone.returncode, "no rank in common" in saved_alone.stderr) == (2, True)
    (elsewhere / "rank9.pickle").unlink()
    for asked, reason in refusals.items():
        done = memviz("diff", *asked)
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr
