"""A config.json on the command line: run, refused, and searched for a way that fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memviz.commands import FAILED, main
from tests.ui.run.test_form_config import TINY as TINY_LLAMA

TINY = TINY_LLAMA | {"num_key_value_heads": 1}
PARAMETERS = 2 * 512 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def test_a_file_and_its_folder_are_the_same_model(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for name in (config, config.parent):
        settings = ["--set", "sequence=32", "--set", "mode=inference", "--set", "dtype=bf16"]
        assert main(["run", str(name), *settings, "--on", "predict", "--json"]) == 0
        runs.append(json.loads(capsys.readouterr().out))
    assert [run["run"]["parameters"] for run in runs] == [PARAMETERS] * 2
    assert runs[0]["peak_reserved_bytes"] == runs[1]["peak_reserved_bytes"]
    assert runs[0]["run"]["weights_bytes"] == 2 * PARAMETERS
    assert f"run {config} --set sequence=32" in runs[0]["run"]["command"]


@pytest.mark.parametrize("command", ["run", "fit"])
def test_code_of_its_own_is_refused_with_what_to_do(
    command: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(json.dumps({**TINY, "auto_map": {"AutoModel": "own.Model"}}))
    assert main([command, str(config)]) == FAILED
    assert "auto_map names code of its own, and none is run. Take auto_map out" in capsys.readouterr().err


def test_a_script_is_not_a_configuration(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(config)]) == FAILED
    assert f"python -m memviz run {config} --on predict" in capsys.readouterr().err


@pytest.mark.slow
def test_a_way_that_fits_is_found_for_it(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(config.parent / "cache"))
    arguments = ["--set", "mode=inference", "--set", "sequence=64", "--card", "T4", "--processes", "1", "--json"]
    assert main(["fit", str(config), *arguments, "--largest", "batch"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["chosen"]["fits"] and answer["chosen"]["keeps"] == "outputs"
    assert answer["largest"]["knob"] == "batch" and answer["largest"]["next_fails"]
