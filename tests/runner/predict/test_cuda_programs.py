"""Whole scripts as people write them, which say all kinds of things to CUDA and check their own memory."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from memviz.runner.predict.cuda_memory import HistoryWindow
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.trace.load import load_trace
from tests.replays import replay
from tests.runner.predict.rows import A100

PROGRAMS = Path(__file__).parents[2] / "programs"


def run(name: str, monkeypatch: pytest.MonkeyPatch, *args: str) -> PredictedDevice:
    path = PROGRAMS / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *args])
    with PredictedDevice(A100, limited=True) as device:
        runpy.run_path(str(path), run_name="__main__")
        assert replay(device.finish()).exact
    return device


@pytest.mark.parametrize("name", ["gan", "amp_with_prefetching", "cuda_graph", "pinned_loader"])
def test_a_script_runs_to_its_end_on_the_card(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(name, monkeypatch).out_of_memory == ()


def test_a_script_that_runs_out_of_memory_goes_on_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    device = run("halving_batches", monkeypatch)
    # 32 KiB a row and tensor: 64 GiB fails at once, 32 GiB at the product, 16 GiB at its activation.
    assert [failure.requested_bytes >> 30 for failure in device.out_of_memory] == [64, 32, 16]


def test_a_script_that_records_itself_leaves_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = run("memory_profile", monkeypatch, str(tmp_path))
    names = ["two_steps", "four_steps", "nothing"]
    assert [window.file for window in device.windows] == [str(tmp_path / f"{name}.pickle") for name in names]
    for window in device.windows:
        trace = load_trace(Path(window.file))
        assert len(trace.devices[0].events) == window.events and replay(trace).exact
    two, four, nothing = device.windows
    assert 0 == nothing.events < two.events < four.events
    # SGD's momentum is there from the first step on, so all steps but the first are alike.
    assert peaks(four) == peaks(two) > peaks(nothing)
    assert four.peak_allocated_bytes == device.peak_allocated_bytes


def peaks(window: HistoryWindow) -> tuple[int, int, int]:
    return window.peak_requested_bytes, window.peak_allocated_bytes, window.peak_reserved_bytes
