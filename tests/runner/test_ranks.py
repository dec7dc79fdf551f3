"""A workload on several GPUs: what each rank holds, which are equal, and gradients that are those of one process."""

import json
import os
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.predictor.estimate import fingerprint_of
from memviz.predictor.group.ranks import GroupRank
from memviz.runner.execute import predict, predict_plan
from memviz.runner.fit.cost import speed_of
from memviz.runner.fit.predictions import prediction_of
from memviz.runner.fit.search import cost_of_slowest
from memviz.runner.jobs.worker import answer
from memviz.runner.jobs.worker_process import RunEvent
from memviz.runner.plan import plan_of
from memviz.runner.request import Request, Run, file_of_rank, load_run, parallel_of
from memviz.runner.step import Outcome
from memviz.trace.model import Category
from tests import forked

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")]
LLAMA = {"size": "8b", "layers": "3", "narrow": "4", "sequence": "64"}
SHARDED_UNEVENLY = (("shard", "3"),)
STAGES = (("pipeline", "2"), ("shard", "2"))
ALL_AXES = (("pipeline", "2"), ("shard", "2"), ("tensor", "2"))


def request(axes: tuple[tuple[str, str], ...], workload: str = "llama", **more: Any) -> Request:
    return Request(workload, LLAMA, optimizer="adamw", numerics=False, parallel=dict(axes), **more)


@cache
def done(axes: tuple[tuple[str, str], ...], optimization: str = "") -> Outcome:
    chosen = ((optimization, {}),) if optimization else ()
    return predict_plan(plan_of(request(axes, optimizations=chosen)), lambda phase: None)


@cache
def alone() -> Run:
    return predict(plan_of(request(())), lambda phase: None).run


@pytest.mark.parametrize("axes", [SHARDED_UNEVENLY, STAGES, ALL_AXES, (("tensor", "2"),), (("data", "2"),)])
def test_ranks_together_hold_the_model(axes: tuple[tuple[str, str], ...]) -> None:
    """Copies hold all of it each; norms are on every rank that parts its matrices."""
    run, parallel = done(axes).run, parallel_of(dict(axes))
    held = sum(len(one.ranks) * one.weights_bytes for one in run.classes)
    norms = (parallel.tensor - 1) * (2 * 3 + 1) * 1024 * 2
    assert held == alone().weights_bytes * parallel.data + norms
    assert run.parameters == alone().parameters
    assert sorted(rank for one in run.classes for rank in one.ranks) == list(range(parallel.gpus))


@pytest.mark.parametrize("axes", [SHARDED_UNEVENLY, STAGES])
def test_equal_ranks_are_equal(axes: tuple[tuple[str, str], ...]) -> None:
    """Equal ranks are detected without running them all; here they all run."""
    outcome, plan = done(axes), plan_of(request(axes))
    whole = outcome.run
    traces = {whole.rank: outcome.trace, **{rank: other.trace for rank, other in outcome.others.items()}}
    assert len(traces) == len(whole.classes) == 2
    for one in whole.classes:
        for rank in one.ranks:
            mine = predict(plan, lambda phase: None, GroupRank(rank, plan.parallel.gpus))
            assert fingerprint_of(mine.trace) == fingerprint_of(traces[one.predicted_rank])
            assert mine.run.peak_reserved_bytes == one.peak_reserved_bytes


def test_the_fullest_rank_speaks_for_all() -> None:
    run = done(STAGES).run
    fullest = max(run.classes, key=lambda one: one.peak_reserved_bytes)
    assert (run.rank, run.peak_reserved_bytes) == (fullest.predicted_rank, fullest.peak_reserved_bytes)
    assert Run.from_json(json.loads(json.dumps(run.as_json()))) == run
    assert any("No prediction of a rank" in note for note in run.notes)


def test_a_step_takes_as_long_as_that_of_the_slowest_rank() -> None:
    """Here that is a first stage: it has two of three blocks, and the last one a head as large as half a block."""
    run, plan, speed = done(STAGES).run, plan_of(request(STAGES)), speed_of("NVIDIA A100 80GB")
    first, last = sorted(run.classes, key=lambda one: one.predicted_rank)
    assert 0 < last.flops < first.flops
    # As if the other rank were the fullest: its work does not determine the step time of all.
    lighter = replace(run, flops=last.flops, bytes_moved=last.bytes_moved, host_bytes=0, link_bytes=last.link_bytes)
    costs = [
        cost_of_slowest(plan, prediction_of(RunEvent("done", 0, run=speaks)), speed)
        for speaks in (lighter, run, replace(lighter, classes=()))
    ]
    assert costs[0] == costs[1] and (costs[0].flops, costs[0].link_bytes) == (first.flops, first.link_bytes)
    assert (costs[0].seconds_high or 0) > (costs[2].seconds_high or 0)


def test_states_are_sharded_with_the_weights() -> None:
    """AdamW's two states are as large as the weights; live bytes after a step fall with the number of shards."""
    eight, two = (done((("shard", str(count)),)).run for count in (8, 2))
    saved = alone().weights_bytes * (1 / 2 - 1 / 8)
    # Weights and two states; gradients are gone by the optimizer's phase in neither.
    assert two.peak_requested_bytes - eight.peak_requested_bytes >= 3 * saved


def live(outcome: Outcome, category: Category) -> int:
    labels, blocks = outcome.trace.devices[0].block_labels, outcome.trace.devices[0].blocks
    assert labels is not None
    return int(blocks.requested[(labels.category == category) & (blocks.requested > 0)].sum())


def test_offloaded_shards_stay_in_host_memory_with_gradients_and_states() -> None:
    """The card has no shard between steps; forward and backward copy each of them to it once."""
    outcome, on_card = done((("shard", "2"), ("offload", "cpu"))), done((("shard", "2"),)).run
    run, weights = outcome.run, on_card.weights_bytes
    assert live(outcome, Category.PARAMETER) == live(outcome, Category.OPTIMIZER_STATE) == 0
    assert run.weights_bytes == weights
    assert weights <= (run.pinned_host_bytes or 0) < 2 * weights
    # Weights, gradients and two states, where the shards on the card leave the host with the weights alone.
    assert (run.host_peak_bytes or 0) >= 4 * weights > (on_card.host_peak_bytes or 0)
    assert (run.host_bytes or 0) >= 2 * weights > (on_card.host_bytes or 0)
    assert on_card.peak_reserved_bytes - run.peak_reserved_bytes > 2 * weights


def test_adapters_and_codes_are_sharded_with_the_weights() -> None:
    """Each of two ranks holds half of the codes, scales and adapters, and states of its half of the adapters alone."""
    changes = (("lora", {"rank": "8"}), ("weight_quantization", {"bits": "4", "group": "64"}))
    half = predict_plan(plan_of(request((("shard", "2"),), optimizations=changes)), lambda phase: None)
    whole = predict(plan_of(request((), optimizations=changes)), lambda phase: None)
    assert sum(len(one.ranks) * one.weights_bytes for one in half.run.classes) == whole.run.weights_bytes
    assert half.run.parameters == whole.run.parameters
    states = live(whole, Category.OPTIMIZER_STATE)
    # A step count of four bytes for each adapter is on every rank.
    assert 0 < states // 2 <= live(half, Category.OPTIMIZER_STATE) < 0.51 * states + 4096


def test_adapters_are_copied_with_the_weights() -> None:
    copied = predict_plan(plan_of(request((("data", "2"),), optimizations=(("lora", {}),))), lambda phase: None)
    whole = predict(plan_of(request((), optimizations=(("lora", {}),))), lambda phase: None)
    assert copied.run.weights_bytes == whole.run.weights_bytes
    assert live(copied, Category.OPTIMIZER_STATE) == live(whole, Category.OPTIMIZER_STATE) > 0
    # Buckets for the gradients of the adapters.
    assert copied.run.peak_allocated_bytes > whole.run.peak_allocated_bytes


def test_checkpointing_saves_on_every_rank() -> None:
    plain, less = done(STAGES).run, done(STAGES, "checkpointing").run
    for before, after in zip(plain.classes, less.classes, strict=True):
        assert after.peak_requested_bytes < before.peak_requested_bytes


@pytest.mark.parametrize(
    ("workload", "axes", "words"),
    [
        ("feed_forward", {"tensor": "2"}, "tensor parallelism needs a transformers decoder"),
        ("feed_forward", {"pipeline": "2"}, "pipeline parallelism needs a transformers decoder"),
        ("mixtral", {"tensor": "2"}, "tensor cannot split this model: .*moe"),
        ("llama", {"tensor": "3"}, "tensor is 3, and this model's num_attention_heads are 8"),
        ("llama", {"pipeline": "4"}, "pipeline has 4 stages, but this model has 3 blocks"),
    ],
)
def test_a_model_that_cannot_be_parted_so_says_why(workload: str, axes: dict[str, str], words: str) -> None:
    settings = {
        "llama": LLAMA,
        "mixtral": {"layers": "2", "narrow": "8", "sequence": "64"},
        "feed_forward": {"mode": "training"},
    }
    with pytest.raises(UsageError, match=words):
        predict_plan(plan_of(Request(workload, settings[workload], parallel=axes)), lambda phase: None)


def test_each_class_has_a_file(tmp_path: Path) -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    answer(0, request(STAGES), tmp_path, lambda kind, number, **rest: said.append((kind, rest)))
    kind, rest = said[-1]
    assert kind == "done", rest
    own, run = tmp_path / rest["file"], Run.from_json(rest["run"])
    for one in run.classes:
        trace, of_rank = load_run(file_of_rank(own, one.predicted_rank, run.rank))
        assert of_rank.rank == one.predicted_rank and of_rank.peak_reserved_bytes == one.peak_reserved_bytes
        assert trace.about.facts["rank"] == str(one.predicted_rank)
    assert len(list(tmp_path.iterdir())) == len(run.classes) == 2


ROUNDING = 1e-4
WAYS = (
    *("tensor", "pipeline", "shard", "shard+chunked_cross_entropy", "shard+chunked_feed_forward"),
    *("tensor+chunked_feed_forward", "pipeline+chunked_feed_forward"),
)


def test_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    ranks = [_begun(GroupRank(number, 2), tmp_path / "meet") for number in range(2)]
    for process in ranks:
        out, errors = process.communicate(timeout=forked.MOST_SECONDS)
        assert process.returncode == 0, errors
        off = dict(line.split() for line in out.splitlines())
        assert tuple(off) == WAYS and all(float(share) < ROUNDING for share in off.values()), out


def _begun(rank: GroupRank, meet_at: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, **rank.environment, "MEET_AT": meet_at.as_uri(), "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(forked.ROOT)}
    program = ["-W", "ignore", "-m", "tests.runner.two_processes", *WAYS]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return forked.start(program, of=forked.with_torch, cwd=forked.ROOT, env=environment, **streams)
