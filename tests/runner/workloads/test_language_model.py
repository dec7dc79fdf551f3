"""GPT-2, Llama, Qwen3 and Mixtral: attention without a mask gives what transformers gives, and the loss is theirs."""

from dataclasses import replace
from unittest import TestCase

import pytest
import torch
import torch.nn.functional as F

from memviz.errors import UsageError
from memviz.runner.execute import predict
from memviz.runner.plan import make_workload, plan_of
from memviz.runner.request import Request
from tests.marks import slow
from tests.optimizations.tiny import cache_of

CPU = torch.device("cpu")
EACH = pytest.mark.parametrize("name", ["gpt2", "llama", *slow("qwen3", "mixtral")])


def seeded(workload):
    torch.manual_seed(workload.seed)
    return workload.build()


@pytest.mark.slow
@EACH
def test_the_same_logits_as_with_the_mask_route_of_transformers_and_no_token_sees_a_later_one(name):
    workload = replace(make_workload(name).small(), mode="inference", batch=2)
    model, inputs = seeded(workload), workload.inputs(CPU)
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    changed["input_ids"][0, 40] += 1
    with torch.no_grad():
        before, after = model(**inputs).logits, model(**changed).logits
        model.config._attn_implementation = "sdpa"
        theirs = model(**inputs).logits
    assert torch.equal(before, theirs)
    torch.testing.assert_close(before[0, :40], after[0, :40])
    assert not torch.allclose(before[0, 40:], after[0, 40:])


@EACH
def test_the_loss_is_that_of_the_next_token(name):
    workload = make_workload(name).small()
    model, inputs = seeded(workload), workload.inputs(CPU)
    with TestCase().assertNoLogs("transformers"):
        output = model(**inputs)
        loss = workload.loss(output)
    expected = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())
    torch.testing.assert_close(loss, expected)


@EACH
@pytest.mark.parametrize("cache", [False, True])
def test_keys_and_values_are_kept_only_when_asked(name, cache):
    workload = replace(make_workload(name).small(), mode="inference", cache=cache)
    with torch.no_grad():
        output = seeded(workload)(**workload.inputs(CPU))
    assert (cache_of(output) is not None) is cache


@EACH
def test_a_chosen_kernel_is_predicted_and_only_math_holds_the_scores(name):
    """Also on a GPU: a mask would read values there, and the choice of a kernel must not add one."""
    settings = {"layers": "1", "batch": "1", "sequence": "512"}
    peaks = {}
    for backend in ("math", "flash"):
        chosen = (("attention_backend", {"backend": backend}),)
        plan = plan_of(Request(name, settings, chosen, on="predict"))
        peaks[backend] = predict(plan, lambda phase: None).run.peak_allocated_bytes
    assert peaks["flash"] < peaks["math"]


def test_all_experts_are_held_and_a_token_s_work_is_that_of_two():
    """Four experts fewer remove only their weights and their columns of the router."""
    settings = {"layers": "1", "narrow": "8", "sequence": "64", "mode": "inference"}
    runs = {}
    for experts in (8, 4):
        plan = plan_of(Request("mixtral", {**settings, "experts": str(experts)}, numerics=False))
        runs[experts] = predict(plan, lambda phase: None).run
    width, inner = 4096 // 8, 14336 // 8
    assert runs[8].parameters - runs[4].parameters == 4 * 3 * width * inner + 4 * width
    assert runs[8].flops - runs[4].flops == 2 * 64 * width * 4
    heads = 2 * width * width + 2 * width * 128
    products = heads + 2 * 3 * width * inner + 8 * width + width * (32_000 // 64)
    assert runs[8].flops == 2 * 64 * products + 4 * 64 * 64 * width


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral"])
def test_tokens_read_one_by_one_give_what_all_at_once_give(name):
    small = replace(make_workload(name).small(), mode="inference", cache=True, batch=2)
    after = replace(small, sequence=small.sequence - 5, new_tokens=5)
    inputs = small.inputs(CPU)
    assert torch.equal(after.inputs(CPU)["input_ids"], inputs["input_ids"])
    with torch.no_grad():
        at_once = seeded(small)(**inputs)
        one_by_one = seeded(after)(**inputs)
    torch.testing.assert_close(one_by_one.logits[:, -1], at_once.logits[:, -1])
    assert cache_of(one_by_one).get_seq_length() == small.sequence


def test_tokens_one_by_one_want_a_cache_and_positions():
    with pytest.raises(UsageError, match="set cache=true and mode=inference"):
        make_workload("llama", {"new_tokens": "4", "mode": "inference"})
    with pytest.raises(UsageError, match="32768 and 4 new tokens; Mixtral knows 32,768"):
        settings = {"new_tokens": "4", "mode": "inference", "cache": "true", "sequence": "32768"}
        make_workload("mixtral", settings)
