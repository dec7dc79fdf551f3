"""Modes, lengths, number formats and caches of a model that a config.json describes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner.config_source import checked_config
from memviz.runner.execute import execute
from memviz.runner.output_check.comparison import check_outputs
from memviz.runner.plan import plan_of
from memviz.runner.request import Request, Run
from memviz.runner.workloads.transformers_model import ConfiguredModel, configured_workload
from tests.facts import missing
from tests.marks import slow

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
BERT = {"model_type": "bert", "hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 96, "num_attention_heads": 3}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "num_layers": 2}
SHORT = {"sequence": "64"}


def workload(values: dict[str, Any], **settings: str) -> ConfiguredModel:
    return configured_workload("config.json", settings, checked_config(json.dumps(values)))


def predicted(values: dict[str, Any], **settings: str) -> Run:
    request = Request("config.json", settings, config=checked_config(json.dumps(values)))
    return execute(plan_of(request), lambda phase: None).run


def test_what_is_not_said_is_as_the_configuration_has_it() -> None:
    made = workload(LLAMA)
    assert (made.dtype, made.sequence, made.mode) == ("bf16", 1024, "training")
    assert (workload(LLAMA, dtype="fp32", sequence="7").dtype, workload(BERT).dtype) == ("fp32", "fp32")
    assert workload(BERT).sequence == 512
    facts = ("LlamaForCausalLM", "config.json", "2.30 M parameters", "1 x 1024 tokens", "bf16", "training step")
    assert missing(workload(LLAMA).describe(), *facts) == []


@pytest.mark.parametrize(
    ("values", "settings", "words"),
    [
        ({"model_type": "lama"}, {}, "transformers knows no model_type lama. Similar: llama"),
        (
            {"model_type": "zzzzzzzz"},
            {},
            "knows no model_type zzzzzzzz. For a model with custom code use FILE.py:function",
        ),
        ({**LLAMA, "architectures": ["EagleModel"]}, {}, "architectures names EagleModel, which is not a model"),
        ({**LLAMA, "architectures": ["BertModel"]}, {}, "Remove it for LlamaForCausalLM."),
        (LLAMA, {"sequence": "5000"}, "sequence is 5,000; this model knows 4,096 positions."),
        (LLAMA, {"tokens": "64"}, "tokens sets the KV cache of inference, but mode is training"),
        (BERT, {"tokens": "64", "mode": "inference"}, "has none"),
        (T5, {"tokens": "64", "mode": "inference"}, "has an encoder, whose cache is not predicted. Leave tokens at 0"),
        (LLAMA, {"mode": "lora", "batches": "2"}, "has no knob batches. Did you mean batch?"),
    ],
)
def test_what_does_not_go_is_said_before_it_is_built(
    values: dict[str, Any], settings: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        workload(values, **settings)
    assert str(caught.value).startswith("config.json") and words in str(caught.value)


def test_values_that_do_not_go_together_are_told_in_words() -> None:
    made = workload({**BERT, "hidden_size": 130, "num_attention_heads": 4})
    with torch.device("meta"), pytest.raises(UsageError, match="No BertForMaskedLM can be built from it: .*130"):
        made.build()


@pytest.mark.slow
@pytest.mark.parametrize("values", [LLAMA, BERT, VIT, T5], ids=lambda values: values["model_type"])
def test_training_keeps_more_than_lora_and_lora_more_than_inference(values: dict[str, Any]) -> None:
    # A model of images has no sequence to be set.
    settings = {knob: value for knob, value in SHORT.items() if values is not VIT or knob != "sequence"}
    training, lora, inference = (predicted(values, mode=mode, **settings) for mode in ("training", "lora", "inference"))
    assert training.parameters == inference.parameters < lora.parameters
    assert training.peak_allocated_bytes > lora.peak_allocated_bytes > inference.peak_allocated_bytes
    # Gradients of all weights, and of none.
    assert training.peak_allocated_bytes >= 2 * training.weights_bytes
    assert inference.peak_allocated_bytes < 2 * inference.weights_bytes + (16 << 20)


def test_lora_trains_two_thin_layers_beside_each_linear_one_and_nothing_else() -> None:
    with torch.device("meta"):
        model = workload(LLAMA, mode="lora", rank="4").build()
    trained = {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}
    assert all("lora_" in name for name in trained)
    # Queries, outputs, keys, values, two gates and what comes back from them; the head has none.
    sides = 2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 512)
    assert sum(trained.values()) == 3 * 4 * sides
    assert not any("lm_head.lora" in name for name in trained)


@pytest.mark.slow
def test_each_token_in_the_cache_takes_its_keys_and_values_to_the_byte() -> None:
    one = predicted(LLAMA, mode="inference", tokens="1024")
    two = predicted(LLAMA, mode="inference", tokens="3072")
    # Three layers of two heads, each 64 wide, in two bytes; and one layer's old ones until its new ones are there.
    of_a_token = 2 * 2 * 64 * 2
    assert one.parameters == two.parameters
    grown = two.peak_requested_bytes - one.peak_requested_bytes
    assert grown == 2048 * of_a_token * 3 + 2048 * of_a_token // 2


@pytest.mark.slow
def test_a_pass_with_a_cache_finds_as_many_tokens_each_time() -> None:
    request = Request(
        "config.json", {"mode": "inference", "tokens": "512"}, config=checked_config(json.dumps(LLAMA)), warmup=1
    )
    few = execute(plan_of(request), lambda phase: None).run
    many = execute(plan_of(Request(**{**request.__dict__, "warmup": 6})), lambda phase: None).run
    assert few.peak_requested_bytes == many.peak_requested_bytes


@pytest.mark.parametrize("mode", ["training", *slow("lora")])
def test_its_small_twin_shows_whether_outputs_stay(mode: str) -> None:
    request = Request("config.json", {"mode": mode}, (("checkpointing", {}),), config=checked_config(json.dumps(LLAMA)))
    numerics = check_outputs(plan_of(request), lambda phase: None, "predicted")
    assert numerics is not None
    assert numerics["verdict"]["ok"] is True and "bitwise equal" in numerics["verdict"]["words"]
    assert "64 tokens" in numerics["on"]


@pytest.mark.slow
def test_a_window_shorter_than_the_sequence_takes_a_mask() -> None:
    mistral = {
        **LLAMA,
        "vocab_size": 64,
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 128,
    }
    short, long = (
        predicted({**mistral, "sliding_window": window}, mode="inference", sequence="4096") for window in (8192, 128)
    )
    # One byte for each pair of tokens.
    assert long.peak_requested_bytes >= short.peak_requested_bytes + 4096 * 4096


PUBLISHED = [json.loads(line) for line in (Path(__file__).parent / "published.jsonl").read_text().splitlines()]
"""Published models: page, number of parameters, and differences from the default configuration of the class."""


@pytest.mark.parametrize("row", PUBLISHED[:8] + slow(*PUBLISHED[8:]), ids=lambda row: row["source"].rpartition("/")[2])
def test_its_weights_are_exact(row: dict[str, Any]) -> None:
    workload = configured_workload("config.json", {"dtype": "bf16"}, checked_config(json.dumps(row["config"])))
    with torch.device("meta"):
        model = workload.build()
    weights = list(model.parameters())
    assert sum(weight.numel() for weight in weights) == row["parameters"]
    assert sum(weight.numel() * weight.element_size() for weight in weights) == 2 * row["parameters"]
