"""Published models, built offline from the figures that decide them: every parameter is there, and none more."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from memviz.runner.config_source import checked_config
from memviz.runner.workloads.transformers_model import configured_workload
from tests.marks import slow

PUBLISHED = [json.loads(line) for line in (Path(__file__).parent / "published.jsonl").read_text().splitlines()]
"""Published models: page, number of parameters, and differences from the default configuration of the class."""


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_there_are_thirty_kinds_of_models() -> None:
    assert len({row["config"]["model_type"] for row in PUBLISHED}) >= 30


@pytest.mark.parametrize("row", PUBLISHED[:8] + slow(*PUBLISHED[8:]), ids=lambda row: row["source"].rpartition("/")[2])
def test_its_weights_are_exact(row: dict[str, Any]) -> None:
    workload = configured_workload("config.json", {"dtype": "bf16"}, checked_config(json.dumps(row["config"])))
    with torch.device("meta"):
        model = workload.build()
    weights = list(model.parameters())
    assert sum(weight.numel() for weight in weights) == row["parameters"]
    assert sum(weight.numel() * weight.element_size() for weight in weights) == 2 * row["parameters"]
