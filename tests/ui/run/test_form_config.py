"""Tests of a config.json in the form: taken as a text, checked first, and never a path."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.runner.config_source import SWITCH
from memviz.ui.run.answer import RunAnswers
from memviz.ui.run.form import changed, config_of, form_fields_of, requests_of
from memviz.ui.run.form_html import config_field_html, form_html
from memviz.ui.run.programs import predict_run
from tests.ui.page import elements

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
FIELDS = {"workload": "config.json", "w:sequence": "32", "w:mode": "lora", "card": "NVIDIA GeForce RTX 4090"}


def faults(answers: RunAnswers, **fields: Any) -> dict[str, str]:
    form = form_fields_of({**FIELDS, **fields}, answers.listing())
    return dict(requests_of(form, answers.listing()).faults)


def test_its_text_becomes_the_request_in_few_letters(answers: RunAnswers) -> None:
    form = form_fields_of({**FIELDS, "config": json.dumps(TINY, indent=4)}, answers.listing())
    (request,) = requests_of(form, answers.listing()).requests
    assert (request.workload, request.settings) == ("config.json", {"sequence": "32", "mode": "lora"})
    assert json.loads(request.config) == TINY


def test_lora_trains_so_what_needs_training_goes_with_it(answers: RunAnswers) -> None:
    assert not faults(answers, config=json.dumps(TINY), **{"o:checkpointing": True})
    inference = {"w:mode": "inference", "o:checkpointing": True}
    assert "o:checkpointing" in faults(answers, config=json.dumps(TINY), **inference)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Paste a config.json here"),
        ("  ", "Paste a config.json here"),
        ('{"model_type": "llama", "auto_map": {"AutoModel": "x.y"}}', "auto_map names code of its own"),
        ('{"model_type": "llama", "num_hidden_layers": 10000000}', "10,000,000, and the most that is built"),
        ("x" * (1 << 20) + "y", "longer than 1,048,576 letters"),
    ],
)
def test_what_does_not_go_is_said_at_the_field(answers: RunAnswers, text: str, words: str) -> None:
    assert words in faults(answers, config=text)["config"]


def test_no_file_of_the_machine_is_read(answers: RunAnswers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path), str(tmp_path / "config.json"), ".", "config.json"):
        assert "not JSON" in faults(answers, config=path)["config"]
    with pytest.raises(UsageError, match="Paste a config.json"):
        asyncio.run(predict_run(answers, "config.json", {}, [], card="", owner=""))


def test_the_hub_is_on_the_page_only_where_its_owner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert "hub" not in config_field_html("").lower()
    assert config_of("somebody/model")[1].startswith("Nothing is asked of the Hugging Face hub here")
    monkeypatch.setenv(SWITCH, "1")
    assert "owner/model of the Hugging Face hub" in config_field_html("")
    monkeypatch.setattr("memviz.ui.run.form.fetch_config", lambda name: json.dumps(TINY).encode())
    assert json.loads(config_of("somebody/model")[0]) == TINY


def test_the_field_is_there_for_this_workload_alone_and_its_text_stays_text(answers: RunAnswers) -> None:
    listing = answers.listing()
    form = form_fields_of({**FIELDS, "config": "</textarea><script>alert(1)</script>"}, listing)
    html = form_html(form, listing)
    assert "<script>" not in html
    assert len(elements(html, "textarea")) == 1
    assert not elements(form_html(form_fields_of({"workload": "gpt2"}, listing), listing), "textarea")
    assert changed(FIELDS, {"workload": "gpt2"}, listing)[1]


def test_programs_give_it_among_the_settings(answers: RunAnswers) -> None:
    settings = {"config": TINY, "sequence": 32, "mode": "inference", "dtype": "bf16"}
    found = asyncio.run(predict_run(answers, "config.json", settings, [], card="T4", owner=""))
    assert found["run"]["parameters"] == 2 * 512 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
