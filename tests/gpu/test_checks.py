"""Of the questions put to a card, those parts that can be tried without one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from memviz.runner.measure import cuda_device
from memviz.runner.predict.cards import CARDS, card_named
from memviz.runner.predict.predicted_device import PredictedDevice
from tests.gpu import seeds
from tests.gpu.checks import first, recorder
from tests.gpu.checks.asked import asked
from tests.gpu.checks.card import known_as
from tests.gpu.checks.operators import MADE, _rise
from tests.gpu.not_there import NotThere
from tests.runner.torch_storages import watching_torch


@pytest.mark.parametrize(
    ("said", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40GB"),
        ("NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA Nothing", None),
    ],
)
def test_a_card_is_known_by_what_its_driver_says(said, card):
    found = known_as(said)
    assert (None if found is None else found.name) == card


def test_every_card_of_ours_is_known_by_its_own_name():
    assert [known_as(each.name) for each in CARDS] == list(CARDS)


@pytest.mark.parametrize("name", MADE)
def test_each_operator_can_be_predicted(name):
    assert _rise(PredictedDevice(card_named("A100 80GB")), MADE[name]) >= 0


def test_the_rise_is_that_of_the_second_time_alone():
    """16 MiB of heads, in and out: gradients of three, the result, its gradient, and what the kernel keeps by row."""
    mib = 1 << 20
    one = 2 * 16 * 2048 * 64 * 2
    rise = _rise(PredictedDevice(card_named("H100"), release=(2, 11)), MADE["attention backward"])
    assert 5 * one <= rise <= 5 * one + mib


def test_an_answer_is_right_where_it_is_the_expected_one():
    assert [asked("a", 1, each)["ok"] for each in (1, 2)] == [True, False]
    assert asked("a", "< 2", 1.5, ok=True)["ok"]


MIB = 1 << 20
SMALL = {"sequence": "64", "dim": "64", "layers": "2"}


def answers_of(question: Any, folder: Path, **more: Any) -> list[Any]:
    return [(each["ok"], each["got"]) for each in question(folder, **more)]


def test_a_card_that_starts_and_one_that_does_not(tmp_path):
    assert answers_of(first.start, tmp_path, accelerator=NotThere().accelerator) == [(True, "")]
    gpu = NotThere()
    gpu.refuses = "The NVIDIA driver on your system is too old."
    ((is_right, words),) = answers_of(first.start, tmp_path, accelerator=gpu.accelerator)
    assert not is_right and gpu.refuses in words


@pytest.mark.slow
def test_what_drawing_leaves_on_the_card_is_seen(tmp_path):
    gpu = NotThere()
    with watching_torch(gpu):
        assert answers_of(first.drawn, tmp_path, accelerator=gpu.accelerator, settings=SMALL) == [(True, 0)] * 2
        held = torch.ones(1000)
        answers = answers_of(first.drawn, tmp_path, accelerator=gpu.accelerator, settings=SMALL)
        assert answers == [(False, held.nbytes)] * 2


@pytest.mark.slow
def test_a_run_with_adamw_is_timed_within_the_peak_of_the_recorded_one(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_device, "FILLED_SECONDS", 0.0)
    gpu = NotThere()
    with watching_torch(gpu):
        answers = answers_of(first.barely_fits, tmp_path, accelerator=gpu.accelerator, settings=SMALL)
    assert [is_right for is_right, _ in answers] == [True, True]


@pytest.mark.parametrize(("printed", "is_right"), [("true", True), ("false", False)])
def test_expandable_segments_are_asked_for_in_a_process_that_has_them_set(tmp_path, printed, is_right):
    program = f"""
import os
assert "expandable_segments:True" in os.environ["PYTORCH_CUDA_ALLOC_CONF"]
print(\'{{"settings": true, "segments": {printed}, "warned": []}}\')
"""
    ((found, _),) = answers_of(first.expandable, tmp_path, program=program)
    assert found is is_right


def test_a_program_that_fails_is_an_answer_too(tmp_path):
    ((is_right, got),) = answers_of(first.expandable, tmp_path, program="raise KeyError('no cuda')")
    assert not is_right and "no cuda" in got["failed"]


ON_A_FAKE_GPU = (sys.executable, "-c", "from tests.runner.one_gpu import main; main()")


def test_how_long_a_recording_takes_to_be_written_is_asked(tmp_path):
    program = """
import time
from tests.runner.one_gpu import GPU
GPU.init()
kept = GPU.malloc(4096)
print("ready", flush=True)
time.sleep(600)
"""
    answers = answers_of(first.dump_time, tmp_path, program=program, record=ON_A_FAKE_GPU)
    assert [is_right for is_right, _ in answers] == [True] * 3


@pytest.mark.slow
def test_a_script_that_is_recorded_begins_with_its_first_allocation(tmp_path):
    program = """
from tests.runner.one_gpu import GPU
GPU.init()
kept = [GPU.malloc(4 * 3072 * 1024), GPU.malloc(4096)]
"""
    answers = answers_of(recorder.command, tmp_path, program=program, record=ON_A_FAKE_GPU)
    assert [is_right for is_right, _ in answers] == [True] * 3
    assert answers[1][1].startswith("memviz: 4 events written")


def test_the_first_allocation_is_the_one_asked_for(tmp_path):
    class Woken(NotThere):
        """By the first tensor, as CUDA is."""

        def adopt(self, address: int, size: int) -> None:
            self.init()
            super().adopt(address, size)

    gpu = Woken(is_used=False)
    with watching_torch(gpu):
        answers = answers_of(recorder.first_allocation, tmp_path, accelerator=gpu.accelerator)
    assert answers == [(True, False), (True, False), (True, 20 * MIB)]


def test_running_out_is_told_before_the_error(tmp_path):
    gpu = NotThere(limit=512 * MIB)
    with watching_torch(gpu):
        answers = answers_of(recorder.out_of_memory, tmp_path, accelerator=gpu.accelerator)
    assert [is_right for is_right, _ in answers] == [True] * 4


def test_the_noise_of_a_step_is_asked_in_the_dtype_of_the_run(tmp_path, monkeypatch):
    dtypes = []
    whole = seeds.small_of
    monkeypatch.setattr(seeds, "small_of", lambda plan: dtypes.append(plan.workload.dtype) or whole(plan))
    answers = answers_of(first.noise, tmp_path, accelerator=NotThere().accelerator, settings=SMALL)
    assert answers == [(True, 0), (True, True)] * 2
    assert dtypes == ["bf16", "fp32"]
