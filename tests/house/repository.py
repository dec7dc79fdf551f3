"""The files that the house tests check: those in the repository, and new ones that git does not ignore."""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Function:
    name: str
    lines: int
    positional: tuple[str, ...]


@dataclass(frozen=True)
class Outline:
    """The parts of a file that the rules need."""

    imports: tuple[ast.Import | ast.ImportFrom, ...]
    functions: tuple[Function, ...]
    top_level_classes: tuple[str, ...]
    docstrings: tuple[str, ...]


@cache
def outline_of(name: str) -> Outline:
    return outline(text_of(name))


def outline(source: str) -> Outline:
    module = ast.parse(source)
    nodes = list(statements(module))
    return Outline(
        tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)),
        tuple(_function(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)),
        tuple(node.name for node in module.body if isinstance(node, ast.ClassDef)),
        tuple(
            node.value.value
            for node in nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ),
    )


def statements(module: ast.Module) -> Iterator[ast.AST]:
    """Yield statements at all depths, without their expressions, which are most nodes and hold no statements."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, field, ())


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    positional = tuple(each.arg for each in (*node.args.posonlyargs, *node.args.args))
    return Function(node.name, (node.end_lineno or node.lineno) - node.lineno + 1, positional)
