"""Predictions by workers of Dask, of which one can be another version: a real cluster of two processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memviz import dask_client
from memviz.errors import UsageError
from memviz.runner.fit import measurement
from memviz.runner.fit.measurement import DaskWorker, worker_threads
from memviz.runner.fit.predictions import KeptPredictions, Prediction, Predictor
from memviz.runner.request import Request
from tests.dask_cluster import dask_cluster
from tests.second_process import OF_RUNS, ROOT, memviz

distributed = pytest.importorskip("distributed", reason="distributed is not installed")
REQUESTS = [Request("gpt2", {"layers": str(count), "sequence": "64"}, card="T4") for count in (1, 2)]
REFUSED = Request("gpt2", {"layers": "1"}, (("split_feed_forward", {"splits": "7"}),), card="T4")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, found = tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": str(ROOT)}
    with dask_cluster(folder, environment=found, is_of_runs=True) as made:
        yield made.scheduler_address


def predictions(predictor: Predictor, requests: list[Request]) -> dict[str, Prediction]:
    heard, left = {}, iter(requests)

    def hear(request: Request, prediction: Prediction) -> None:
        heard[repr(request)] = prediction

    with predictor:
        predictor.all(lambda: next(left, None), hear)
    return heard


@pytest.mark.slow
def test_far_answers_are_those_of_this_machine(address: str, tmp_path: Path) -> None:
    requests = [*REQUESTS, REFUSED]
    here = predictions(Predictor(processes=1, kept=KeptPredictions(tmp_path / "here")), requests)
    with dask_client.dask_client(address) as client:
        count, kept = worker_threads(client, address), KeptPredictions(tmp_path / "far")
        there = predictions(Predictor(processes=count, kept=kept, make_worker=lambda: DaskWorker(client)), requests)
    assert count == 2
    assert there == here
    assert there[repr(REFUSED)].refused and not there[repr(REQUESTS[0])].refused
    assert all(kept.get(request) == there[repr(request)] for request in requests)


def test_workers_of_another_version_or_without_memviz_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "code_state", lambda builds: "another")
    states = {"tcp://one": "the same", "tcp://two": "another"}
    with pytest.raises(UsageError, match="^1 of 2 workers of an-address have another memviz"):
        worker_threads(SimpleNamespace(run=lambda _: states), "an-address")

    def lacks_memviz(_: Any) -> Any:
        raise ModuleNotFoundError("No module named 'memviz'")

    with pytest.raises(UsageError, match=r"cannot predict \(No module named 'memviz'\).*pip install \.\[run\]` in a"):
        worker_threads(SimpleNamespace(run=lacks_memviz), "an-address")


@pytest.mark.slow
def test_the_command_spreads_its_search(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small = ("feed_forward", "--set", "layers=1", "--card", "T4")
    done = memviz("fit", *small, "--json", "--scheduler", address, of=OF_RUNS)
    assert done.returncode == 0
    # There is no terminal, so progress is plain lines.
    assert all("configurations tried" in line for line in done.stderr.splitlines())
    answer = json.loads(done.stdout)
    assert answer["tried"] == answer["of"] > 1


@pytest.mark.slow
def test_workers_without_a_gpu_measure_nothing_and_nothing_is_searched(address: str) -> None:
    done = memviz("fit", "feed_forward", "--scheduler", address, "--measure", of=OF_RUNS)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--measure needs a GPU, and none of the 2 workers of {address} has one. " in done.stderr
    assert "Without --measure, they predict." in done.stderr
