"""Another run under other allocator settings, without carrying it out: equal to one that was."""

import json

import pytest

from memviz.runner.execute import predict, predict_again
from memviz.runner.jobs.worker import SearchPredictions
from memviz.runner.plan import plan_of
from memviz.runner.request import Request, Run

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
