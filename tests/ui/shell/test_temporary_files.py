"""Tests of files made for a visitor: their names, failed writes, and pages that are kept for a while."""

import time
from pathlib import Path

import pytest

from memviz.errors import UsageError
from memviz.ui.shell import temporary_files
from memviz.ui.shell.temporary_files import (
    Exports,
    drop_page,
    file_stem,
    file_with,
    keep_page,
    kept_page,
    table_writer,
    text_writer,
)


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
    assert (
        Path(file_with("page.html", text_writer(lambda: "half a sign: \ud800"))).read_text(encoding="utf-8")
        == "half a sign: ?"
    )


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))

    def fails(path: Path) -> None:
        path.write_text("a part")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        file_with("part.html", fails)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_page_is_kept_where_the_owner_allows_it_until_its_link_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.delenv(temporary_files.LINKS_SETTING, raising=False)
    write = text_writer(lambda: "a page")
    with pytest.raises(UsageError, match="disabled on this server"):
        keep_page(write, "a")
    monkeypatch.setenv(temporary_files.LINKS_SETTING, "2")
    name, other = keep_page(write, "a"), keep_page(write, "a")
    assert name != other and len(name) == 40
    path = kept_page(name)
    assert path is not None and path.read_text() == "a page"
    # A name from an address leads nowhere else.
    for wrong in ("", ".", "..", f"../{path.parent.name}/{name}", name[:-1], name.swapcase()):
        assert kept_page(wrong) is None
    drop_page(other)
    assert kept_page(other) is None
    Exports().forget()
    assert kept_page(name) == path
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * 3600 + 1)
    assert kept_page(name) is None
    Exports().forget()
    assert not path.exists()


def test_kept_pages_are_bounded_for_all_and_for_each_visitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setenv(temporary_files.LINKS_SETTING, "1")
    monkeypatch.setattr(temporary_files, "MOST_OF_VISITOR", 2)
    first = keep_page(text_writer(lambda: "x"), "a")
    keep_page(text_writer(lambda: "x"), "a")
    with pytest.raises(UsageError, match="You have reached your limit"):
        keep_page(text_writer(lambda: "x"), "a")
    keep_page(text_writer(lambda: "x"), "b")
    monkeypatch.setattr(temporary_files, "MOST_KEPT", 3)
    with pytest.raises(UsageError, match="This server has reached its limit"):
        keep_page(text_writer(lambda: "x"), "c")
    drop_page(first)
    monkeypatch.setattr(temporary_files, "MOST_BYTES_OF_VISITOR", 5)
    with pytest.raises(UsageError, match="You have reached your limit"):
        keep_page(text_writer(lambda: "12345"), "a")
    assert len(list((tmp_path / "memviz-shared").iterdir())) == 2


def test_the_table_of_rows_leaves_out_what_is_no_cell_and_writes_no_formula(tmp_path: Path) -> None:
    table_writer(lambda: [{"a": "=1+1", "b": 2, "c": [1]}, {"a": "x", "b": None, "c": None}])(
        path := tmp_path / "t.csv"
    )
    assert path.read_text() == "a,b\n'=1+1,2\nx,\n"
