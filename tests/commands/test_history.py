"""`history`: peaks of files that CI kept, in their order, with what moved them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.commands.answers import answer
from tests.ranks.files import written
from tests.second_process import memviz
from tests.traces import MiB


def predicted(**changed: Any) -> dict[str, Any]:
    """The figures of `predict --json` that are read."""
    categories = changed.pop("by_category", {"parameter": 60 * MiB, "kv_cache": 40 * MiB})
    figures = {
        "card": "NVIDIA A10", "not_known": None, "stopped": None, "out_of_memory": 0, "by_category": categories,
        "peak_requested_bytes": sum(categories.values()), "peak_reserved_bytes": 128 * MiB,
    }  # fmt: skip
    return {**figures, **changed}


def keep(folder: Path, name: str, value: Any, before: str = "") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before + json.dumps(value))
    return path


def test_every_kind_of_file_is_read_in_natural_order_and_its_change_adds_up(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    keep(folder, "run-2-aaaaaaa.json", predicted(), before="epoch 1\nloss 0.5\n")
    keep(folder, "run-10-bbbbbbb.json", predicted(by_category={"parameter": 60 * MiB, "kv_cache": 70 * MiB}))
    first, second = written(tmp_path, "a.pickle"), written(tmp_path, "b.pickle", more=8 * MiB)
    for number, kept in (
        (11, answer("peak", first, "--top", 0)),
        (12, answer("peak", second, "--top", 0)),
        (13, answer("diff", second, first)),
        (14, answer("peak", first, "--by", "category")),
    ):
        keep(folder, f"run-{number}.json", kept)
    written(folder, "run-15.pickle", more=8 * MiB)
    found = answer("history", folder)
    points = {point["name"]: point for point in found["points"]}
    assert list(points) == ["2-aaaaaaa", "10-bbbbbbb", "11", "12", "13", "14", "15"]
    sizes = [100, 130, 120, 128, 120, 120, 128]
    assert [point["peak_bytes"] for point in found["points"]] == [size * MiB for size in sizes]
    assert points["10-bbbbbbb"]["categories"] == [{"category": "KV cache", "delta_bytes": 30 * MiB}]
    assert points["12"]["sites"] == [{"site": "train.py:99 cache", "delta_bytes": 8 * MiB}]
    assert points["13"]["sites"] == [{"site": "train.py:99 cache", "delta_bytes": -8 * MiB}]
    assert [point["name"] for point in found["points"] if point["is_move"]] == ["10-bbbbbbb", "11", "12", "13", "15"]
    for point in found["points"]:
        for rows in (point["sites"], point["categories"]):
            assert not rows or sum(row["delta_bytes"] for row in rows) == point["delta_bytes"]


def test_a_row_that_one_file_leaves_out_is_no_cause(tmp_path: Path) -> None:
    """`--top 1` cuts the rows: of what is below, the change is not known."""
    first, second = written(tmp_path, "a.pickle"), written(tmp_path, "b.pickle", more=24 * MiB)
    keep(tmp_path / "kept", "1.json", answer("peak", first, "--top", 1))
    keep(tmp_path / "kept", "2.json", answer("peak", second, "--top", 1))
    point = answer("history", tmp_path / "kept")["points"][1]
    assert (point["delta_bytes"], point["sites"]) == (24 * MiB, [])
    assert "not recorded" in memviz("history", tmp_path / "kept").stdout


def test_what_is_skipped_is_named_with_its_reason(tmp_path: Path) -> None:
    keep(tmp_path, "1.json", predicted())
    keep(tmp_path, "2.json", predicted(stopped={"where": "train.py:3"}))
    keep(tmp_path, "3.json", {"loss": 0.5})
    keep(tmp_path, "4.json", predicted(peak_requested_bytes=-5))
    (tmp_path / "5.json").write_text("[" * 100_000)
    (tmp_path / "6.pickle").write_bytes(b"")
    (tmp_path / "notes\x1b[2J.txt").write_text("x")
    skipped = {one["file"]: one["reason"] for one in answer("history", tmp_path)["skipped"]}
    assert list(skipped) == ["2.json", "3.json", "4.json", "5.json", "6.pickle", "notes\x1b[2J.txt"]
    expected = (
        "stopped early",
        "neither a snapshot nor",
        "not a number of bytes",
        "",
        "empty",
        "Not a snapshot or JSON file",
    )
    for reason, words in zip(skipped.values(), expected, strict=True):
        assert words in reason
    assert "\x1b" not in memviz("history", tmp_path).stdout


def test_another_card_is_not_compared(tmp_path: Path) -> None:
    keep(tmp_path, "1.json", predicted())
    keep(tmp_path, "2.json", predicted(card="NVIDIA L4", by_category={"parameter": MiB}))
    point = answer("history", tmp_path)["points"][1]
    assert (point["is_comparable"], point["is_move"], point["categories"]) == (False, False, [])


def test_order_by_time_and_by_commit(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for number, (name, size) in enumerate({"aaaaaaa": 3, "bbbbbbb": 2, "ccccccc": 1}.items()):
        path = keep(folder, f"{name}/predict.json", predicted(by_category={"parameter": size * MiB}))
        os.utime(path, (100 - number, 100 - number))
    assert [one["name"] for one in answer("history", folder)["points"]] == ["aaaaaaa", "bbbbbbb", "ccccccc"]
    by_time = answer("history", folder, "--order", "time")["points"]
    assert [one["name"] for one in by_time] == ["ccccccc", "bbbbbbb", "aaaaaaa"]
    log = tmp_path / "log.txt"
    log.write_text("aaaaaaa123 Newest\nccccccc123 Oldest\n")
    found = answer("history", folder, "--commits", log)
    assert [one["commit"] for one in found["points"]] == ["ccccccc123 Oldest", "aaaaaaa123 Newest"]
    assert [one["file"] for one in found["skipped"]] == ["bbbbbbb/predict.json"]


def test_the_page_escapes_what_files_say(tmp_path: Path) -> None:
    folder, page = tmp_path / "kept", tmp_path / "history.html"
    keep(folder, "1.json", predicted())
    keep(folder, "2<img src=x>.json", predicted(by_category={"<script>alert(1)</script>": 300 * MiB}))
    assert memviz("history", folder, "--html", page).returncode == 0
    text = page.read_text()
    assert text.count("<circle") == 2
    assert "&lt;img src=x&gt;" in text and "&lt;script&gt;alert(1)" in text
    assert "<img" not in text and "<script>alert" not in text
    done = memviz("history", folder, "--html", tmp_path / "page.pickle")
    assert (done.returncode, ".html" in done.stderr) == (2, True)


@pytest.mark.parametrize(("files", "words"), [((), "There is no snapshot"), (("x.json",), "No file of")])
def test_a_folder_without_figures_is_refused(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    for name in files:
        keep(tmp_path, name, {})
    done = memviz("history", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
