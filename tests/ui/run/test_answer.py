"""Orders, saved runs, runs requested by programs, and programs that the page was started with."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.errors import MemvizError, UsageError
from memviz.runner.jobs.service import OrderStatus
from memviz.runner.jobs.worker_process import RunError, Worker, stored_listing
from memviz.runner.listing import listing
from memviz.runner.own_source import functions_of
from memviz.runner.request import Request, run_of
from memviz.ui.run import answer as run_answers
from memviz.ui.run.answer import AT_HOME, RunAnswers, RunState
from memviz.ui.run.form import RunRequests
from memviz.ui.run.programs import UnfinishedRun, predict_run
from memviz.ui.run.results import results_html
from memviz.ui.run.tab import shared_files
from memviz.ui.shell.session import Session
from memviz.ui.shell.store import TraceStore
from tests.runner.processes import wait_until
from tests.ui.page import words

SMALL = {"sequence": "64", "dim": "64", "layers": "2"}


def asked(*names: str) -> RunRequests:
    split = (("split_feed_forward", {"splits": "2"}),)
    requests = [Request("feed_forward", SMALL, split if number else (), numerics=False) for number in range(len(names))]
    return RunRequests(tuple(requests), names)


def over(answers: RunAnswers, begun: OrderStatus) -> OrderStatus:
    return list(answers.follow(begun.id))[-1]


def test_finished_runs_are_kept_and_open_again(answers: RunAnswers) -> None:
    done = over(answers, answers.begin(asked("Baseline", "Half"), "ann"))
    kept = answers.kept("ann").all()
    assert [each.name for each in kept] == ["Half", "Baseline"]
    assert answers.kept("bob").all() == ()
    both = answers.opened(Session(), done.id)
    assert [each.name for each in both.opened] == ["Baseline", "Half"]
    assert both.compared == tuple(each.key for each in both.opened)
    facts = [answers.store.get(each.key).about.facts for each in both.opened]  # type: ignore[union-attr]
    assert all(fact["work"].endswith("FLOP") for fact in facts)
    assert (facts[0]["output difference"], facts[1]["output difference"]) == ("–", "not compared")
    again = answers.reopened(Session(), "ann", kept[0].id)
    trace = answers.store.get(again.chosen)
    assert trace is not None and run_of(trace) == done.variants[1].run
    with pytest.raises(UsageError):
        answers.reopened(Session(), "bob", kept[0].id)


def test_a_page_that_is_kept_does_not_wait_for_a_check(answers: RunAnswers, tmp_path: Path) -> None:
    done = over(answers, answers.begin(asked("Baseline", "Half"), "kept", keeps=False))
    assert "checking …" in words(results_html(done, 1))
    sent = tmp_path / "runs.html"
    _, write = shared_files(answers, RunState(order=done.id))["page"]
    write(sent)
    page = sent.read_text()
    assert "not compared" in page and "checking …" not in page


def test_an_output_check_made_since_is_compared_and_kept(answers: RunAnswers) -> None:
    done = over(answers, answers.begin(asked("Baseline", "Half"), "checked", keeps=False))
    checks = RunRequests((replace(done.variants[1].request, numerics=True),), ("Half",))
    list(answers.in_background(done, checks, "checked"))
    answers.keep_variant(done, 1, "checked")
    compared = answers.opened(Session(), done.id)
    kept = answers.reopened(Session(), "checked", answers.kept("checked").all()[0].id)
    traces = [answers.store.get(each.key) for each in (compared.opened[1], kept.opened[0])]
    first, second = (trace.about.facts["output difference"] for trace in traces if trace)
    # Processors differ in how they sum the halves.
    assert first == second and first in ("bitwise equal", "equal up to rounding")


def test_a_full_disk_costs_only_the_kept_copy(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    answers = RunAnswers(TraceStore(), tmp_path / "runs")
    try:
        done = over(answers, answers.begin(asked("Baseline"), "ann"))
        assert done.variants[0].state == "done"
        assert "It is not among the kept runs" in words(results_html(done, 0))
        assert answers.opened(Session(), done.id, [0]).current is not None
    finally:
        answers.close()


def test_a_deleted_file_is_refused(answers: RunAnswers) -> None:
    done = over(answers, answers.begin(asked("Baseline"), "gone"))
    file = done.variants[0].file
    assert file is not None
    file.unlink()
    session = answers.opened(Session(), done.id, [0])
    assert (session.opened, [each.name for each in session.refused]) == ((), ["Baseline"])


def test_too_many_variants_make_no_requests(answers: RunAnswers) -> None:
    _, found = answers.parse({"workload": "feed_forward", "w:batch": "1,2,3,4"})
    assert (found.count, "the limit is 3" in found.faults["run"]) == (0, True)


def test_on_a_lent_gpu_measuring_is_offered(answers: RunAnswers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers.listing()["device"] is None
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    made = RunAnswers(TraceStore(), Path("unused"))
    assert made.listing()["device"] == "a GPU of this Space"


def test_the_listing_is_there_at_once_and_completed_ahead_with_a_warm_process(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(run_answers, "_LOOKS_AHEAD_SECONDS", 0)
    monkeypatch.setattr(run_answers, "listing", lambda programs: looked.append("once") or {"workloads": []})
    answers = RunAnswers(TraceStore(), Path("unused"))
    monkeypatch.setattr(answers.scheduler, "warm_up", lambda: looked.append("warm"))
    assert {"flux", "llama"} < {row["name"] for row in answers.listing()["workloads"]}
    answers.look_ahead()
    wait_until(lambda: len(looked) == 2)
    answers.look_ahead()
    assert answers.listing() == {"workloads": []} and not answers.complete_listing()
    assert looked == ["once", "warm"]
    answers.close()


def test_the_stored_listing_is_what_pytorch_lists() -> None:
    assert stored_listing() == {**json.loads(json.dumps(listing())), "device": None}


def test_a_page_opens_while_the_listing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(programs: object) -> dict[str, Any]:
        begun.set()
        assert goes_on.wait(60)
        return {"workloads": []}

    monkeypatch.setattr(run_answers, "_LOOKS_AHEAD_SECONDS", 0)
    monkeypatch.setattr(run_answers, "listing", slow)
    answers = RunAnswers(TraceStore(), Path("unused"), programs=["train.py"])
    monkeypatch.setattr(answers.scheduler, "warm_up", lambda: None)
    answers.look_ahead()
    assert begun.wait(30)
    another = threading.Thread(target=answers.look_ahead)
    another.start()
    another.join(30)
    came_in = not another.is_alive()
    goes_on.set()
    assert came_in
    assert answers.listing() == {"workloads": []}
    answers.close()


def test_a_listing_that_fails_raises_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_torch(programs: object) -> dict[str, Any]:
        failed.set()
        raise RunError("PyTorch is not installed.")

    failed = threading.Event()
    monkeypatch.setattr(run_answers, "_LOOKS_AHEAD_SECONDS", 0)
    monkeypatch.setattr(run_answers, "listing", no_torch)
    answers = RunAnswers(TraceStore(), Path("unused"))
    answers.look_ahead()
    assert failed.wait(30)
    with pytest.raises(RunError, match="not installed"):
        answers.complete_listing()
    answers.close()


def ask(answers: RunAnswers, workload: str = "feed_forward", settings: Any = None, optimizations: Any = None) -> Any:
    asked = predict_run(answers, workload, settings or {}, optimizations or [], card="A100 40GB", owner="program")
    return asyncio.run(asked)


def test_programs_get_the_json_of_the_command_line(answers: RunAnswers) -> None:
    settings = {"sequence": 64, "dim": 64, "layers": 2, "bias": False, "dim_out": None}
    found = ask(answers, settings=settings, optimizations=[{"name": "split_feed_forward", "splits": 2}])
    assert found["settings"] == {"sequence": "64", "dim": "64", "layers": "2", "bias": "false", "dim_out": "none"}
    assert found["optimizations"] == [{"name": "split_feed_forward", "splits": "2"}]
    assert (found["mode"], found["device"], found["trace"]) == ("predicted", "NVIDIA A100 40GB", None)
    assert found["peak_reserved_bytes"] >= found["peak_allocated_bytes"] >= found["weights_bytes"] > 0
    assert found["numerics"]["verdict"]["ok"] is True


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"workload": "/tmp/own.py:main"}, "There is no workload /tmp/own.py:main"),
        ({"settings": ["batch"]}, "settings must be an object"),
        ({"settings": {"batch": {}}}, "a value must be a text"),
        ({"optimizations": {"name": "x"}}, "optimizations must be a list"),
        ({"optimizations": ["x"]}, "optimizations must be an object"),
        ({"optimizations": [{"every": 2}]}, "There is no optimization"),
        ({"settings": {"batch": "two"}}, "batch is a whole number"),
    ],
)
def test_programs_that_ask_for_what_is_not_there_are_told(answers: RunAnswers, more: Any, words: str) -> None:
    with pytest.raises(MemvizError, match=words):
        ask(answers, **more)


class FakeAnswers(RunAnswers):
    """Answers with a fixed listing, so that no PyTorch is started."""

    def listing(self) -> dict[str, Any]:
        return {"workloads": [{"name": name} for name in ("done", "endless", "refused")]}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAnswers]:
    monkeypatch.setattr(Worker, "module", "tests.runner.fake_worker")
    made = FakeAnswers(TraceStore(), tmp_path, replace(AT_HOME, patience_seconds=3600))
    yield made
    made.close()


async def has_begun(fake: FakeAnswers) -> None:
    while not (orders := list(fake.scheduler._jobs.values())) or orders[0].worker is None:
        await asyncio.sleep(0.02)


def test_a_program_that_goes_away_frees_the_device(fake: FakeAnswers) -> None:
    async def both() -> Any:
        here = [True]
        gone = asyncio.create_task(predict_run(fake, "endless", {}, [], card="", owner="ann", is_there=lambda: here[0]))
        await has_begun(fake)
        waits = asyncio.create_task(predict_run(fake, "done", {}, [], card="", owner="bob"))
        await asyncio.sleep(0.2)
        here[0] = False
        with pytest.raises(UnfinishedRun):
            await gone
        return await waits

    assert asyncio.run(both())["workload"] == "done"


def test_a_program_that_is_cut_off_frees_the_device(fake: FakeAnswers) -> None:
    async def cut() -> None:
        asked = asyncio.create_task(predict_run(fake, "endless", {}, [], card="", owner="ann"))
        await has_begun(fake)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(cut())
    (order,) = fake.scheduler._jobs.values()
    wait_until(lambda: order.status.is_over)
    assert order.status.variants[0].what == "cancelled"


def test_runs_of_one_program_wait_for_each_other_and_none_is_lost(fake: FakeAnswers) -> None:
    async def many() -> list[Any]:
        return await asyncio.gather(*(predict_run(fake, "done", {}, [], card="", owner="ann") for _ in range(20)))

    assert [each["workload"] for each in asyncio.run(many())] == ["done"] * 20


SOURCE = '''
import torch
from torch import nn

def layers(width: int = 256, depth=2, small=False):
    """Layers of mine.

    More words.
    """
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))), {"input": torch.zeros(4, width)}

def _helper():
    raise AssertionError
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_its_functions_are_offered_with_their_parameters_and_run(program: Path, tmp_path: Path) -> None:
    answers = RunAnswers(TraceStore(), tmp_path / "runs", programs=[str(program)])
    try:
        row = answers.listing()["workloads"][0]
        assert (row["title"], row["sentence"]) == ("layers of mine.py", "Layers of mine.")
        knobs = {knob["name"]: (knob["type"], knob["default"]) for knob in row["knobs"]}
        assert (knobs["width"], knobs["depth"], "small" in knobs) == (("int", 256), ("int", 2), False)
        fields = {"workload": f"{program}:layers", "w:width": "512", "numerics": False}
        _, asked = answers.parse(fields)
        assert [(request.workload, request.settings) for request in asked.requests] == [
            (f"{program}:layers", {"width": "512"})
        ]
        done = list(answers.follow(answers.begin(asked, "ann").id))[-1]
        run = done.variants[0].run
        assert run is not None and run.weights_bytes == 4 * 2 * (512 * 512 + 512)
    finally:
        answers.close()


def test_a_page_that_was_not_started_with_it_takes_another_workload(program: Path, tmp_path: Path) -> None:
    answers = RunAnswers(TraceStore(), tmp_path / "runs")
    try:
        assert not any(".py" in row["name"] for row in answers.listing()["workloads"])
        _, asked = answers.parse({"workload": f"{program}:layers"})
        assert not any(".py" in request.workload for request in asked.requests)
    finally:
        answers.close()


def test_a_file_is_read_and_not_executed_to_be_offered(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text("raise SystemExit('executed')\ndef model(size: float = 1.5, name='a'): ...\n")
    (function,) = functions_of(str(path))
    assert [(knob.name, knob.type, knob.default) for knob in function.knobs] == [
        ("size", "float", 1.5),
        ("name", "text", "a"),
    ]
