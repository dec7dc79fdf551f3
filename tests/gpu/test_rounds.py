"""Which cases are carried out, and what one that goes wrong costs the others."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memviz.runner.jobs import worker
from tests.gpu import case as in_process
from tests.gpu import process as processes
from tests.gpu.case import Case, answer, order_of
from tests.gpu.conftest import is_wanted, parts
from tests.gpu.parts import CASES, PARTS
from tests.gpu.process import Processes, environment_with
from tests.gpu.results import Results
from tests.gpu.rounds import Round
from tests.house.repository import outline_of, python_files
from tests.house.test_imports import imported
from tests.runner.processes import is_there, wait_until


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def round_in(folder: Path, minutes: float = 5, **known: Any) -> Round:
    """On a card, where a case takes as long as was expected."""
    time = Time()

    def carry_out(case: Case, seconds: float) -> str:
        time.now += min(case.seconds, seconds)
        Results(folder).write({"part": case.part, "name": case.name, "machine": {}, "result": {"ran_out": ""}})
        return ""

    return Round(Results(folder), 60 * minutes, lambda: True, carry_out, now=time, **known)


def test_what_does_not_fit_is_named_and_shorter_ones_still_come(tmp_path):
    a_round = round_in(tmp_path, minutes=1)
    reasons = []
    for seconds in (20, 200, 20, 30):
        case = Case("capture", f"of-{seconds}-{len(reasons)}", seconds=seconds)
        reasons.append(a_round.why_not(case) or a_round.carry_out(case))
    too_long = "not run: it needs about {} s, and less is left of --minutes"
    assert reasons == ["", too_long.format(200), "", too_long.format(30)]


def test_what_stands_in_out_is_done_again_only_when_asked(tmp_path):
    case = Case("capture", "a")
    assert round_in(tmp_path).carry_out(case) == ""
    assert round_in(tmp_path).why_not(case) == "stands in OUT already; --again repeats it"
    assert round_in(tmp_path, again=True).why_not(case) == ""


def test_a_case_that_failed_is_done_again(tmp_path):
    Results(tmp_path).write({"part": "capture", "name": "a", "machine": {}, "failed": "lost"})
    assert round_in(tmp_path).why_not(Case("capture", "a")) == ""


def test_what_looks_at_another_case_waits_for_it(tmp_path):
    case, of = Case("replay", "capture-a", needs_gpu=False, of=("capture", "a")), Case("capture", "a")
    a_round = round_in(tmp_path)
    assert a_round.why_not(case) == "capture/a is not in OUT"
    a_round.carry_out(of)
    assert a_round.why_not(case) == ""


def test_what_ran_out_is_not_predicted(tmp_path):
    result = {"ran_out": "Tried to allocate"}
    Results(tmp_path).write({"part": "capture", "name": "a", "machine": {}, "result": result})
    reason = round_in(tmp_path).why_not(Case("truth", "a", needs_gpu=False, of=("capture", "a")))
    assert reason == "the run ran out of memory, and predictions are of whole runs"


@pytest.mark.parametrize(
    ("case", "card_gib", "words"),
    [
        (Case("capture", "a", gib=10), 15.0, ""),
        (Case("capture", "a", gib=10), None, ""),
        (Case("capture", "a", gib=16.5), 14.7, "needs about 16.5 GiB of the card, which has 14.7"),
        (Case("capture", "a", libraries=("no_such",)), 80.0, "no_such cannot be imported here"),
    ],
)
def test_what_cannot_be_done_here_says_why(case, card_gib, words, tmp_path):
    if card_gib is not None:
        machine = {"memory_bytes": card_gib * (1 << 30)}
        Results(tmp_path).write({"part": "check", "name": "start", "machine": machine, "result": {}})
    assert round_in(tmp_path).why_not(case) == words


def test_without_a_gpu_only_what_needs_none_is_left(tmp_path):
    a_round = round_in(tmp_path)
    a_round.has_gpu = lambda: False
    reasons = {case.part: a_round.why_not(case) for case in CASES if case.of is None}
    assert set(reasons.values()) == {"there is no GPU here that torch can use"}
    assert set(PARTS) - set(reasons) == {"what-if", "replay", "truth", "seeds-predicted", "samples"}


def test_parts_and_the_short_round_are_chosen(pytestconfig):
    assert parts("truth, check") == ("truth", "check")
    with pytest.raises(Exception, match="there is no part nonsense; there are check, capture"):
        parts("capture,nonsense")
    config: Any = type("Config", (), {"getoption": lambda _self, name, default: name == "small" or default})()
    by_part = {part: [is_wanted(case, config) for case in CASES if case.part == part] for part in PARTS}
    assert all(any(wanted) for wanted in by_part.values())
    assert not all(by_part["capture"])


def test_names_are_those_of_files_and_each_is_there_once():
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(set(case.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for case in CASES)
    assert {case.of for case in CASES if case.of} <= {(case.part, case.name) for case in CASES}


def test_a_case_that_cannot_do_its_work_leaves_its_words(tmp_path):
    case = Case("replay", "lost", needs_gpu=False, of=("capture", "never-captured"))
    found = answer(case, tmp_path, {"commit": "c"})
    assert found["failed"] == "AssertionError: capture/never-captured is not in OUT"
    assert "result" not in found
    assert "replay.py" in found["where"]
    assert (found["command"], found["machine"]["commit"]) == ("python -m tests.gpu --out OUT -k replay/lost", "c")


def test_an_order_is_carried_out_as_the_case_that_was_sent(tmp_path, monkeypatch):
    case = Case("replay", "lost", needs_gpu=False, of=("capture", "never-captured"))
    monkeypatch.setattr(worker, "warm_up", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(order_of(case, tmp_path, {"commit": "c"}) + "\n"))
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(in_process, "_end_with_whoever_began_it", lambda: None)
    in_process.main()
    found = Results(tmp_path).read("replay", "lost")
    assert found is not None
    assert (found["failed"], found["machine"]["commit"]) == (
        "AssertionError: capture/never-captured is not in OUT",
        "c",
    )


def script_for(tmp_path, monkeypatch, text: str, is_ready: Callable[[int], bool] = bool) -> Processes:
    """Cases carried out by a script in the place of their own process, once it is ready."""
    script = tmp_path / "case.py"
    script.write_text(text)

    def begun(environment: Any) -> Any:
        command = [sys.executable, "-S", "-E", str(script)]
        everything = environment_with(environment)
        process = processes.subprocess.Popen(command, stdin=-1, env=everything, start_new_session=True)
        wait_until(lambda: is_ready(process.pid))
        return process

    monkeypatch.setattr(processes, "_begun", begun)
    return Processes(Results(tmp_path), {"commit": "c"})


def test_a_process_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    folder = tmp_path / "children"
    folder.mkdir()
    hangs = f"""
import os, sys, time
parent = os.getpid()
if os.fork() == 0:
    open(f"{folder}/{{parent}}", "w").write(str(os.getpid()))
    time.sleep(600)
sys.stdin.readline()
time.sleep(600)
"""

    def child_of(parent: int) -> str:
        return (folder / str(parent)).read_text() if (folder / str(parent)).exists() else ""

    cases = script_for(tmp_path, monkeypatch, hangs, lambda parent: bool(child_of(parent)))
    words = cases.carry_out(Case("replay", "slow"), 1.0)
    cases.end()
    assert words == "It took longer than 1 seconds and was stopped."
    found = Results(tmp_path).read("replay", "slow")
    assert found is not None
    assert (found["failed"], found["machine"]) == (words, {"commit": "c"})
    children = [int(each.read_text()) for each in folder.iterdir()]
    # The second is that of the process begun ahead.
    assert len(children) == 2
    wait_until(lambda: not any(map(is_there, children)))


def test_a_process_that_aborts_loses_no_other_and_leaves_its_last_words(tmp_path, monkeypatch):
    Results(tmp_path).log_of("replay", "bad").write_text("CUDA error: an illegal memory access")
    aborts = "import json, os, sys\nif json.loads(sys.stdin.readline())['case']['name'] == 'bad': os.abort()\n"
    cases = script_for(tmp_path, monkeypatch, aborts)
    words = [cases.carry_out(Case("replay", name), 60) for name in ("bad", "next")]
    cases.end()
    assert words == ["Its process ended with status -6. CUDA error: an illegal memory access", ""]


def test_allocator_settings_are_those_of_the_case_alone(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment_with({})
    by_name = {case.name: environment_with(case.environment) for case in CASES if case.part == "capture"}
    assert "PYTORCH_CUDA_ALLOC_CONF" not in by_name["gpt2"]
    for name in ("gpt2-expandable", "lengths-expandable"):
        assert by_name[name]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"


def test_a_bare_machine_with_a_gpu_needs_torch_and_pytest_alone():
    """Models come from diffusers and transformers, which a case names that needs one."""
    free = {*sys.stdlib_module_names, "memviz", "optimizations", "tests", "numpy", "torch", "pytest"}
    of_tests = ("test_rounds", "test_capture", "test_checks", "test_seeds", "test_truth", "test_what_if", "not_there")
    names = [name for name in python_files() if name.startswith("tests/gpu/") and Path(name).stem not in of_tests]
    assert "tests/gpu/test_on_a_gpu.py" in names
    needed = {each for name in names for each in imported(name, outline_of(name))}
    assert {each.split(".")[0] for each in needed} <= free
    assert {each for each in needed if each.startswith(("memviz.ui", "memviz.figures", "memviz.headlines"))} == set()
