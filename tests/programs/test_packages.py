"""Packages that people train with, where they are installed: their own classes, through `python -m memviz predict`."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.second_process import predict

FOLDER = Path(__file__).parent / "packages"
RECIPES = Path(__file__).parents[2] / "memviz" / "recipes.md"
NEEDS = {
    "four_bit_lora": ("bitsandbytes", "peft", "transformers"),
    "triton_and_liger": ("liger_kernel", "triton", "transformers"),
    "module": ("lightning", "torchmetrics"),
    "others": ("monai", "pytorch_optimizer", "torchdiffeq", "vector_quantize_pytorch", "x_transformers"),
    "quantized": ("torchao",),
    "policy": ("datasets", "peft", "tokenizers", "transformers", "trl"),
    "trainer": ("accelerate", "bitsandbytes", "transformers"),
    "vision": ("timm", "torchvision"),
    "yolo": ("ultralytics",),
    "zero": ("deepspeed",),
    "zero_trainer": ("accelerate", "deepspeed", "transformers"),
}
OFFLOADS = ("offload_optimizer", "offload_param")
ARGUMENTS: dict[str, list[tuple[str, ...]]] = {
    "zero": [("0",), ("1",), ("2",), ("3",), ("1", *OFFLOADS[:1]), ("2", *OFFLOADS[:1]), ("3", *OFFLOADS)],
}
OPTIONS = {
    "quantized": ("--card", "H100"),
    "zero": ("--world-size", "4"),
    # Not the first, which others are compared with.
    "zero_trainer": ("--world-size", "4", "--rank", "2"),
}
RUNS = [(name, arguments) for name in NEEDS for arguments in ARGUMENTS.get(name, [()])]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), RUNS)
def test_a_script_with_these_packages_runs_to_its_end(name: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    if missing := [package for package in NEEDS[name] if find_spec(package) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    options = "--card", "L40S", *OPTIONS.get(name, ()), "--json"
    ran = predict(*options, FOLDER / f"{name}.py", *arguments, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    *_, said, result = ran.stdout.splitlines()
    assert said == "done"
    assert json.loads(result)["not_known"] is None


def test_each_script_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("[a-z]*.py")} == NEEDS.keys()


def recipes() -> dict[str, tuple[str, list[str], list[tuple[str, list[str]]]]]:
    """Return the scripts of the recipes: their text, packages, and each command with the lines that it prints."""
    found = {}
    for recipe in RECIPES.read_text().split("\n## "):
        if script := re.search(r"^```python\n# (\w+\.py)\n(.*?)^```", recipe, re.MULTILINE | re.DOTALL):
            packages = re.search(r"`pip install ([^`]+)`", recipe)
            assert packages is not None
            blocks = re.findall(r"^```bash\n(.*?)\n```\n\n```text\n(.*?)^```", recipe, re.MULTILINE | re.DOTALL)
            commands = [(line, shown.splitlines()) for line, shown in blocks]
            found[script[1]] = script[2], packages[1].split(), commands
    return found


def is_installed(package: str, version: str) -> bool:
    try:
        return metadata.version(package) == version
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes())
def test_a_recipe_with_packages_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    script, packages, commands = recipes()[name]
    if missing := [package for package in packages if not is_installed(*package.split("=="))]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    (tmp_path / name).write_text(script)
    for line, shown in commands:
        ran = predict(*shlex.split(line)[4:], folder=tmp_path)
        assert ran.returncode == 0, ran.stderr
        printed = [text.partition("memviz: ")[2] for text in ran.stderr.splitlines() if "memviz: " in text]
        assert [text for text in shown if text not in printed] == []
        assert shown and shown[0] == printed[0]


COMPILED = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).cuda()
model, optimizer = torch.compile(layer), torch.optim.AdamW(layer.parameters())
for step in range(3):
    model(torch.ones(parser.parse_args().batch, 256, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_the_recipe_for_compiled_code_shows_what_compiling_changes(tmp_path: Path) -> None:
    (line,) = (
        line for line in RECIPES.read_text().splitlines() if line.startswith("python -m memviz predict --compile")
    )
    (tmp_path / "train.py").write_text(COMPILED)
    options = ["--json", "--overwrite", *shlex.split(line)[4:]]
    peaks = []
    for way in (options, [option for option in options if option != "--compile"]):
        ran = predict(*way, folder=tmp_path)
        assert ran.returncode == 0, ran.stderr
        peaks.append(json.loads(ran.stdout.splitlines()[-1])["peak_requested_bytes"])
    assert peaks[0] < peaks[1] and (tmp_path / "run.pickle").exists()
