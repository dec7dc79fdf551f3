"""The top level that a visitor sees is fixed; tool settings sit in pyproject.toml."""

from tests.house.repository import files

FIXED = {"app.py", "memviz", "optimizations", "sample_traces", "tests", "requirements.txt", "README.md"}
FIXED |= {"pyproject.toml", "setup.py"}
MAY_COME = {"LICENSE"}


def visible_names() -> set[str]:
    names = {name.split("/")[0] for name in files()}
    return {name for name in names if not name.startswith(".")}


def test_what_the_house_promises_and_nothing_else_stands_at_the_top_level():
    assert visible_names() - FIXED - MAY_COME == set()
    assert FIXED - visible_names() == set()
