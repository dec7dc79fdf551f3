"""Another run under other allocator settings, without carrying it out: equal to one that was."""

import gc
import hashlib
import json
import os
import subprocess
import sys

import pytest

from memviz.runner.execute import predict, predict_again
from memviz.runner.jobs.worker import SearchPredictions
from memviz.runner.plan import plan_of
from memviz.runner.request import Request, Run
from memviz.trace.write import write_pickle
from tests import forked

pytestmark = pytest.mark.slow

SETTINGS = (
    *("expandable_segments:True", "garbage_collection_threshold:0.6", "max_split_size_mb:64"),
    "roundup_power2_divisions:4",
)
CASES = {
    "training": Request("gpt2", {"layers": "2"}, card="T4", optimizer="adamw"),
    "checkpoints on the host": Request(
        "llama", {"layers": "2"}, (("checkpointing", {"every": "1", "offload": "true"}),), card="T4"
    ),
    "weights in fp8": Request(
        "ltx_video",
        {"layers": "2", "mode": "inference"},
        (("layerwise_casting", {"storage": "float8_e4m3fn"}),),
        card="T4",
    ),
    "weights on the host": Request(
        "flux", {"double_layers": "1", "single_layers": "1"}, (("weight_offload", {"granularity": "leaf"}),), card="T4"
    ),
    "no room": Request("llama", {"layers": "4"}, card="T4", optimizer="adamw"),
}


def under(request: Request, conf: str) -> Request:
    return Request(
        **{**vars(request), "optimizations": (("allocator_settings", {"conf": conf}), *request.optimizations)}
    )


def figures(run: Run) -> dict[str, object]:
    """Return a run's figures without its duration and the event at which memory ran out."""
    known = json.loads(json.dumps(run.as_json()))
    del known["took_seconds"], known["fit"]["event"]
    return known


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_the_run_itself_would_be(case: str) -> None:
    done = predict(plan_of(CASES[case]), lambda phase: None)
    for conf in SETTINGS if case == "training" else SETTINGS[:2]:
        plan = plan_of(under(CASES[case], conf))
        assert figures(predict_again(plan, done)) == figures(predict(plan, lambda phase: None).run), conf


def test_it_goes_back_to_no_settings_too() -> None:
    request = CASES["training"]
    done = predict(plan_of(under(request, "expandable_segments:True")), lambda phase: None)
    plain = predict(plan_of(request), lambda phase: None)
    assert figures(predict_again(plan_of(request), done)) == figures(plain.run)


def test_a_search_carries_out_only_what_asks_for_other_memory() -> None:
    said: list[tuple[str, int, dict]] = []
    runs = SearchPredictions(lambda kind, number, **rest: said.append((kind, number, rest)))
    requests = [CASES["training"], under(CASES["training"], SETTINGS[0]), CASES["no room"]]
    for number, request in enumerate(requests):
        runs.run(number, request)
    stepped = {number for kind, number, _ in said if kind == "phase"}
    done = {number: rest["run"]["request"]["workload"] for kind, number, rest in said if kind == "done"}
    assert (stepped, done) == ({0, 2}, {0: "gpt2", 1: "gpt2", 2: "llama"})


# Predictions are deterministic: equal bytes, events, addresses, stacks and order, in every process.


SHORT = {
    "feed_forward": {"layers": "2", "mode": "training"},
    "flux_pipeline": {
        "double_layers": "1",
        "single_layers": "1",
        "text_layers": "1",
        "short_text_layers": "1",
        "denoising": "1",
        "resolution": "256x256",
    },
    "cogvideox": {"layers": "1", "mode": "training"},
    "llama": {"layers": "2"},
    "vit": {"layers": "2"},
}
"""One of each family of libraries. Repeated layers occur once or twice: each further block does the same."""
EXTRAS = (
    Request("gpt2", {"layers": "2", "mode": "training"}, optimizer="adamw", steps=2),
    Request("ltx_video", {"layers": "2"}, (("checkpointing", {"every": "2"}),), optimizer="adamw-fused"),
    Request("llama", {"layers": "1", "mode": "training", "micro_batches": "2"}, (("flat_gradients", {}),)),
)


def requests() -> list[Request]:
    return [*(Request(name, settings) for name, settings in SHORT.items()), *EXTRAS]


def file_of(request: Request) -> str:
    """Return the hash of the written trace file, with every column and string."""
    written = hashlib.sha256()

    class Sink:
        def write(self, data: bytes) -> int:
            written.update(data)
            return len(data)

    write_pickle(predict(plan_of(request), lambda phase: None).trace, Sink())
    return written.hexdigest()


@pytest.mark.parametrize("request_", requests(), ids=lambda each: f"{each.workload}-{each.optimizer}")
def test_a_second_run_in_the_same_process_writes_the_same_file(request_: Request) -> None:
    first = file_of(request_)
    garbage: list[list[object]] = [[] for _ in range(500)]
    for each in garbage:
        each.append(each)
    del garbage
    gc.collect(0)
    assert file_of(request_) == first


def test_processes_with_different_hashes_write_the_same_files() -> None:
    # In processes of their own: once torch.compile was called, torch wraps the optimizers, which their stacks show.
    program = (
        "from tests.predictor.test_predict_again import EXTRAS, Request, file_of; "
        "print(*map(file_of, [Request('transformer_block'), EXTRAS[0]]))"
    )

    def files_with_hash(seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        ran = subprocess.run(command, cwd=forked.ROOT, env=environment, capture_output=True, text=True, check=True)
        return ran.stdout.split()

    # Python chose another seed for the process that this one is forked from.
    ran = forked.run(["-c", program], of=forked.with_torch, cwd=forked.ROOT)
    assert ran.stdout.split() == files_with_hash("12345"), ran.stderr
