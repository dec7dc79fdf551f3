"""Lint, format, types and the fixed top level; and sizes and habits that may only shrink, as `budgets.toml` says."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

import pytest

from tests.house.journeys import JOURNEYS
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


SMALL = 120
"""Lines: a module of fewer, with one importer in its own folder, belongs into that importer."""
RELATIVE_CLAUSE = re.compile(r"(What|Of|By|Whether|Whoever|Nobody)\b")


@cache
def budgets() -> dict[str, int]:
    return tomllib.loads(text_of("tests/house/budgets.toml"))


def product() -> list[str]:
    return [name for name in python_files() if name.split("/")[0] in ("memviz", "optimizations", "sample_traces")]


def package() -> list[str]:
    """Return the files of the package, without optimizations and sample programs, which users copy alone."""
    return [name for name in product() if name.startswith("memviz/")]


def line_count(names: list[str]) -> int:
    return sum(text_of(name).count("\n") for name in names)


def beyond_budget(**sizes: int) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size > budgets()[name]}


def test_the_product_and_its_tests_do_not_grow() -> None:
    tests = [name for name in python_files() if name.startswith("tests/")]
    sizes = {"modules": len(product()), "product_lines": line_count(product()), "test_lines": line_count(tests)}
    assert beyond_budget(**sizes) == {}, "Delete lines, or raise tests/house/budgets.toml and say why there."


def test_small_modules_with_one_importer_do_not_become_more() -> None:
    small = small_modules_with_one_importer()
    assert beyond_budget(small_single_importer_modules=len(small)) == {}, small


def small_modules_with_one_importer() -> list[str]:
    importers: dict[str, set[str]] = defaultdict(set)
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in package()}
    for path in modules.values():
        for node in outline_of(path).imports:
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
                for name in names or {node.module} & modules.keys():
                    importers[modules[name]].add(path)
    return sorted(
        name
        for name, (only, *more) in importers.items()
        if not more and PurePosixPath(only).parent == PurePosixPath(name).parent and line_count([name]) < SMALL
    )


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name in package():
        for class_name in outline_of(name).top_level_classes:
            if not class_name.startswith("_"):
                places[class_name].append(name)
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert beyond_budget(repeated_public_classes=len(repeated)) == {}, repeated


def test_docstrings_do_not_begin_with_a_relative_clause() -> None:
    openings = Counter(
        name for name in python_files() for text in outline_of(name).docstrings if RELATIVE_CLAUSE.match(text)
    )
    assert beyond_budget(docstrings_that_begin_with_a_relative_clause=openings.total()) == {}, openings


@pytest.mark.slow
def test_no_journey_enters_more_modules() -> None:
    command = [sys.executable, "-m", "tests.house.journeys"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    entered = {f"modules_entered_by_{name}": len(files) for name, files in json.loads(done.stdout).items()}
    assert entered.keys() == {f"modules_entered_by_{name}" for name in JOURNEYS} and min(entered.values()) > 5
    assert beyond_budget(**entered) == {}
