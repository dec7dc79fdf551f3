"""Parallel predictions, each computed once."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memviz.runner.fit import predictions
from memviz.runner.fit.predictions import KeptPredictions, Prediction, Predictor
from memviz.runner.request import Request

REQUESTS = [Request("feed_forward", {"layers": str(count)}) for count in range(1, 7)]


class Worker:
    """A worker stand-in that returns the number of layers as the peak."""

    asked: list[str]

    def __init__(self, folder: Path, **more: Any) -> None:
        self.is_alive = True
        assert folder.is_dir()

    def run(self, requests: list[Request], *, figures_only: bool) -> Iterator[Any]:
        assert figures_only
        type(self).asked += [request.settings["layers"] for request in requests]
        yield from (Event(number, request) for number, request in enumerate(requests))

    def close(self) -> None:
        self.is_alive = False

    kill = close


class Event:
    what = ""

    def __init__(self, number: int, request: Request) -> None:
        self.number, self.request = number, request


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> type[Worker]:
    monkeypatch.setattr(predictions, "Worker", Worker)
    monkeypatch.setattr(
        predictions,
        "prediction_of",
        lambda event: Prediction(peak_reserved_bytes=int(event.request.settings["layers"])),
    )
    Worker.asked = []
    return Worker


def peaks(folder: Path, requests: list[Request], processes: int = 2) -> dict[str, int]:
    heard, left = {}, iter(requests)

    def hear(request: Request, prediction: Prediction) -> None:
        heard[request.settings["layers"]] = prediction.peak_reserved_bytes

    with Predictor(processes=processes, kept=KeptPredictions(folder)) as predictor:
        predictor.all(lambda: next(left, None), hear)
    return heard


def test_all_are_heard_once_and_a_search_that_was_ended_goes_on_where_it_was(tmp_path: Path) -> None:
    assert peaks(tmp_path, REQUESTS[:4]) == {str(count): count for count in range(1, 5)}
    assert sorted(Worker.asked) == list("1234")
    Worker.asked.clear()
    assert len(peaks(tmp_path, REQUESTS)) == 6
    assert sorted(Worker.asked) == ["5", "6"]


def test_a_line_that_was_cut_is_predicted_again(tmp_path: Path) -> None:
    peaks(tmp_path, REQUESTS[:2], processes=1)
    (file,) = tmp_path.iterdir()
    lines = file.read_text().splitlines()
    file.write_text(lines[0] + "\n" + lines[1][:20])
    Worker.asked.clear()
    peaks(tmp_path, REQUESTS[:2], processes=1)
    assert len(Worker.asked) == 1
    assert json.loads(lines[0])["prediction"]["peak_reserved_bytes"] in (1, 2)


def test_a_file_of_ones_own_is_never_taken_from_before(tmp_path: Path) -> None:
    own = Request("model.py:make", {"layers": "3"})
    for _ in range(2):
        assert peaks(tmp_path, [own]) == {"3": 3}
    assert Worker.asked == ["3", "3"]


def test_other_code_predicts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks(tmp_path, REQUESTS[:1])
    monkeypatch.setattr(predictions, "library_versions", lambda: {"torch": "another"})
    Worker.asked.clear()
    peaks(tmp_path, REQUESTS[:1])
    assert Worker.asked == ["1"]


def test_what_is_wrong_with_one_ends_it_for_all(tmp_path: Path) -> None:
    def hear(request: Request, prediction: Prediction) -> None:
        raise RuntimeError("no")

    left = iter(REQUESTS)
    with Predictor(processes=2, kept=KeptPredictions(tmp_path)) as predictor, pytest.raises(RuntimeError, match="no"):
        predictor.all(lambda: next(left, None), hear)


def test_at_the_end_of_its_time_it_ends_what_is_under_way_and_does_not_hear_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, killed = threading.Event(), threading.Event()

    class Slow(Worker):
        def run(self, requests: list[Request], *, figures_only: bool) -> Iterator[Event]:
            for event in super().run(requests, figures_only=figures_only):
                if event.request.settings["layers"] == "3":
                    under_way.set()
                    assert killed.wait(60)
                    event.what = "killed"
                yield event

        def kill(self) -> None:
            killed.set()

    monkeypatch.setattr(predictions, "Worker", Slow)
    clock = SimpleNamespace(monotonic=lambda: 10.0 if under_way.is_set() else 0.0)
    monkeypatch.setattr(predictions, "time", clock)
    heard: list[str] = []
    left = iter(REQUESTS)
    with Predictor(processes=1, kept=KeptPredictions(tmp_path)) as predictor:
        predictor.all(
            lambda: next(left, None),
            lambda request, prediction: heard.append(request.settings["layers"]),
            until=10.0,
        )
        assert heard == ["1", "2"]
        killed.clear()
        predictor.one(REQUESTS[2], until=10.0)
        assert killed.is_set()
    assert KeptPredictions(tmp_path).get(REQUESTS[2]) is None


def test_what_costs_little_beside_another_is_predicted_with_it_and_not_again(tmp_path: Path) -> None:
    heard, left = [], iter(REQUESTS[:4])

    def others(request: Request) -> list[Request]:
        return [
            other for other in REQUESTS[:4] if other != request and other in REQUESTS[:2] and request in REQUESTS[:2]
        ]

    with Predictor(processes=1, kept=KeptPredictions(tmp_path)) as predictor:
        predictor.all(
            lambda: next(left, None), lambda request, prediction: heard.append(prediction.peak_reserved_bytes), others
        )
        assert predictor.made == 4
    assert heard == [1, 2, 3, 4]
    assert Worker.asked == ["1", "2", "3", "4"]
