"""The contents of `pip install`: the core works with numpy alone, and all files are within `memviz`."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizations import OPTIMIZATIONS
from tests.house.repository import ROOT
from tests.runner.test_take_away import request_of

pytestmark = pytest.mark.slow

PARTS = ("memviz", "optimizations", "sample_traces")
FILES = ("pyproject.toml", "setup.py", "requirements.txt", "README.md")
LEFT_BY_AN_EARLIER_BUILD = ("memviz/gone.py", "memviz/optimizations/gone.py")


def run(*command: str | Path, cwd: Path | None = None, status: int = 0) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, because a build leaves folders in its source tree."""
    checkout, wheels = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("wheels")
    for part in PARTS:
        shutil.copytree(ROOT / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, checkout)
    for gone in LEFT_BY_AN_EARLIER_BUILD:
        (checkout / "build" / "lib" / gone).parent.mkdir(parents=True, exist_ok=True)
        (checkout / "build" / "lib" / gone).write_text("")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", wheels, checkout)
    (made,) = wheels.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The programs of an environment that has the core and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    # The pip of the tests installs there too, and takes less than to have one there.
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    run(sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet", wheel)
    yield programs
    shutil.rmtree(folder)


def requirements() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_a_wheel_holds_one_name_all_that_the_page_needs_and_nothing_of_before(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"memviz"}
    for part in PARTS:
        ours = [path for path in (ROOT / part).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        inside = {f"memviz/{path.relative_to(ROOT)}".replace("memviz/memviz/", "memviz/") for path in ours}
        assert inside <= set(names)
    assert not set(LEFT_BY_AN_EARLIER_BUILD) & set(zipfile.ZipFile(wheel).namelist())
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if name.endswith(".py"):
                text = files.read(name).decode()
                assert not re.search(r"^\s*(from|import) (optimizations|sample_traces)\b", text, re.MULTILINE), name
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("/entry_points.txt"))
        assert "[pytest11]\nmemviz = memviz.pytest_plugin" in files.read(name).decode()


def test_each_part_needs_lines_of_the_requirements_and_together_they_need_all(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        lines = re.findall(r"^Requires-Dist: (.*)$", files.read(name).decode(), re.MULTILINE)
    parts: dict[str, set[str]] = {}
    for line in lines:
        requirement, _, extra = line.partition("; extra == ")
        parts.setdefault(extra.strip("\"'"), set()).add(_normal(requirement))
    known = {_normal(line) for line in requirements()}
    assert {re.split("[<>]", line)[0] for line in parts[""]} == {"numpy"}
    assert set(parts) == {"", "page", "run", "ranks", "all"}
    assert parts["page"] | parts["run"] | parts["ranks"] == parts["all"]
    # pytest is in that file for people who run the tests of a Space.
    assert known - parts[""] - parts["all"] == {_normal(line) for line in known if line.startswith("pytest")}
    assert parts[""] | parts["all"] < known


def _normal(requirement: str) -> str:
    name, *bounds = re.split(r"(?=[<>=])", requirement.replace(" ", ""), maxsplit=1)
    return name.lower() + ",".join(sorted("".join(bounds).split(",")))


def test_the_core_reads_and_explains_a_recording_with_numpy_alone(installed: Path, tmp_path: Path) -> None:
    listed = run(sys.executable, "-m", "pip", "--python", installed / "python", "list", "--format=freeze").lower()
    assert {line.partition("==")[0] for line in listed.split()} <= {"memviz", "numpy", "pip", "setuptools", "wheel"}
    sample = ROOT / "sample_traces" / "training.pickle.gz"
    command = installed / "memviz"
    here = run(sys.executable, "-m", "memviz", "summary", sample, "--json", cwd=ROOT)
    assert run(command, "summary", sample, "--json", cwd=tmp_path) == here
    for words in (("peak", sample), ("findings", sample, "--estimates"), ("diff", sample, sample), ("replay", sample)):
        run(command, *words, cwd=tmp_path)
    run(command, "report", sample, "-o", "report.html", cwd=tmp_path)
    run(command, "export", sample, "-o", "again.pickle", cwd=tmp_path)
    assert run(command, "summary", "again.pickle", "--json", cwd=tmp_path).count("peak") > 2


@pytest.mark.parametrize(
    ("words", "library", "extra"),
    [
        (("open",), "gradio", "page"),
        (("run", "gpt2"), "torch", "run"),
        (("fit", "gpt2", "--card", "T4"), "torch", "run"),
        (("predict", "train.py"), "torch", "run"),
    ],
)
def test_what_was_not_installed_is_named_with_what_brings_it(
    installed: Path, tmp_path: Path, words: tuple[str, ...], library: str, extra: str
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    said = run(installed / "memviz", *words, cwd=tmp_path, status=2)
    assert (
        said
        == f'memviz: This needs {library}, which is not installed here. `pip install "memviz[{extra}]"` brings it.\n'
    )


PRINT = """
import json, sys
from memviz.runner.plan import code_of
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
plans = {name: plan_of(Request.from_json(given)) for name, given in json.load(sys.stdin).items()}
print(json.dumps({name: code_of(plan.optimizations) for name, plan in plans.items()}))
"""


def requests() -> dict[str, object]:
    return {kind.name: request_of(kind.name).as_json() for kind in OPTIMIZATIONS}


def answer(command: list[str], given: object, cwd: Path, *paths: Path) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONWARNINGS": "ignore"}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, input=json.dumps(given), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, next to the installed libraries."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def codes(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return answer(["-c", PRINT], requests(), tmp_path_factory.mktemp("asked"), site)


def test_a_checkout_prints_the_code_that_a_wheel_prints(codes: dict[str, str]) -> None:
    assert answer(["-c", PRINT], requests(), ROOT, ROOT) == codes


@pytest.mark.parametrize("place", ["wheel", "checkout", "copies"])
def test_the_code_that_a_run_prints_runs_as_it_is(
    place: str, site: Path, codes: dict[str, str], tmp_path: Path
) -> None:
    """With memviz installed, in its checkout, and with the file of the optimization copied next to it, as it says."""
    copies, program = tmp_path / "copies", str(ROOT / "tests" / "house" / "printed_code.py")
    for kind in OPTIMIZATIONS:
        (copies / kind.name).mkdir(parents=True)
        if place == "copies":
            shutil.copy(ROOT / "optimizations" / f"{kind.name}.py", copies / kind.name)
    if place == "copies":
        codes = {name: code.replace("from memviz.optimizations.", "from ") for name, code in codes.items()}
    where = {"wheel": [site], "checkout": [ROOT], "copies": []}[place]
    done = answer([program, str(copies)], codes, ROOT if place == "checkout" else tmp_path, *where)
    above = "" if place == "copies" else "memviz.optimizations."
    expected = {kind.name: f"{above}{kind.name}" for kind in OPTIMIZATIONS} | {"allocator_settings": ""}
    assert done == expected


def test_the_settings_of_tools_stand_in_one_file() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {"pytest", "ruff", "mypy"} <= set(settings["tool"])
    hidden = [
        path.name for path in ROOT.iterdir() if path.name in (".pytest.ini", ".mypy.ini", ".ruff.toml", "tox.ini")
    ]
    assert hidden == []
