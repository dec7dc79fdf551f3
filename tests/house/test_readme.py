"""The READMEs are true: the three lines, the front matter, every command and every path."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from packaging.requirements import Requirement

from memviz.commands import COMMANDS
from tests import forked
from tests.house.repository import ROOT, files, text_of
from tests.ranks.files import write_ranks
from tests.second_process import OF_RUNS, memviz, predict

NEEDED = {
    "title",
    "emoji",
    "colorFrom",
    "colorTo",
    "sdk",
    "sdk_version",
    "python_version",
    "app_file",
    "short_description",
}
COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
PATH_LIKE = re.compile(r"\.?[\w.-]+(/[\w.-]+)*/?")
FILE_ENDING = re.compile(r"\.(py|md|txt|ini|toml|yml)$|/$|^\.\w+/\w+$")

FOLDERS = [each for each in ROOT.iterdir() if each.is_dir() and not each.name.startswith(".")]
READMES = [
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in folder.rglob("README.md")
        if "node_modules" not in path.parts
    ),
]


@cache
def front_matter() -> dict[str, Any]:
    _, block, _ = text_of("README.md").split("---\n", 2)
    return yaml.safe_load(block)


def bash_lines(name: str) -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```", text_of(name), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


WITH_COMMANDS = ("README.md", "memviz/commands/README.md", "memviz/recipes.md")


def commands_in_readme() -> list[str]:
    """Return the commands of all READMEs, without duplicates."""
    lines = (line for name in WITH_COMMANDS for line in bash_lines(name))
    return list(dict.fromkeys(line for line in lines if line.startswith("python -m memviz ")))


def shown_output(line: str) -> list[str] | None:
    """The text block right under a command, where there is one."""
    pattern = re.compile(rf"{re.escape(line)}\n```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
    blocks = filter(None, (pattern.search(text_of(name)) for name in WITH_COMMANDS))
    return next((block[1].splitlines() for block in blocks), None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A writable folder for commands, with the samples at the README's path."""
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    return tmp_path


def test_front_matter_is_complete_and_its_versions_are_those_of_the_requirements():
    assert NEEDED - set(front_matter()) == set()
    assert front_matter()["sdk"] == "gradio"
    assert front_matter()["app_file"] == "app.py"
    assert {front_matter()["colorFrom"], front_matter()["colorTo"]} <= COLOURS
    assert len(front_matter()["short_description"]) <= 60
    # Unquoted, YAML reads 3.10 as the number 3.1.
    assert isinstance(front_matter()["python_version"], str)
    assert isinstance(front_matter()["sdk_version"], str)
    # A Space installs it first; outside the range, pip would install a second Gradio over it.
    lines = [line for line in text_of("requirements.txt").splitlines() if line and not line.startswith("#")]
    gradio = next(each for each in map(Requirement, lines) if each.name == "gradio")
    assert gradio.specifier.contains(front_matter()["sdk_version"])


def test_ci_can_be_run_and_runs_both_test_lines():
    quick, slow = (line for line in bash_lines("README.md") if " -m pytest" in line)
    assert quick.endswith(" -m pytest") and slow.endswith(" -m pytest -m slow")
    last = text_of(".ci/run").splitlines()[-4:]
    assert last == ["failed=0", f"{quick} || failed=1", f"{slow} || failed=1", 'exit "$failed"']
    assert os.access(ROOT / ".ci/run", os.X_OK)
    start = [line for line in bash_lines("README.md") if line.endswith("app.py")]
    assert start == [
        "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt && .venv/bin/python app.py",
    ]


SERVING = "python -m memviz open "
"""A command that runs until it is stopped."""


@pytest.mark.slow
@pytest.mark.parametrize("line", [each for each in commands_in_readme() if each.startswith(SERVING)])
def test_serving_command_in_the_readme_starts(line, folder):
    command = [sys.executable, "-u", *shlex.split(line)[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("http://127.0.0.1:" in printed for printed in process.stdout)
        finally:
            process.terminate()


NEEDS_GPU = "python -m memviz record "
TRAIN = """
import sys, torch
assert sys.argv[1:] == ["--steps", "3"]
model = torch.nn.Linear(512, 512, device="cuda")
for _ in range(3):
    model(torch.ones(8, 512, device="cuda")).sum().backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", [each for each in commands_in_readme() if each.startswith(NEEDS_GPU)])
def test_recording_command_in_the_readme_records_or_says_what_it_lacks(line, folder):
    """On a machine without a GPU its answer is that it needs one, and what to do instead."""
    (folder / "train.py").write_text(TRAIN)
    done = memviz(*shlex.split(line)[3:], folder=folder)
    if torch.cuda.is_available():
        assert (done.returncode, done.stdout) == (0, "")
        assert (folder / "run.pickle").stat().st_size > 0
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert "needs a GPU" in done.stderr
        assert "`python -m memviz run` predicts" in done.stderr


PREDICTING = "python -m memviz predict "
OF_A_SCRIPT_SHOWN = re.compile(r" (qlora|zero3)\.py\b")
"""Commands of recipes with packages, which `tests/programs/test_packages.py` runs."""
TRAIN_ON_A_CARD = """
import sys, torch
assert sys.argv[1:] == ["--batch", "8"]
model = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(8, 512, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "line",
    [each for each in commands_in_readme() if each.startswith(PREDICTING) and not OF_A_SCRIPT_SHOWN.search(each)],
)
def test_predicting_command_in_the_readme_runs_the_script(line, folder):
    (folder / "train.py").write_text(TRAIN_ON_A_CARD)
    done = predict(*shlex.split(line)[4:], folder=folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert "NVIDIA GeForce RTX 4090" in done.stderr and "2 steps" in done.stderr
    assert (folder / "run.pickle").stat().st_size > 0


MANY_RANKS = "python -m memviz ranks "


@pytest.mark.parametrize("line", [each for each in commands_in_readme() if each.startswith(MANY_RANKS)])
def test_command_about_many_ranks_in_the_readme_reads_a_folder(line, folder):
    write_ranks(folder / "job", 4)
    done = memviz(*shlex.split(line)[3:], folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Highest peak of 4 ranks: 120 MiB, on rank 0.")


HISTORY = "python -m memviz history "


@pytest.mark.parametrize("line", [each for each in commands_in_readme() if each.startswith(HISTORY)])
def test_history_in_the_readme_reads_what_the_recipe_keeps(line, folder):
    memory = folder / "memory"
    memory.mkdir()
    for commit, name in (("170-0a1b2c3", "training-checkpointed"), ("180-1b2c3d4", "training")):
        kept = memviz("peak", f"sample_traces/{name}.pickle.gz", "--json", "--top", "0", folder=folder)
        (memory / f"{commit}.json").write_text(kept.stdout)
    done = memviz(*shlex.split(line)[3:], folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Over 2 files the peak rises from 999 MiB to 1,960 MiB, +962 MiB (96 %).")
    assert "180-1b2c3d4" in (folder / "history.html").read_text()


ELSEWHERE = (SERVING, NEEDS_GPU, PREDICTING, MANY_RANKS, HISTORY)
WITH_PYTORCH = ("config", "fit", "reproduce", "run")


SLOW = ("fit", "reproduce")


def command_case(line: str) -> Any:
    return pytest.param(line, marks=[pytest.mark.slow] * (line.split()[3] in SLOW))


@pytest.mark.parametrize(
    "line", [command_case(each) for each in commands_in_readme() if not each.startswith(ELSEWHERE)]
)
def test_command_in_the_readme_does_what_it_says(line, folder):
    _, _, _, name, *arguments = shlex.split(line)
    done = memviz(name, *arguments, folder=folder, of=OF_RUNS if name in WITH_PYTORCH else forked.light)
    progress = [text for text in done.stderr.splitlines() if name == "fit" and text.endswith(" ...")]
    assert (done.returncode, done.stderr.splitlines()) == (0, progress)
    shown = shown_output(line)
    if shown is not None:
        whole = "..." not in shown
        expected = shown if whole else shown[: shown.index("...")]
        printed = [splitline.rstrip() for splitline in done.stdout.splitlines()]
        assert printed[: None if whole else len(expected)] == expected


def test_every_command_is_explained():
    lines = bash_lines("memviz/commands/README.md")
    assert set(COMMANDS) == {line.split()[3] for line in lines if line.startswith("python -m memviz ")}


def named_paths(name: str) -> list[str]:
    text = text_of(name)
    quoted = [each for each in re.findall(r"`([^`\n]+)`", text) if PATH_LIKE.fullmatch(each)]
    links = [each for each in re.findall(r"\]\(([^)#]+)", text) if "://" not in each]
    return sorted({each for each in quoted if FILE_ENDING.search(each)} | set(links))


@pytest.mark.parametrize("name", READMES)
def test_every_path_named_in_it_exists(name):
    folder = (ROOT / name).parent
    missing = [
        named_path
        for named_path in named_paths(name)
        if not (folder / named_path).exists() and not (ROOT / named_path).exists()
    ]
    assert missing == []


def tree_in_the_map() -> list[str]:
    """Every path of the drawn tree in memviz/README.md, folders with a slash at the end."""
    tree = re.search(r"^```\n(memviz/\n.*?)^```", text_of("memviz/README.md"), re.MULTILINE | re.DOTALL)
    assert tree is not None
    paths: list[str] = []
    folders: list[str] = []
    for line in tree[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [line.split()[0]]
        paths.append("".join(folders))
    return paths


def test_the_map_shows_what_is_there_and_every_part():
    assert [path for path in tree_in_the_map() if not (ROOT / path).exists()] == []
    parts = {name.split("/")[1] for name in files() if re.fullmatch(r"memviz/[^_/]\w+(\.py|/.*\.py)", name)}
    assert parts <= {path.split("/")[1] for path in tree_in_the_map() if path != "memviz/"}
