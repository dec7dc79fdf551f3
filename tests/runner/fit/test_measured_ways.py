"""Chosen ways measured: on GPUs of Dask's workers, which are pretended here, and the way there is a real cluster."""

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memviz import dask_client
from memviz.commands import FAILED, main
from memviz.errors import UsageError
from memviz.runner.fit import measurement, space
from memviz.runner.fit.measurement import (
    Gpu,
    Measurement,
    gpus_of_this_machine,
    measured,
    measured_json,
    select_gpus,
    trials_to_measure,
    worker_gpus,
)
from memviz.runner.fit.predictions import code_state
from memviz.runner.jobs.worker_process import RunEvent
from memviz.runner.measure.accelerator import gpus_of
from memviz.runner.request import Request
from memviz.units import bytes_text
from tests.dask_cluster import dask_cluster
from tests.facts import missing
from tests.runner.fit.pretended_gpus import DEVICE, UUIDS
from tests.runner.fit.ways import way
from tests.runner.runs import run
from tests.second_process import ROOT

SMALL = ["feed_forward", "--set", "layers=1", "--set", "batch=1", "--set", "sequence=64", "--card", "T4"]


def with_layers(layers: int) -> Any:
    chosen = way(layers, layers)
    return replace(chosen, candidate=replace(chosen.candidate, request=Request("gpt2", {"layers": str(layers)})))


def test_each_gpu_measures_one_at_a_time_and_answers_keep_the_order_of_the_ways() -> None:
    busy: dict[str, int] = {"one": 0, "two": 0}
    most = dict(busy)

    def on(name: str) -> Gpu:
        def measure(request: Request) -> RunEvent:
            assert request.on == "cuda" and not request.numerics
            busy[name] += 1
            most[name] = max(most[name], busy[name])
            time.sleep(0.01)
            busy[name] -= 1
            layers = int(request.settings["layers"])
            if layers == 3:
                raise OSError("the line is cut\nand more")
            if layers == 4:
                return RunEvent("failed", 0, what="out of memory", text="CUDA out of memory.")
            return RunEvent("done", 0, run=run(mode="measured", device=name, peak_reserved_bytes=layers))

        return Gpu(name, measure, f"at {name}")

    heard: list[int] = []
    ways = [with_layers(layers) for layers in range(1, 7)]
    found = measured(ways, [on("one"), on("two")], heard.append)
    assert [each.way for each in found] == ways
    assert [each.run and each.run.peak_reserved_bytes for each in found] == [1, 2, None, None, 5, 6]
    assert [each.why for each in found if each.why] == [
        "Its worker did not answer: the line is cut",
        "CUDA out of memory.",
    ]
    assert most == {"one": 1, "two": 1} and heard == [1, 2, 3, 4, 5, 6]


def test_what_is_measured_fits_as_predicted_the_cheapest_first_on_the_card_that_was_meant() -> None:
    front = [way(1, 9, fits=False), way(2, 8), way(3, 7), way(4, 6)]
    assert trials_to_measure(front, 2) == front[1:3]
    t4, h100 = (Gpu(name, lambda request: RunEvent("failed", 0)) for name in ("Tesla T4", "NVIDIA H100 80GB HBM3"))
    assert select_gpus([t4, h100], "NVIDIA H100 80GB") == [h100]
    assert select_gpus([t4, h100], "NVIDIA L4") == [t4, h100]


def test_an_answer_says_that_it_was_measured_and_where() -> None:
    done = run(mode="measured", device=DEVICE, peak_reserved_bytes=9)
    answer = measured_json(Measurement(way(1, 7), DEVICE, "tcp://one", done), "baseline")
    assert answer == {
        "label": "baseline",
        "mode": "measured",
        "device": DEVICE,
        "worker": "tcp://one",
        "failed": "",
        "peak_allocated_bytes": 3 << 30,
        "peak_reserved_bytes": 9,
        "predicted_peak_reserved_bytes": 7,
        "seconds": {"median": 0.5, "spread": 0.01, "count": 20, "clock": "cuda events", "low": None, "high": None},
        "notes": ["Kernels are not seen."],
    }


def test_where_this_machine_has_none_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measurement, "gpus_here", lambda: {"gpus": [], "why": "This PyTorch is built without CUDA."})
    assert main(["fit", *SMALL, "--measure"]) == FAILED
    assert missing(capsys.readouterr().err, "CUDA", "GPU", "PyTorch", "--scheduler", "--measure") == []
    assert main(["fit", "llama", "--gpus", "2", "--measure"]) == FAILED
    assert missing(capsys.readouterr().err, "GPU", "--gpus", "--parallel", "--measure") == []


def test_the_cards_of_a_machine_are_told_apart_by_the_drivers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(index: int) -> Any:
        return SimpleNamespace(uuid=f"{index}{index}")

    names = ["Tesla T4", "Tesla T4"]
    api = SimpleNamespace(get_device_properties=properties)
    card: Any = SimpleNamespace(kind="cuda", api=api, name_of=names.__getitem__, count=lambda: 2)
    two = [{"name": "Tesla T4", "uuid": "GPU-00"}, {"name": "Tesla T4", "uuid": "GPU-11"}]
    assert gpus_of(card) == two
    api.get_device_properties = lambda index: SimpleNamespace()
    assert gpus_of(card) == [{"name": "Tesla T4", "uuid": ""}]
    seen: list[str] = []

    def measure(request: Any, uuid: str) -> dict[str, Any]:
        seen.append(uuid)
        return {"kind": "done", "number": 0, "run": None}

    monkeypatch.setattr(measurement, "measured_here", measure)
    for known in (two, two[:1]):
        monkeypatch.setattr(measurement, "gpus_here", lambda known=known: {"gpus": known, "why": ""})
        for gpu in gpus_of_this_machine():
            gpu.measure(Request("gpt2"))
    assert seen == ["GPU-00", "GPU-11", ""]


# -- workers of Dask


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({"one": {"code": "another", "gpus": [], "why": ""}}, "^1 of 1 workers of an-address have another memviz, or"),
        (
            {"one": {"gpus": [], "why": "PyTorch sees no GPU here."}},
            "none of the 1 workers of an-address has one. PyTo",
        ),
    ],
)
def test_workers_of_another_version_or_without_a_gpu_are_refused(states: Any, words: str) -> None:
    told = {name: {"code": code_state(builds=False), **state} for name, state in states.items()}
    with pytest.raises(UsageError, match=words):
        worker_gpus(SimpleNamespace(run=lambda *_: told), "an-address")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[str]:
    pytest.importorskip("distributed", reason="distributed is not installed")
    environment = {"PYTHONPATH": str(ROOT), "PRETENDED_GPUS": str(folder)}
    preload = "tests.runner.fit.pretended_gpus"
    folder = tmp_path_factory.mktemp("cluster")
    with dask_cluster(folder, environment=environment, preload=preload, is_of_runs=True) as made:
        yield made.scheduler_address


def times_of(folder: Path, uuid: str) -> list[tuple[float, float]]:
    return sorted((float(path.name.split()[1]), float(path.read_text())) for path in folder.glob(f"{uuid} *"))


@pytest.mark.slow
def test_two_workers_that_see_the_same_cards_measure_one_at_a_time_on_each(address: str, folder: Path) -> None:
    ways = [with_layers(layers) for layers in (1, 2, 7, 4)]
    with dask_client.dask_client(address) as client:
        gpus = worker_gpus(client, address)
        found = measured(ways, gpus)
        # Another client of the cluster may use the other worker for the same GPU.
        others = [measurement._measure_on(client, worker, UUIDS[0], UUIDS[0]) for worker in client.nthreads()]
        asking = [threading.Thread(target=ask, args=(Request("gpt2"),)) for ask in others]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
    assert [(gpu.name, gpu.where) for gpu in gpus] == [(DEVICE, gpus[0].where)] * 2
    assert [each.run and each.run.peak_reserved_bytes >> 30 for each in found] == [1, 2, None, 4]
    assert {each.gpu for each in found} == {DEVICE} and found[2].why == "CUDA out of memory."
    assert all(each.run.mode == "measured" for each in found if each.run)
    for uuid in UUIDS:
        times = times_of(folder, uuid)
        assert all(end <= begin for (_, end), (begin, _) in zip(times, times[1:], strict=False))
    assert len(times_of(folder, UUIDS[0])) + len(times_of(folder, UUIDS[1])) == 3 + 2


@pytest.mark.slow
def test_the_command_measures_what_it_chose(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(space, "OPTIMIZATIONS", ())
    asked = ["fit", *SMALL, "--scheduler", address, "--measure", "2"]
    assert main([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = answer["measured"]
    assert (row["mode"], row["device"], row["label"]) == ("measured", DEVICE, "baseline")
    assert row["peak_reserved_bytes"] == 1 << 30
    assert row["predicted_peak_reserved_bytes"] == answer["chosen"]["peak_reserved_without_limit_bytes"]
    assert main(asked) == 0
    words = capsys.readouterr().out
    assert "predicted for Tesla T4" in words
    assert re.search(rf"baseline +{DEVICE} +{bytes_text(1 << 30)} +[0-9]+ MiB +500 ms", words)
    assert "Tesla T4" in words
