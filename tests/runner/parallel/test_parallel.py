"""Parallelism settings: parsing, and refusals before anything is built."""

import json
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.runner.plan import plan_of
from memviz.runner.request import ALONE, Parallel, RankClass, Request, command_of, parallel_of

ACCUMULATED = (("gradient_accumulation", {"pieces": "2"}),)


@pytest.mark.parametrize(
    ("texts", "made"),
    [
        ({}, ALONE),
        ({"gpus": "1"}, ALONE),
        ({"gpus": "8"}, Parallel(shard=8)),
        ({"gpus": "8", "tensor": "2"}, Parallel(tensor=2, shard=4)),
        ({"gpus": "8", "data": "8"}, Parallel(data=8)),
        ({"gpus": "16", "data": "2", "pipeline": "2", "tensor": "2"}, Parallel(2, 2, 2, 2)),
        ({"shard": "4", "tensor": "2"}, Parallel(shard=4, tensor=2)),
        ({"gpus": "6", "shard": "3", "data": "2"}, Parallel(data=2, shard=3)),
        ({"gpus": "8", "shard": " "}, Parallel(shard=8)),
        ({"gpus": "8", "data": "2", "offload": "cpu"}, Parallel(data=2, shard=4, offload=True)),
    ],
)
def test_what_the_others_leave_is_sharded(texts: dict[str, str], made: Parallel) -> None:
    assert parallel_of(texts) == made
    assert parallel_of(made.as_texts) == made


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"gpus": "8", "tensor": "3"}, "gpus is 8, but 3 tensor are 3: 3 must divide it"),
        ({"gpus": "8", "shard": "4"}, "gpus is 8, but 4 shard are 4: their product must equal gpus"),
        ({"gpus": "0"}, "gpus must be a whole number from 1 to 4,096, not 0"),
        ({"tensor": "two"}, "tensor must be a whole number"),
        ({"expert": "2"}, "there is no expert"),
        ({"gpus": "2", "offload": "disk"}, "offload must be cpu, not disk"),
        ({"gpus": "2", "data": "2", "offload": "cpu"}, "set shard to 2 or more"),
        ({"data": "4096", "shard": "2"}, "8,192 GPUs exceed the limit of 4,096"),
    ],
)
def test_what_cannot_be_is_refused(texts: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parallel_of(texts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"on": "cuda"}, "8 GPUs: 8 shard can be predicted but not measured"),
        ({"optimizations": (("split_feed_forward", {}),)}, "split_feed_forward is supported on one GPU only"),
        ({"parallel": {"tensor": "2"}, "optimizations": (("lora", {}),)}, "lora does not support tensor"),
        (
            {"parallel": {"data": "2"}, "optimizations": (("lora", {}), ("weight_quantization", {}))},
            "weight_quantization does not support data parallelism: drop it, or set data=1",
        ),
        ({"parallel": {"data": "2", "tensor": "2"}}, "set shard to 2 or more"),
        (
            {"parallel": {"pipeline": "2"}, "settings": {"batch": "2"}, "optimizations": ACCUMULATED},
            "gradient_accumulation does not support pipeline parallelism",
        ),
        (
            {"parallel": {"tensor": "2"}, "optimizations": (("chunked_cross_entropy", {}),)},
            "chunked_cross_entropy does not support tensor parallelism: drop it, or set tensor=1",
        ),
    ],
)  # fmt: skip
def test_a_plan_says_what_does_not_go_on_many(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan_of(Request(**{"workload": "llama", "parallel": {"gpus": "8"}, **change}))


def test_a_command_says_how_many_and_a_pipeline_has_work_for_all_stages() -> None:
    request = Request("llama", parallel={"gpus": "8", "pipeline": "4"})
    plan = plan_of(request)
    assert command_of(request).endswith("--gpus 8 --parallel pipeline=4")
    assert plan.passes == 4 and plan.describes.endswith("of 4 micro-batches, on 8 GPUs: 4 pipeline x 2 shard")
    assert "--gpus" not in command_of(Request("llama"))


def test_a_class_of_a_file_is_one_or_refused() -> None:
    one = RankClass((0, 2), 5, 8, 4, 1, "yes")
    said = json.loads(json.dumps(vars(one)))
    assert RankClass.from_json(said) == one
    wrong = ({"ranks": []}, {"ranks": ["0"]}, {"ranks": [-1]}, {"peak_reserved_bytes": 1.5}, {"fit": "<b>"})
    for change in wrong:
        with pytest.raises(TypeError):
            RankClass.from_json({**said, **change})
