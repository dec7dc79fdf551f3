"""`run` and `reproduce`, of workloads and of a config.json: output, refusals, and the written file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memviz.commands import FAILED, main, parser
from memviz.commands.run import _request
from memviz.runner.fit import space
from memviz.runner.jobs.worker_process import Worker
from optimizations import OPTIMIZATIONS
from tests.ui.run.test_form import TINY as TINY_LLAMA

SMALL = ["--set", "sequence=64", "--set", "dim=64", "--set", "layers=3", "--on", "predict"]


def test_a_run_is_of_what_was_asked_and_its_trace_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed peak equals the one that other commands read from the file."""
    path = tmp_path / "kept.pickle"
    asked = ["--with", "split_feed_forward:splits=8", "--card", "h200", "--conversion", "measured", "-o", str(path)]
    assert main(["run", "feed_forward", *SMALL, *asked, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["workload"], found["mode"], found["device"]) == ("feed_forward", "predicted", "NVIDIA H200")
    assert found["weights_bytes"] == 3 * 4 * (2 * 64 * 256 + 64 + 256)
    # Two matrix products of 2 * 64 tokens, 64 channels and 256 inside, in three layers.
    assert found["flops"] == 3 * 2 * 2 * 128 * 64 * 256
    assert found["numerics"]["verdict"]["words"] == "equal up to rounding, as claimed"
    assert found["trace"] == str(path)
    assert main(["replay", str(path), "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["exact"]
    for peak in ("peak_allocated_bytes", "peak_reserved_bytes"):
        assert replayed[peak] == found[peak]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "--list"),
        (["run", "feed_forward", "--set", "dim"], "KNOB=VALUE"),
        (["run", "feed_forward", "-o", "x.txt"], ".pickle"),
        (["run", "feed_forward", "--steps", "0"], "1 to 100 steps"),
        (["run", "feed_forward", "--torch", "new"], "'new' is not a release; write for example 2.8."),
        (["run", "feed_forward", "--torch", "9.9"], "torch 9.9 is not supported: use a release from 2.0 to 2.13."),
        (["run", "feed_forwrd"], "Did you mean feed_forward?"),
        (["reproduce", "everything"], "Unknown table: everything."),
    ],
)
def test_what_cannot_be_is_refused_with_what_would(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == FAILED
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One process for all refused runs; PyTorch is imported once."""
    with Worker(tmp_path_factory.mktemp("refused")) as started:
        yield started


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "dims=3"], "Did you mean dim?"),
        (["--with", "split"], "There is no optimization split."),
        ([*SMALL, "--with", "split_feed_forward:splits=7"], "256"),
        ([*SMALL, "--with", "checkpointing"], "mode=training"),
        ([*SMALL, "--optimizer", "adamw"], "mode=training"),
        (["--card", "GTX 9000"], "GTX 9000"),
        (["ltx_video", "--set", "height=500"], "32"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(arguments: list[str], words: str, worker: Worker) -> None:
    model = [] if arguments[0] == "ltx_video" else ["feed_forward"]
    *_, only = worker.run([_request(parser().parse_args(["run", *model, *arguments]))])
    assert (only.kind, only.what) == ("failed", "refused")
    assert words in only.text


def test_measuring_without_a_gpu_names_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["run", "feed_forward", "--on", "cuda"]) == FAILED
    assert "predicts" in capsys.readouterr().err


def test_a_model_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef model(width: int = 8):\n"
        "    return torch.nn.Linear(width, 4 * width), {'input': torch.ones(2, width)}\n"
    )
    assert main(["run", f"{tmp_path / 'mine.py'}:model", "--set", "width=1024", "--on", "predict", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights_bytes"] == 4 * (1024 * 4096 + 4096)


def test_the_list_names_everything_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    from memviz.runner.workloads import WORKLOADS

    assert main(["run", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["workloads"]] == [*(each.name for each in WORKLOADS), "config.json"]
    assert [each["name"] for each in found["optimizations"]] == [each.name for each in OPTIMIZATIONS]
    assert main(["run", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(each.name in said for each in (*WORKLOADS, *OPTIMIZATIONS))


TINY = TINY_LLAMA | {"num_key_value_heads": 1}
PARAMETERS = 2 * 512 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.mark.slow
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
    assert "auto_map" in capsys.readouterr().err


def test_a_script_is_not_a_configuration(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(config)]) == FAILED
    assert f"python -m memviz run {config} --on predict" in capsys.readouterr().err


@pytest.mark.slow
def test_a_way_that_fits_is_found_for_it(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(config.parent / "cache"))
    # Which ways there are is a matter of test_fit.py.
    few = {kind.name: () for kind in OPTIMIZATIONS} | {"layerwise_casting": ({},)}
    monkeypatch.setattr(space, "_OPTIONS", few)
    arguments = ["--set", "mode=inference", "--set", "sequence=64", "--card", "T4", "--processes", "1", "--json"]
    assert main(["fit", str(config), *arguments, "--largest", "batch"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["chosen"]["fits"] and answer["chosen"]["keeps"] == "outputs"
    assert answer["largest"]["knob"] == "batch" and answer["largest"]["next_fails"]
