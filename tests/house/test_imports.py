"""Imports run one way. The table in memviz/README.md is the rule; this holds the code to it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

import pytest

from tests.house.repository import ROOT, Outline, outline, outline_of, python_files, text_of

HEAVY = {"torch", "plotly", "gradio", "pandas"}
ROW = re.compile(r"^\| `([\w.]+)` \|([^|]*)\|([^|]*)\|$", re.MULTILINE)


@dataclass(frozen=True)
class Rule:
    parts: frozenset[str]
    libraries: frozenset[str]


@cache
def table() -> dict[str, Rule]:
    rows = ROW.findall(text_of("memviz/README.md"))
    return {part: Rule(_quoted(parts), _quoted(libraries)) for part, parts, libraries in rows}


def _quoted(cell: str) -> frozenset[str]:
    return frozenset(re.findall(r"`([^`]+)`", cell))


def part_of(path: str) -> str:
    """memviz/trace/load.py -> trace; memviz/units.py -> units; optimizations/x.py -> optimizations."""
    pieces = PurePosixPath(path).parts
    if pieces[0] != "memviz":
        return pieces[0]
    return pieces[1].removesuffix(".py")


def imported(path: str, file: Outline) -> Iterator[str]:
    """Dotted names, wherever in the file the import stands: a lazy import is one too."""
    package = list(PurePosixPath(path).parts[:-1])
    for node in file.imports:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        else:
            above = package[: len(package) - node.level + 1] if node.level else []
            base = [*above, *(node.module or "").split(".")]
            yield from (".".join(filter(None, [*base, each.name])) for each in node.names)


def forbidden(path: str, file: Outline) -> list[str]:
    part = part_of(path)
    rule = table()[part]
    faults = set()
    for name in imported(path, file):
        pieces = name.split(".")
        if pieces[0] == "memviz" and len(pieces) > 1:
            allowed = pieces[1] in {part, *rule.parts}
        elif pieces[0] == "optimizations":
            allowed = "optimizations" in {part, *rule.parts}
        else:
            allowed = pieces[0] in sys.stdlib_module_names or pieces[0] in rule.libraries
        if not allowed:
            faults.add(".".join(pieces[:2]) if pieces[0] == "memviz" else pieces[0])
    return [f"{path} imports {name}" for name in sorted(faults)]


def house_files() -> list[str]:
    return [name for name in python_files() if name.split("/")[0] in {"app.py", "memviz", "optimizations"}]


def test_every_part_has_a_row_in_the_table():
    missing = {part_of(name) for name in house_files()} - set(table())
    assert not missing, f"give them a row in memviz/README.md: {sorted(missing)}"


def test_imports_run_one_way():
    faults = [fault for name in house_files() for fault in forbidden(name, outline_of(name))]
    assert not faults, "\n".join(faults)


def test_the_table_has_no_cycle():
    left = {part: set(rule.parts) for part, rule in table().items()}
    while ready := [part for part, needs in left.items() if not needs & set(left)]:
        for part in ready:
            del left[part]
    assert not left


def test_the_table_names_only_parts_that_have_a_row():
    named = {part for rule in table().values() for part in rule.parts}
    assert named <= set(table())


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("memviz/analysis/timeline.py", "import torch", "torch"),
        ("memviz/analysis/timeline.py", "def lazy():\n    import plotly.graph_objects", "plotly"),
        ("memviz/analysis/timeline.py", "from memviz.figures import theme", "memviz.figures"),
        ("memviz/trace/load.py", "from ..analysis import peak", "memviz.analysis"),
        ("memviz/trace/load.py", "from memviz import figures", "memviz.figures"),
        ("memviz/units.py", "import numpy as np", "numpy"),
        ("memviz/figures/peak.py", "import gradio as gr", "gradio"),
        ("optimizations/checkpoint.py", "from memviz.trace import model", "memviz.trace"),
    ],
)
def test_a_wrong_import_is_named(path, source, fault):
    assert forbidden(path, outline(source)) == [f"{path} imports {fault}"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("memviz/analysis/peak.py", "import numpy as np\nfrom memviz.trace.model import Trace"),
        ("memviz/trace/load.py", "from . import limits\nfrom .formats import torch_snapshot"),
        ("memviz/figures/peak.py", "import plotly.graph_objects as go\nfrom memviz.analysis.peak import Peak"),
        ("optimizations/checkpoint.py", "from torch.utils.checkpoint import checkpoint"),
    ],
)
def test_a_right_import_passes(path, source):
    assert forbidden(path, outline(source)) == []


def test_reading_and_analysing_load_nothing_heavy():
    light = {"trace", "analysis", "allocator"}
    modules = [name.removesuffix(".py").replace("/", ".") for name in house_files() if part_of(name) in light]
    assert "memviz.trace.load" in modules
    names = ", ".join(name.removesuffix(".__init__") for name in modules)
    program = f"import sys, {names}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_reports_load_no_gradio():
    program = "import sys, memviz.commands.report, memviz.commands.replay; print('gradio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
