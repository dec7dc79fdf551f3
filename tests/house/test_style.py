"""Lint, format, types, sizes and the fixed top level; checks run as commands, with the repository's settings."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.house.repository import ROOT, Function, files, outline_of, python_files, text_of

LONGEST_FUNCTION = 80
LONGEST_FILE = 900
MOST_POSITIONAL = 5
MOST_QUICK_STORIES = 7
"""Browser tests that are not slow: one per tab, and a saved page."""

CHECKS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
}
# It knows by their contents what has changed: half a minute the first time, and a second where nothing has.
TYPES = pytest.param(["mypy"], id="mypy", marks=pytest.mark.slow)


@pytest.mark.parametrize("command", [*(pytest.param(each, id=name) for name, each in CHECKS.items()), TYPES])
def test_tool_is_content(command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def functions() -> Iterator[tuple[str, Function]]:
    for name in python_files():
        for function in outline_of(name).functions:
            yield f"{name}:{function.name}", function


def too_long() -> dict[str, int]:
    long = {place: function.lines for place, function in functions() if function.lines > LONGEST_FUNCTION}
    for name in python_files():
        count = text_of(name).count("\n")
        if count > LONGEST_FILE:
            long[name] = count
    return long


def test_functions_and_files_stay_short():
    assert too_long() == {}


def test_the_quick_suite_has_few_stories_in_a_browser():
    """All others there are slow."""
    stories = [each for each in outline_of("tests/browser/test_smoke.py").functions if each.name.startswith("test_")]
    assert len(stories) <= MOST_QUICK_STORIES


def test_no_function_takes_more_than_five_positional_arguments():
    crowded = []
    for place, function in functions():
        names = [name for name in function.positional if name not in ("self", "cls")]
        if len(names) > MOST_POSITIONAL and not place.startswith("tests/"):
            crowded.append(place)
    assert crowded == []


FIXED = {"app.py", "memviz", "optimizations", "sample_traces", "tests", "requirements.txt", "README.md"}
FIXED |= {"pyproject.toml", "setup.py"}
MAY_COME = {"LICENSE"}


def visible_names() -> set[str]:
    names = {name.split("/")[0] for name in files()}
    return {name for name in names if not name.startswith(".")}


def test_what_the_house_promises_and_nothing_else_stands_at_the_top_level():
    assert visible_names() - FIXED - MAY_COME == set()
    assert FIXED - visible_names() == set()
