"""What models return, by name; and arguments once more."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor

from memviz.runner.output_check.model_runs import cloned, flatten

Pair = namedtuple("Pair", "first second")


@dataclass
class Output(OrderedDict):  # as in transformers and diffusers: a mapping and a dataclass at once
    logits: Tensor | None = None
    past: object = None

    def __post_init__(self) -> None:
        self["logits"] = self.logits


@dataclass
class Plain:
    sample: Tensor
    label: str = "x"


def names(value: object) -> list[str]:
    return list(flatten(value))


def test_every_kind_of_output_has_names():
    one = torch.zeros(1)
    assert names(one) == ["output"]
    assert names((one, None, [one, one])) == ["0", "2.0", "2.1"]
    assert names({"sample": one, "inner": {"a": one}}) == ["sample", "inner.a"]
    assert names(Pair(one, one)) == ["first", "second"]
    assert names(Output(one, past=object())) == ["logits"]
    assert names(Plain(one)) == ["sample"]
    assert names("text") == []


def test_a_clone_shares_nothing_and_keeps_its_shape():
    mask = torch.tensor([True])
    given = {"x": torch.ones(1, requires_grad=True), "pair": Pair(mask, [torch.zeros(1)]), "n": 3}
    copy = cloned(given, torch.float64)
    assert (copy["x"].dtype, copy["pair"].first.dtype, copy["n"]) == (torch.float64, torch.bool, 3)
    assert isinstance(copy["pair"], Pair)
    copy["x"].zero_()
    copy["pair"].second[0].fill_(5)
    assert (given["x"].item(), given["pair"].second[0].item()) == (1, 0)


def test_a_copied_cache_can_be_appended_to_without_harm():
    class Cache:
        def __init__(self) -> None:
            self.keys = [torch.zeros(1)]

    cache = Cache()
    cloned({"cache": cache})["cache"].keys.append(torch.ones(1))
    assert len(cache.keys) == 1
