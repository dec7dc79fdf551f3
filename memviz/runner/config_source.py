"""The `config.json` of a Transformers model as data: from a file or the hub, checked before anything is built from it.

Such a file decides how many modules a library makes, and how large. So its numbers are checked first, with a bound that
follows from their names; and keys that ask for code or weights from elsewhere are refused, or left out.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import build_opener

from memviz.errors import UsageError
from memviz.runner.request import Request
from memviz.units import count_text

SWITCH = "MEMVIZ_HUB"
HUB = "https://huggingface.co/"
_HUB_SECONDS = 20.0
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

FILE = "config.json"
MOST_BYTES = 2 << 20
"""Size limit of a config; the largest published ones, with 21,841 classes, take about 1 MiB."""
_MOST_VALUES = 200_000
_MOST_DEPTH = 24
_LONGEST_TEXT = 4_096
_MOST_PARAMETERS = 10**14
_MOST_EXPERT_LAYERS = 1 << 18

_CODE = ("auto_map", "trust_remote_code", "custom_pipelines", "custom_generate", "code_revision")
_WEIGHTS = ("use_pretrained_backbone", "use_timm_backbone")
_IGNORED = {
    "attn_implementation",
    "experts_implementation",
    "dtype",
    "torch_dtype",
    "return_dict",
    "torchscript",
    "transformers_version",
    "quantization_config",
    "name_or_path",
}
"""Keys that the run sets itself, or that are no part of the model."""


_BOUNDS = tuple(
    (re.compile(names), most, what)
    for names, most, what in (
        (r"theta|token_id|token_index|seed|freq|base", 1 << 62, ""),
        (r"vocab|position|max_|context|length|_ctx|num_embeddings|buckets", 1 << 24, "table entries"),
        (r"label", 1 << 16, "labels"),
        (r"expert", 8_192, "experts"),
        (r"layer|depth|stage|num_blocks|n_blocks|attention_types|repeat", 4_096, "layers"),
        (r"image_size|height|width", 1 << 16, "pixels"),
        (r"head_dim|_size|_dim|hidden|channels|embd|inner|ffn|d_model|d_ff|d_kv", 1 << 20, "for a width"),
        (r"^num_|^n_|heads|layers_", 1 << 16, ""),
        (r"", 1 << 24, ""),
    )
)
"""The first bound whose pattern is in the key holds. Each is several times what any published model has."""


def is_config(name: str) -> bool:
    """Return whether this is a file that ends in .json, a folder with a config.json, or a name on the hub."""
    is_folder = (Path(name) / FILE).is_file() and not name.isidentifier()
    return name.endswith(".json") or is_folder or is_hub_id(name)


def with_config(request: Request) -> Request:
    """Return the request with the text of the file that it names. Only for people who may read files here."""
    if request.config or not is_config(request.workload):
        return request
    return replace(request, config=read_config(request.workload))


def read_config(name: str) -> str:
    """Read and check a configuration; return its text without unneeded keys."""
    path = Path(name) / FILE if Path(name).is_dir() else Path(name)
    if not path.exists() and is_hub_id(name):
        return checked_config(fetch_config(name), name)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    return checked_config(content, str(path))


def checked_config(content: bytes | str, where: str = FILE) -> str:
    """Return the configuration without unneeded keys; UsageError if it is wrong, within a second for any content."""
    try:
        values = _parse(content)
        _check_shape(values)
        _check_kind(values)
        _check_numbers(values)
        _check_size(values)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return json.dumps(_keys_that_shape(values), separators=(",", ":"))


# -- as JSON


def _parse(content: bytes | str) -> dict[str, Any]:
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if len(raw) > MOST_BYTES:
        raise UsageError(f"it is larger than {count_text(MOST_BYTES)} bytes, too large for a configuration.")
    try:
        values = json.loads(raw.decode("utf-8-sig"))
    except RecursionError:
        raise UsageError(_TOO_DEEP) from None
    except ValueError as error:
        raise UsageError(f"it is not JSON: {str(error)[:200]}.") from None
    if not isinstance(values, dict):
        raise UsageError("it is JSON but not an object of settings, such as a config.json.")
    return values


_TOO_DEEP = f"its values are nested more than {_MOST_DEPTH} deep, too deep for a configuration."


def _check_shape(values: dict[str, Any]) -> None:
    """Check nesting and size with an explicit stack, so that deep nesting cannot exhaust Python's."""
    open_values: list[tuple[Any, int]] = [(values, 1)]
    count = 0
    while open_values:
        value, depth = open_values.pop()
        count += 1
        if depth > _MOST_DEPTH:
            raise UsageError(_TOO_DEEP)
        if count > _MOST_VALUES:
            raise UsageError(f"it has more than {count_text(_MOST_VALUES)} values, too many for a configuration.")
        if isinstance(value, str) and len(value) > _LONGEST_TEXT:
            raise UsageError(f"a text in it is longer than {count_text(_LONGEST_TEXT)} characters: {value[:40]!r} ...")
        inside = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            open_values.extend((item, depth + 1) for item in inside)


def _check_kind(values: dict[str, Any]) -> None:
    for key, value in _settings(values):
        if key in _CODE and value:
            raise UsageError(
                f"{key} names custom code, which memviz does not run. Remove it if transformers has this model_type; "
                "otherwise write a function that builds the model, and use FILE.py:function."
            )
        if key in _WEIGHTS and value:
            raise UsageError(
                f"{key} asks for weights or models from elsewhere, which memviz does not load. Set it to false."
            )
    kind = values.get("model_type")
    if isinstance(values.get("_class_name"), str) and not kind:
        raise UsageError(
            f"this is the configuration of a {values['_class_name'][:80]} of diffusers; "
            "only those of transformers are supported. "
            "Write a function that builds it, and use FILE.py:function."
        )
    if not isinstance(kind, str) or not kind:
        raise UsageError('it has no model_type. Add it, such as "model_type": "llama".')


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all settings, also those of the model's parts."""
    for key, value in values.items():
        yield key, value
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from _settings(part)


# -- its numbers


def _check_numbers(values: dict[str, Any]) -> None:
    for key, value in _settings(values):
        most, what = next((most, what) for names, most, what in _BOUNDS if names.search(key))
        for number in _integers(value):
            if abs(number) > most:
                digits = len(str(abs(number)))
                text = f"{number:,}" if digits < 19 else f"about 1e{digits - 1}"
                raise UsageError(f"{key} is {text}; the limit is {most:,}{f' {what}' if what else ''}.")


def _integers(value: Any) -> Iterator[int]:
    """Yield integers, also those in lists. The numbers in a dict have keys of their own."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _integers(item)


def _check_size(values: dict[str, Any]) -> None:
    """Refuse absurd sizes, by an estimate of the parameters that is right within a small factor."""
    parts = [values, *(setting for key, setting in _settings(values) if isinstance(setting, dict))]
    parameters = sum(map(_estimate_parameters, parts))
    if parameters > _MOST_PARAMETERS:
        raise UsageError(
            f"it would have about {parameters / 10**12:,.0f} T parameters; the limit is {_MOST_PARAMETERS // 10**12} T."
        )
    for part in parts:
        layers, experts = _largest_number(part, r"layer|depth"), _largest_number(part, r"expert")
        if layers * experts > _MOST_EXPERT_LAYERS:
            raise UsageError(
                f"{layers:,} layers of {experts:,} experts exceed the limit of {_MOST_EXPERT_LAYERS:,} in total."
            )


def _estimate_parameters(part: Mapping[str, Any]) -> int:
    width = _largest_number(part, r"^hidden_size|d_model|n_embd|embed_dim|^dim$|hidden_sizes")
    inner = _largest_number(part, r"intermediate|ffn|d_ff|inner|hidden_dim")
    layers = max(1, _largest_number(part, r"layer|depth"))
    experts = max(1, _largest_number(part, r"^num_.*experts$|^n_routed_experts$|^num_experts"))
    return layers * (4 * width * width + 3 * width * inner * experts) + 2 * width * _largest_number(part, r"vocab")


def _largest_number(part: Mapping[str, Any], names: str) -> int:
    matching = (value for key, value in part.items() if re.search(names, key))
    return max((number for value in matching for number in _integers(value)), default=0)


# -- what is kept of it


def _keys_that_shape(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop keys that do not shape the model. Of labels the number is enough."""
    needed: dict[str, Any] = {}
    for key, value in values.items():
        if key.startswith("_") or key in (*_IGNORED, *_CODE, "id2label", "label2id"):
            continue
        needed[key] = _keys_that_shape(value) if isinstance(value, dict) else value
    if isinstance(values.get("id2label"), dict):
        needed["num_labels"] = len(values["id2label"])
    kind = values.get("torch_dtype") or values.get("dtype")
    if isinstance(kind, str):
        needed["dtype"] = kind.removeprefix("torch.")
    if isinstance(values.get("quantization_config"), dict):
        needed["quantization_config"] = True
    return needed


# -- the Hugging Face hub


def hub_is_on() -> bool:
    return os.environ.get(SWITCH, "").strip().lower() in ("1", "true", "yes", "on")


def is_hub_id(name: str) -> bool:
    """`owner/model`, where no such file is here."""
    return bool(_HUB_NAME.fullmatch(name)) and not name.endswith((".py", ".json")) and not Path(name).exists()


def fetch_config(name: str) -> bytes:
    """Fetch the config.json of a model on the hub, where the owner switched that on: no weights, no code."""
    if not hub_is_on():
        raise UsageError(
            f"There is no file {name}, and downloads from the Hugging Face Hub are off. Give the path of its "
            f"config.json, or set {SWITCH}=1 to download that file."
        )
    address = f"{HUB}{name}/resolve/main/config.json"
    try:
        with build_opener(_HubRedirects).open(urllib.request.Request(address), timeout=_HUB_SECONDS) as answer:
            content: bytes = answer.read(MOST_BYTES + 1)
    except HTTPError as error:
        why = "it needs a login" if error.code in (401, 403) else f"HTTP status {error.code}"
        raise UsageError(f"{address} cannot be read: {why}. Download the file and give its path.") from None
    except (URLError, OSError) as error:
        raise UsageError(f"{address} cannot be read: {getattr(error, 'reason', error)}.") from None
    return content


class _HubRedirects(urllib.request.HTTPRedirectHandler):
    """Follows the redirect of a renamed model, and none to another host."""

    def redirect_request(self, *request: Any) -> Any:
        fp, code, newurl = request[1], request[2], str(request[-1])
        if not newurl.startswith(HUB):
            raise HTTPError(newurl, code, "redirects to another host", request[-2], fp)
        return super().redirect_request(*request)
