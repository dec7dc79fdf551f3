"""What the house tests look at: the files that are, or would be, part of the repository."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def files() -> tuple[str, ...]:
    """Tracked files, and new ones that git does not ignore, so that a test speaks up before the commit."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout to know which files belong to the project")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(sorted(name for name in listed if name and (ROOT / name).exists()))


def python_files() -> tuple[str, ...]:
    return tuple(name for name in files() if name.endswith(".py"))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
