"""Imports run one way. The table in memviz/README.md is the rule; this holds the code to it."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

import pytest

from tests.house.repository import ROOT, Outline, outline, outline_of, python_files, text_of

HEAVY = {"torch", "plotly", "gradio", "pandas"}
ROW = re.compile(r"^\| `([\w.]+)` \|([^|]*)\|([^|]*)\|$", re.MULTILINE)
ROOM = re.compile(r"^\| `ui/(\w+)` \|([^|]*)\|$", re.MULTILINE)


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
    """Yield the dotted names of all imports in the file, lazy ones included."""
    package = list(PurePosixPath(path).parts[:-1])
    for node in file.imports:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        else:
            above = package[: len(package) - node.level + 1] if node.level else []
            base = [*above, *(node.module or "").split(".")]
            yield from (".".join(filter(None, [*base, name.name])) for name in node.names)


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


@cache
def rooms() -> dict[str, frozenset[str]]:
    """Return the rooms of the page, each with the rooms that it may import."""
    return {room: _quoted(others) for room, others in ROOM.findall(text_of("memviz/README.md"))}


def shut_rooms(path: str, file: Outline) -> list[str]:
    """`app.py` puts all rooms together."""
    pieces = PurePosixPath(path).parts
    if pieces[:2] != ("memviz", "ui") or len(pieces) < 4:
        return []
    entered = {name.split(".")[2] for name in imported(path, file) if name.startswith("memviz.ui.")}
    allowed = rooms()[pieces[2]] | {pieces[2]}
    return [f"{path} imports memviz.ui.{room}" for room in sorted(entered - allowed)]


def circles(arrows: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Return the strongly connected components (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    least: dict[str, int] = {}
    path: list[str] = []
    groups: list[set[str]] = []

    def visit(name: str) -> None:
        order[name] = least[name] = len(order)
        path.append(name)
        for other in arrows[name]:
            if other not in order:
                visit(other)
            if other in path:
                least[name] = min(least[name], least[other])
        if least[name] == order[name]:
            at = path.index(name)
            groups.append(set(path[at:]))
            del path[at:]

    for name in arrows:
        if name not in order:
            visit(name)
    return [group for group in groups if len(group) > 1]


def arrows_of_modules() -> dict[str, set[str]]:
    paths = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in house_files()}

    def module(name: str) -> str:
        while name and name not in paths:
            name = name.rpartition(".")[0]
        return name

    return {
        name: {module(other) for other in imported(path, outline_of(path))} - {name, ""} for name, path in paths.items()
    }


def house_files() -> list[str]:
    return [name for name in python_files() if name.split("/")[0] in {"app.py", "memviz", "optimizations"}]


def test_the_table_has_every_part_no_other_and_no_cycle():
    missing = {part_of(name) for name in house_files()} - set(table())
    assert not missing, f"give them a row in memviz/README.md: {sorted(missing)}"
    named = {part for rule in table().values() for part in rule.parts}
    assert named <= set(table())
    left = {part: set(rule.parts) for part, rule in table().items()}
    while ready := [part for part, needs in left.items() if not needs & set(left)]:
        for part in ready:
            del left[part]
    assert not left


def test_imports_run_one_way():
    faults = [fault for name in house_files() for fault in forbidden(name, outline_of(name))]
    assert not faults, "\n".join(faults)


def test_rooms_of_the_page_import_as_the_table_says():
    pieces = [PurePosixPath(name).parts for name in house_files()]
    folders = {part[2] for part in pieces if part[:2] == ("memviz", "ui") and len(part) > 3}
    assert set(rooms()) == folders, "The map (memviz/README.md) has a table with a row for each folder of ui."
    faults = [fault for name in house_files() for fault in shut_rooms(name, outline_of(name))]
    assert not faults, "\n".join(faults)


def test_a_room_that_imports_a_tab_is_named():
    wrong = outline("def lazy():\n    from memviz.ui.explore.state import TABS\nfrom ..run import form")
    for room in ("shell", "html", "components", "compare"):
        path = f"memviz/ui/{room}/x.py"
        assert shut_rooms(path, wrong) == [f"{path} imports memviz.ui.{tab}" for tab in ("explore", "run")]


def test_no_modules_import_each_other_in_a_circle():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    short = [{name.rpartition(".")[2] for name in circle} for circle in circles(arrows_of_modules())]
    assert not short, "\n".join(" - ".join(sorted(circle)) for circle in short)


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("memviz/analysis/timeline.py", "import torch", "torch"),
        ("memviz/analysis/timeline.py", "def lazy():\n    import plotly.graph_objects", "plotly"),
        ("memviz/analysis/timeline.py", "from memviz.figures import theme", "memviz.figures"),
        ("memviz/trace/load.py", "from ..analysis import peak", "memviz.analysis"),
        ("memviz/trace/load.py", "from memviz import figures", "memviz.figures"),
        ("memviz/units.py", "import numpy as np", "numpy"),
        ("memviz/figures/plots/peak.py", "import gradio as gr", "gradio"),
        ("optimizations/checkpoint.py", "from memviz.trace import model", "memviz.trace"),
    ],
)
def test_a_wrong_import_is_named(path, source, fault):
    assert forbidden(path, outline(source)) == [f"{path} imports {fault}"]


def test_reading_and_analysing_load_nothing_heavy():
    light = {"trace", "analysis", "ranks", "allocator", "results"}
    modules = [name.removesuffix(".py").replace("/", ".") for name in house_files() if part_of(name) in light]
    assert "memviz.trace.load" in modules
    names = ", ".join(name.removesuffix(".__init__") for name in modules)
    program = f"import sys, {names}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.slow
def test_reports_load_no_gradio():
    program = "import sys, memviz.ui.saved.report, memviz.commands.replay; print('gradio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
