"""Tests of files made for a visitor: their names, and failed writes."""

from pathlib import Path

import pytest

from memviz.ui.shell.temporary_files import file_stem, file_with, page_file


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("late-start", "late-start"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ('a"; b\r\nc', "a___b__c"),
        ("...", "trace"),
        ("漢" * 100, "漢" * 26),
    ],
)
def test_a_file_is_named_after_its_trace_by_signs_and_a_length_that_every_system_takes(name: str, stem: str) -> None:
    assert file_stem(name) == stem


def test_a_page_is_written_whole_whatever_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    assert Path(page_file("page.html", "half a sign: \ud800")).read_text(encoding="utf-8") == "half a sign: ?"


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))

    def fails(path: Path) -> None:
        path.write_text("a part")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        file_with("part.html", fails)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
