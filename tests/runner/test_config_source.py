"""A config.json is read within bounds, and forbidden contents are refused with a message before a build."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from memviz.errors import UsageError
from memviz.runner import config_source
from memviz.runner.config_source import MOST_BYTES, checked_config, is_config, read_config, with_config
from memviz.runner.request import Request

LLAMA = {"model_type": "llama"}


def refusal(values: Mapping[str, Any] | str | bytes) -> str:
    content = values if isinstance(values, str | bytes) else json.dumps(values)
    with pytest.raises(UsageError) as caught:
        checked_config(content)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("[" * 500_000 + "]" * 500_000, "more than 24 deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "more than 24 deep"),
        ('{"a":' * 40 + "1" + "}" * 40, "more than 24 deep"),
        (" " * (MOST_BYTES + 1), "larger than 2,097,152 bytes"),
        ({**LLAMA, "x": [0] * 200_000}, "more than 200,000 values"),
        ({**LLAMA, "x": "y" * 5_000}, "a text in it is longer than 4,096 characters"),
        ('{"model_type": "llama", "hidden_size": ' + "9" * 100_000 + "}", "it is not JSON"),
        ('{"model_type": "llama", "hidden_size": ' + "9" * 4_000 + "}", "hidden_size is about 1e3999"),
        ({**LLAMA, "num_hidden_layers": 10_000_000}, "num_hidden_layers is 10,000,000; the limit is"),
        ({**LLAMA, "text_config": {"num_hidden_layers": 10_000_000}}, "num_hidden_layers is 10,000,000"),
        ({**LLAMA, "num_labels": 1 << 31}, "the limit is 65,536 labels"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**8]]}, "attention_types is 100,000,000"),
        (
            {**LLAMA, "hidden_size": 10**6, "intermediate_size": 10**6, "num_hidden_layers": 4_000},
            "28,000 T parameters",
        ),
        ({**LLAMA, "num_experts": 8_000, "num_hidden_layers": 4_000}, "4,000 layers of 8,000 experts"),
        ("{", "it is not JSON"),
        (b"\x00\xff", "it is not JSON"),
        ("[1]", "not an object of settings"),
        ({}, "it has no model_type"),
        ({"model_type": 7}, "it has no model_type"),
        ({"_class_name": "FluxTransformer2DModel"}, "a FluxTransformer2DModel of diffusers"),
    ],
)
def test_what_is_absurd_is_refused_before_anything_is_built(values: Any, words: str) -> None:
    assert words in refusal(values)


def test_code_of_its_own_is_never_run_and_weights_from_elsewhere_are_never_loaded() -> None:
    for key in ("auto_map", "trust_remote_code", "custom_generate"):
        for values in ({**LLAMA, key: {"AutoModel": "x.py"}}, {**LLAMA, "text_config": {key: "x.py"}}):
            assert f"{key} names custom code, which memviz does not run. Remove it if transformers" in refusal(values)
    assert "Set it to false" in refusal({"model_type": "detr", "use_pretrained_backbone": True})
    assert checked_config(json.dumps({"model_type": "detr", "use_pretrained_backbone": False}))


def test_what_decides_nothing_is_left_out_and_labels_are_counted() -> None:
    values = {
        **LLAMA,
        "_name_or_path": "/somewhere",
        "attn_implementation": "somebody/kernel",
        "torch_dtype": "torch.bfloat16",
        "id2label": {str(number): f"thing {number}" for number in range(1000)},
        "label2id": {f"thing {number}": number for number in range(1000)},
        "text_config": {"_attn_implementation": "somebody/kernel", "hidden_size": 64},
    }
    assert json.loads(checked_config(json.dumps(values))) == {
        **LLAMA,
        "text_config": {"hidden_size": 64},
        "num_labels": 1000,
        "dtype": "bfloat16",
    }


def test_a_file_a_folder_and_what_is_none(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    assert is_config(str(file)) and is_config(str(tmp_path))
    assert not is_config("llama") and not is_config("model.py:make") and not is_config("models/own.py")
    for name in (str(file), str(tmp_path)):
        assert with_config(Request(name)).config == read_config(name) == '{"model_type":"llama"}'
    assert with_config(Request("gpt2")) == Request("gpt2")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_config(str(tmp_path / "gone.json"))


def test_of_the_hub_one_file_is_fetched_and_bounded_where_the_owner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, contents = [], [json.dumps(LLAMA).encode(), b" " * (4 * MOST_BYTES)]

    def open_address(request: Any, timeout: float) -> io.BytesIO:
        asked.append(request.full_url)
        return io.BytesIO(contents.pop(0))

    monkeypatch.setattr(config_source, "build_opener", lambda *handlers: SimpleNamespace(open=open_address))
    monkeypatch.delenv(config_source.SWITCH, raising=False)
    with pytest.raises(UsageError, match="downloads from the Hugging Face Hub are off.* set MEMVIZ_HUB=1"):
        read_config("somebody/model")
    monkeypatch.setenv(config_source.SWITCH, "1")
    assert read_config("somebody/model") == '{"model_type":"llama"}'
    assert asked == ["https://huggingface.co/somebody/model/resolve/main/config.json"]
    with pytest.raises(UsageError, match="somebody/model: it is larger than"):
        read_config("somebody/model")


def test_the_hub_leads_to_no_other_host() -> None:
    handler = config_source._HubRedirects()
    with pytest.raises(HTTPError, match="redirects to another host"):
        handler.redirect_request(None, None, 302, "", {}, "https://huggingface.co.evil.example/config.json")
