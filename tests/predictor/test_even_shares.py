"""Rows routed to experts: counts and selections give an even share, and printed values are unknown."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100
from tests.predictor.test_unknown_values import there

EXPERTS, TAKEN, ROWS = 8, 2, 48
EACH = ROWS * TAKEN // EXPERTS


def routed(rows: int = ROWS) -> Tensor:
    return there(rows, EXPERTS).topk(TAKEN, -1).indices


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cuda")


COUNTED: dict[str, Callable[[], Any]] = {
    "one_hot": lambda: one_hot(routed(), EXPERTS).sum((0, 1)).tolist(),
    "one_hot of all in a row": lambda: one_hot(routed().flatten(), EXPERTS).sum(0).cpu().tolist(),
    "scatter_": lambda: zeros(ROWS, EXPERTS).scatter_(1, routed(), 1).sum(0),
    "scatter of True": lambda: zeros(ROWS, EXPERTS).bool().scatter(1, routed(), True).sum(0),
    "scatter_add_": lambda: zeros(EXPERTS).scatter_add_(0, routed().flatten(), zeros(ROWS * TAKEN) + 1).tolist(),
    "index_add_": lambda: zeros(EXPERTS).index_add_(0, routed().flatten(), zeros(ROWS * TAKEN) + 1).tolist(),
    "histc": lambda: torch.histc(routed().float(), bins=EXPERTS, min=0, max=EXPERTS - 1).tolist(),
    "bincount": lambda: routed().flatten().bincount(minlength=EXPERTS).tolist(),
    "rows of one expert": lambda: [torch.where(routed() == expert)[0].numel() for expert in range(EXPERTS)],
    "rows by a mask": lambda: [
        there(ROWS, 4)[(routed() == expert).any(-1)].size(0) for expert in range(EXPERTS)
    ],
    "transformers' way": lambda: [
        torch.where(one_hot(routed(), EXPERTS).permute(2, 1, 0)[expert].squeeze(0))[0].numel()
        for expert in (one_hot(routed(), EXPERTS).permute(2, 1, 0).sum((-1, -2)) > 0).nonzero()
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", COUNTED)
def test_each_expert_gets_its_share(way: str) -> None:
    with PredictedDevice(A100) as device:
        assert [int(count) for count in COUNTED[way]()] == [EACH] * EXPERTS
        assert any(stated.where for stated in device.recorder.assumptions.stated)


def test_what_is_left_over_goes_to_the_first_and_nothing_is_lost() -> None:
    with PredictedDevice(A100):
        counts = one_hot(routed(50), EXPERTS).sum((0, 1)).tolist()
        parts = zeros(100, 4).split(counts)
    assert [len(part) for part in parts] == [13] * 4 + [12] * 4


def test_counts_go_on_where_they_were() -> None:
    with PredictedDevice(A100):
        seen = zeros(EXPERTS) + 3
        seen.scatter_add_(0, routed().flatten(), torch.ones(ROWS * TAKEN, device="cuda"))
        assert int(seen[0]) == 3 + EACH


def test_shares_print_as_unknown() -> None:
    with PredictedDevice(A100):
        counts = one_hot(routed(), EXPERTS).sum((0, 1))
        assert str(counts.tolist()) == str(["unknown"] * EXPERTS).replace("'", "")
        assert str(counts.cpu().tolist()) == str(["unknown"] * EXPERTS).replace("'", "")
        assert "values unknown" in str(counts) and "values unknown" in str(counts.cpu())


def test_an_expert_has_rows_and_a_text_has_no_end() -> None:
    """Each of few is chosen, and one word of many is not."""
    with PredictedDevice(A100):
        assert all(bool((routed() == expert).any()) for expert in range(EXPERTS))
        words = there(ROWS, 30_000).argmax(-1)
        assert not (words == 2).any() and len((words == 2).nonzero()) == 0
        assert int((words != 2).sum()) == ROWS


def test_values_that_are_known_are_counted_as_they_are() -> None:
    with PredictedDevice(A100):
        routed_to = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]], device="cuda").argmax(-1)
        assert one_hot(routed_to, 2).sum(0).tolist() == [1, 2]


ACCEPTED: dict[str, tuple[Callable[[], Any], int]] = {
    "words that are the same": (lambda: (drafted() == drafted()).int().cumprod(-1).sum(), 0),
    "words before another": (lambda: ((~(drafted() == drafted())).cumsum(-1) < 1).sum(), 4),
    "the first that differs": (lambda: (drafted() != drafted()).float().argmax(), 0),
    "by chance": (lambda: (torch.rand(4, device="cuda") <= there(4) / there(4)).long().cumprod(-1).sum(), 4),
    "one by one": (lambda: sum(bool(torch.rand(1, device="cuda") <= there(1)) for _ in range(4)), 4),
    "numbers": (lambda: sum(torch.rand(1, device="cuda").item() <= there().item() for _ in range(4)), 4),
}


def drafted() -> Tensor:
    return there(4, 100).argmax(-1)


@pytest.mark.parametrize("way", ACCEPTED)
def test_how_much_of_a_draft_is_accepted_has_an_answer(way: str) -> None:
    ask, count = ACCEPTED[way]
    with PredictedDevice(A100) as device:
        assert int(ask()) == count
        assert any(stated.where for stated in device.recorder.assumptions.stated)
