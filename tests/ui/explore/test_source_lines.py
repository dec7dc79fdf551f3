"""Source lines come only from the folder that the owner named, independent of the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from memviz.ui.explore.inspector import SOURCES_SETTING, source_line


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n    x = torch.zeros(3)\n", encoding="utf-8")
    (tmp_path / "secret.py").write_text("password = 1\n", encoding="utf-8")
    return folder


def line(root: Path | str, filename: str, number: int = 1) -> str:
    return source_line(filename, number, {SOURCES_SETTING: str(root)})


def test_a_line_is_of_a_file_in_the_folder_though_that_is_a_link(root):
    assert line(root, "train.py", 2) == "x = torch.zeros(3)"
    assert line(root, str(root / "train.py"), 1) == "import torch"
    (root.parent / "link").symlink_to(root)
    assert line(root.parent / "link", str(root / "train.py")) == "import torch"


def test_off_by_default(root):
    assert source_line(str(root / "train.py"), 1, {}) == ""
    assert line("", str(root / "train.py")) == ""


@pytest.mark.parametrize("name", ["../secret.py", "{outside}", "sub/../../secret.py", "/etc/passwd", "train.py\0", ""])
def test_nothing_outside_the_folder(root, name):
    assert line(root, name.format(outside=root.parent / "secret.py")) == ""


def test_what_is_no_source_or_not_there_gives_nothing(root):
    (root / "innocent.py").symlink_to(root.parent / "secret.py")
    assert line(root, "innocent.py") == ""
    (root / "key.pem").write_text("secret\n", encoding="utf-8")
    assert line(root, "key.pem") == ""
    (root / "dir.py").mkdir()
    assert line(root, "dir.py") == line(root, "gone.py") == line(root / "gone", "train.py") == ""


@pytest.mark.parametrize("number", [0, -1, 99])
def test_a_line_that_is_not_there(root, number):
    assert line(root, "train.py", number) == ""


def test_a_long_line_is_cut_and_odd_bytes_are_shown(root):
    (root / "odd.py").write_bytes(b"x = '\xff" + b"y" * 9000)
    assert line(root, "odd.py").startswith("x = '\N{REPLACEMENT CHARACTER}yyy")
    assert len(line(root, "odd.py")) == 300
