"""The page's interface for programs gives the command line's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memviz
from memviz.results.findings import findings_result
from tests.browser.conftest import program

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRAINING, CHECKPOINTED = SAMPLES / "training.pickle.gz", SAMPLES / "training-checkpointed.pickle.gz"
SMALL = {"sequence": 64, "layers": 1, "mode": "training"}
SPLIT = {"name": "split_feed_forward", "splits": 4}
gradio_client = pytest.importorskip("gradio_client")


@pytest.fixture(scope="module")
def client(server: str) -> Any:
    return program(server)


def named(client: Any) -> dict[str, Any]:
    endpoints: dict[str, Any] = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    return endpoints


def modules(told: Any) -> list[str]:
    return [layer["module"] for layer in told["numerics"]["layers"]]


def test_every_public_function_answers(client: Any) -> None:
    """Every endpoint of the running page is called here; a new function needs a call in this test."""
    file, other = gradio_client.handle_file(TRAINING), gradio_client.handle_file(CHECKPOINTED)
    training = memviz.open(TRAINING)
    asked = {
        "/open": ([file], lambda told: told["headline"]["answer"].startswith("The peak is 1,960 MiB")),
        "/summary": ([file], lambda told: told["devices"] == training.summary().as_json()["devices"]),
        "/peak": ([file, "category", 3], lambda told: told == training.by("category", top=3).as_json()),
        "/at": ([file, 100, "site", 5], lambda told: told == training.live_at(event=100, top=5).as_json()),
        "/find": ([file, "gpt.py >1MiB", 2], lambda told: len(told["rows"]) == 2 and told["rest_sites"] > 0),
        "/findings": ([file], lambda told: told == findings_result(training.trace).as_json()),
        "/diff": ([file, other, "site", 5], lambda told: told == training.compare(CHECKPOINTED).as_json(5)),
        "/replay": ([file, "", "2GiB", False], lambda told: told == training.replay(memory=2 << 30).as_json()),
        "/report": ([[file]], lambda told: Path(told).read_text(encoding="utf-8").startswith("<!doctype html>")),
        # With an optimization, so that layers are compared: what names them must not pass for a file of the server.
        "/run": (["feed_forward", SMALL, [SPLIT], "T4"], lambda told: told["fits"] and "blocks.0" in modules(told)),
    }
    assert set(asked) == set(named(client))
    for name, (values, is_right) in asked.items():
        assert is_right(client.predict(*values, api_name=name)), name


def test_what_a_question_takes_is_a_sound_schema(client: Any) -> None:
    """MCP clients validate schemas: with one invalid schema they refuse the whole server."""
    jsonschema = pytest.importorskip("jsonschema")
    for name, about in named(client).items():
        for parameter in about["parameters"]:
            jsonschema.Draft202012Validator.check_schema(parameter["type"])
            assert '"$ref"' not in json.dumps(parameter["type"]), (name, parameter["parameter_name"])
