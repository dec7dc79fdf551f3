"""The Run tab with models of its owner: functions of a file, and a config.json, with prices and true commands."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import expect, opened, page_of
from tests.browser.test_run import TINY, done, field, fill, own_model, row, switch, verdict
from tests.second_process import OF_RUNS, ROOT, memviz

PAGE = """
import os
from pathlib import Path
from memviz.ui.app import build_app, launch_options

build_app(programs=[Path(os.environ["OWN_PROGRAM"])]).launch(**launch_options())
"""
PROGRAM = '''
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(x)


def stack(depth: int = 8, width: int = 512, rows: int = 4096, small=False):
    """A stack of mine."""
    if small:
        depth, width, rows = 2, 32, 8
    return nn.Sequential(*(Block(width) for _ in range(depth))), {"input": torch.randn(rows, width)}


def alone(width: int = 512):
    """A layer of mine, without a reduced model."""
    return nn.Linear(width, width), {"input": torch.randn(64, width)}
'''


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Iterator[Any]:
    with page_of(tmp_path_factory.mktemp("runs"), page=PAGE, OWN_PROGRAM=str(program)) as server:
        yield server


@pytest.fixture
def tab(same_page: Any, runs: Any) -> Any:
    """One page for all stories; each but the last leaves no switch on."""
    return same_page if same_page.url.startswith(runs.address) else opened(same_page, runs.address)


def command(tab: Any) -> str:
    texts = tab.locator(".mv-code-block pre").all_text_contents()
    found: str = next(text for text in texts if text.startswith("python -m memviz run"))
    return found


def peak_of(command: str, folder: Path) -> int:
    """Return the reserved peak of the command that the page shows, run as it is."""
    arguments = [*shlex.split(command)[4:], "--json", "--no-numerics"]
    result = memviz("run", *arguments, folder=folder, of=OF_RUNS)
    assert result.returncode == 0, result.stderr
    found: int = json.loads(result.stdout)["run"]["peak_reserved_bytes"]
    return found


def reserved_mib(tab: Any, number: int) -> float:
    text = row(tab, number).locator("td b").first.inner_text().replace(",", "")
    figure, unit = text.split()
    return float(figure) * {"MiB": 1, "GiB": 1024}[unit]


def test_faults_mark_the_answer_as_one_of_before(tab: Any, program: Path) -> None:
    expect(field(tab, "workload")).to_have_value(f"{program}:stack")
    field(tab, "w:depth").fill("2")
    done(tab, 1)
    field(tab, "w:depth").fill("two")
    said = tab.locator("#run-progress")
    expect(said).to_contain_text("Fix the marked fields")
    expect(tab.locator("#run-head")).to_have_css("opacity", "0.5")
    field(tab, "w:depth").fill("3")
    expect(said).to_be_empty()
    expect(tab.locator("#run-head")).to_have_css("opacity", "1")


def test_without_a_reduced_model_it_says_how_to_make_one(tab: Any, program: Path) -> None:
    field(tab, "workload").select_option(f"{program}:alone")
    expect(field(tab, "w:width")).to_have_value("512")
    expect(field(tab, "w:depth")).to_have_count(0)
    switch(tab, "allocator_settings").check()
    done(tab, 2)
    expect(row(tab, 1)).to_contain_text("Give it a parameter small=False")
    switch(tab, "allocator_settings").uncheck()


def test_a_configuration_has_prices_a_check_and_a_true_command(tab: Any, tmp_path: Path) -> None:
    own_model(tab).fill(json.dumps(TINY))
    expect(tab.locator("#run-form [data-fault='config']")).to_be_empty()
    fill(tab, sequence="512")
    switch(tab, "chunked_cross_entropy").check()
    done(tab, 2)
    expect(tab.locator("[data-part='price:chunked_cross_entropy'] b")).to_be_visible()
    expect(row(tab, 1)).to_contain_text(re.compile("equal up to rounding|bitwise equal"))
    expect(tab.locator(".mv-take-away")).to_contain_text("ChunkedCrossEntropy")
    shown = command(tab)
    assert "memviz run config.json" in shown
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert peak_of(shown, tmp_path) / (1 << 20) == pytest.approx(reserved_mib(tab, 1), abs=0.6)
    switch(tab, "chunked_cross_entropy").uncheck()


def test_a_function_of_the_file_has_prices_a_check_and_a_true_command(tab: Any, program: Path) -> None:
    field(tab, "workload").select_option(f"{program}:stack")
    expect(field(tab, "w:depth")).to_have_count(1)
    # Its own parameters come first.
    names = [each.get_attribute("name") for each in tab.locator(".mv-first-knobs [name]").all()]
    assert names[:4] == ["w:mode", "w:depth", "w:width", "w:rows"]
    field(tab, "w:mode").select_option("training")
    field(tab, "w:depth").fill("6")
    expect(verdict(tab)).to_contain_text("with AdamW")
    switch(tab, "checkpointing").check()
    done(tab, 2)
    expect(tab.locator(".mv-price b").nth(3)).to_be_visible()
    price = tab.locator("[data-part='price:checkpointing'] b")
    expect(row(tab, 1).locator("td").first).to_contain_text(price.inner_text())
    expect(row(tab, 1)).to_contain_text("bitwise equal")
    expect(tab.locator(".mv-differences li")).not_to_have_count(0)
    expect(tab.locator(".mv-take-away")).to_contain_text("Checkpointing().apply(model)")
    row(tab, 1).get_by_role("button", name="Pin").click()
    switch(tab, "checkpointing").uncheck()
    switch(tab, "activation_offload").check()
    expect(row(tab, 2)).to_contain_text("Activation offload")
    expect(row(tab, 1)).to_contain_text("Gradient checkpointing")
    done(tab, 3)
    shown = command(tab)
    assert f"{program}:stack" in shown and "--set depth=6" in shown and "--with activation_offload" in shown
    assert peak_of(shown, ROOT) / (1 << 20) == pytest.approx(reserved_mib(tab, 2), abs=0.6)
