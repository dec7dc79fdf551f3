"""Whole scripts as people write them, which check their own memory, through `python -m memviz predict`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.cases import GOLDEN, RELEASES
from tests.contracts.workplace import releases
from tests.second_process import predict

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Case:
    steps: int = 0
    """Steps of the optimizer that takes most."""
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    failures: int = 0
    """Failed allocations."""


CASES = {
    "contrastive": Case(steps=10),
    "detector": Case(steps=2),
    "diffusion": Case(steps=3),
    "double_backward": Case(steps=3),
    "dqn": Case(),
    "graph_network": Case(steps=4),
    "hand_adamw": Case(),
    "image_classifier": Case(steps=4, arguments=("-b", "24")),
    "jagged": Case(steps=2),
    "kv_cache": Case(),
    "lora": Case(steps=3),
    "lstm_text": Case(),
    "mixture": Case(steps=3),
    "monitored": Case(),
    "nano_gpt": Case(steps=4),
    "notebook": Case(steps=3),
    "offload_by_hand": Case(),
    "older_code": Case(steps=1),
    "own_conversions": Case(steps=1),
    "parallel_step": Case(options=("--world-size", "2", "--rank", "1"), arguments=("sharded",)),
    "profiling": Case(steps=4, arguments=("dumps",)),
    "recommender": Case(steps=6),
    "skipgram": Case(steps=4),
    "smaller_batch": Case(options=("--card", "T4"), failures=5),
    "spectral": Case(steps=3),
    "speculative": Case(),
    "speech_ctc": Case(steps=3),
    "vae": Case(steps=4),
    "workers": Case(steps=8),
}
PEAKS = json.loads((GOLDEN / "program-peaks.json").read_text(encoding="utf-8"))
"""Their pinned peaks; `python -m tests.contracts` writes them."""
QUICK = {"hand_adamw", "lora", "parallel_step"}
OTHER_CASES = {
    "amp_with_prefetching": Case(steps=8),
    "averaged_weights": Case(steps=2),
    "beam_search": Case(),
    "channels_last": Case(steps=2),
    "checkpointed": Case(),
    "codebook": Case(steps=2),
    "cuda_graph": Case(steps=4),
    "flat_master_weights": Case(steps=3),
    "gan": Case(steps=3),
    "hooked": Case(),
    "image_by_lbfgs": Case(steps=2),
    "layerwise": Case(steps=2),
    "masked_autoencoder": Case(steps=2),
    "metrics": Case(),
    "pinned_loader": Case(steps=8),
    "policy_gradient": Case(steps=16),
    "reparametrized": Case(steps=2),
    "resumed": Case(steps=1),
    "scripted": Case(steps=2),
    "segments": Case(steps=2),
    "selective_scan": Case(),
    "sharpness": Case(steps=2),
    "sparse_graph": Case(steps=2),
}


def last_line(stdout: str) -> dict[str, Any]:
    return json.loads(stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*CASES, *OTHER_CASES)],
)
def test_a_program_comes_to_its_end_and_its_own_arithmetic_holds(name: str, tmp_path: Path) -> None:
    case = (CASES | OTHER_CASES)[name]
    done = predict("--json", *case.options, HERE / f"{name}.py", *case.arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    said = last_line(done.stdout)
    assert said["exit_status"] == 0 and said["stopped"] is None
    if name != "dqn":
        assert said["steps"] == case.steps
    requested, allocated = said["peak_requested_bytes"], said["peak_allocated_bytes"]
    assert requested > 0 and allocated <= said["peak_reserved_bytes"]
    # Freed memory that waits for another stream is still counted in requested bytes, and no longer in allocated ones.
    assert requested <= allocated or name == "amp_with_prefetching"
    assert sum(said["by_category"].values()) == requested
    assert said["out_of_memory"] == case.failures
    assert said["fits"] is (case.failures == 0 if "--card" in case.options else None)
    assert all(place["where"].startswith(str(HERE / name)) for place in said["assumed"] if place["where"])
    assert not any("went on" in note for note in said["notes"])
    if name in CASES and json.loads(RELEASES.read_text(encoding="utf-8")) == releases():
        assert {kind: said[f"peak_{kind}_bytes"] for kind in ("requested", "allocated", "reserved")} == PEAKS[name]
    if name == "hand_adamw":
        # Four layers of a norm of 128 and three matrices of 128 * 512, in 4 bytes.
        assert said["by_category"]["parameter"] == 4 * (128 + 3 * 128 * 512) * 4
    if name == "profiling":
        expect_windows(said)


def expect_windows(said: dict[str, Any]) -> None:
    """The program's own history has two windows."""
    assert [window["file"] for window in said["windows"]] == ["dumps/warm.pickle", "dumps/steady.pickle"]
    warm, steady = said["windows"]
    assert warm["events"] > steady["events"] > 20
    for window in said["windows"]:
        figures = [window[f"peak_{kind}_bytes"] for kind in ("requested", "allocated", "reserved")]
        assert 0 < figures[0] <= figures[1] <= figures[2] <= said["peak_reserved_bytes"]


def test_every_program_here_has_a_case() -> None:
    assert {path.stem for path in HERE.glob("*.py")} == {
        *CASES,
        *OTHER_CASES,
        "test_programs",
        "test_packages",
        "__init__",
    }
    assert PEAKS.keys() == CASES.keys()


def test_no_program_imports_memviz() -> None:
    for name in (*CASES, *OTHER_CASES):
        assert "memviz" not in (HERE / f"{name}.py").read_text()
