"""How much a run may take, as settings say it and as the machine suggests."""

from __future__ import annotations

from pathlib import Path

import pytest

from memviz.errors import UsageError
from memviz.runner.jobs import limits
from memviz.runner.jobs.limits import machine_bytes, most_bytes, most_seconds

GiB = 1 << 30


@pytest.mark.parametrize(("text", "size"), [("8GiB", 8 * GiB), ("5000000000", 5_000_000_000), ("512 MiB", GiB // 2)])
def test_memory_is_what_the_setting_says(text: str, size: int) -> None:
    assert most_bytes({"MEMVIZ_MAX_RUN_BYTES": text, "SPACE_ID": "ann/memviz"}) == size


@pytest.mark.parametrize("text", ["much", "0", "-1GiB", "nan", "9" * 400])
def test_a_setting_that_is_no_size_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="MEMVIZ_MAX_RUN_BYTES="):
        most_bytes({"MEMVIZ_MAX_RUN_BYTES": text})


def test_a_space_keeps_most_of_its_machine_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "machine_bytes", lambda: 16 * GiB)
    assert (most_bytes({"SPACE_ID": "ann/memviz"}), most_bytes({})) == (4 * GiB, 12 * GiB)
    monkeypatch.setattr(limits, "machine_bytes", lambda: GiB)
    assert most_bytes({"SPACE_ID": "ann/memviz"}) == GiB


def test_a_container_has_what_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given, endless = tmp_path / "memory.max", tmp_path / "old"
    given.write_text("max\n")
    endless.write_text(f"{1 << 62}\n")
    monkeypatch.setattr(limits, "_CONTAINER_LIMITS", (given, endless, tmp_path / "missing"))
    whole = machine_bytes()
    given.write_text(f"{GiB}\n")
    assert machine_bytes() == GiB < whole


def test_seconds_are_what_the_setting_says() -> None:
    assert most_seconds(7, {}) == 7
    assert most_seconds(7, {"MEMVIZ_MAX_RUN_SECONDS": "0.5"}) == 0.5
    for text in ("soon", "0", "inf", "nan"):
        with pytest.raises(UsageError, match="MEMVIZ_MAX_RUN_SECONDS="):
            most_seconds(7, {"MEMVIZ_MAX_RUN_SECONDS": text})
