"""Private names of torch that are pretended: torch calls those functions, and what is missing is refused."""

import inspect
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.nn import functional, init
from torch.utils.checkpoint import checkpoint

from memviz.errors import UsageError
from memviz.predictor.cards import card_named
from memviz.predictor.compat import Patches, required, without_deletions
from memviz.predictor.device import PredictedDevice
from memviz.predictor.modes import pretended_functions
from memviz.trace.model import Action
from tests.predictor.rows import sizes

PRETENDED = set(pretended_functions(*(MagicMock() for _ in range(5))))
OF_OTHER_RELEASES = {
    *("_cuda_lock_mutex", "_cuda_unlock_mutex", "_cuda_hasPrimaryContext", "_accelerator_deviceCount"),
    *("_cuda_cudaCachingAllocator_set_allocator_settings", "_cuda_endAllocateCurrentStreamToPool"),
    "_cuda_attach_out_of_memory_observer",
}
"""Pretended functions that the Python of torch 2.13 does not name."""


@cache
def python_of_torch() -> str:
    root = Path(torch.__file__).parent
    folders = ("", "_C", "accelerator", "backends/cuda", "backends/cudnn", "cuda", "utils")
    paths = [path for folder in folders for path in (root / folder).glob("*.py*") if path.suffix in (".py", ".pyi")]
    return "".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older releases call fewer")
@pytest.mark.parametrize("name", sorted(PRETENDED - OF_OTHER_RELEASES))
def test_torch_calls_the_pretended_function(name: str) -> None:
    assert name in python_of_torch()


def test_a_release_without_a_required_name_is_refused() -> None:
    with pytest.raises(UsageError, match="use a release from 2.6 to 2.13"):
        required(torch._C, "_no_such_function")


def test_patches_are_taken_back_in_reverse() -> None:
    class Owner:
        there = 1

    with Patches() as patches:
        patches.put(Owner, "there", 2)
        patches.put(Owner, "there", 3)
        patches.put(Owner, "added", 4)
        assert patches.replace(Owner, "missing", 5) is None
        assert vars(Owner)["there"] == 3 and vars(Owner)["added"] == 4
    assert Owner.there == 1 and not hasattr(Owner, "added") and not hasattr(Owner, "missing")


# Python of other releases of torch, where it allocates in another order.


H100 = card_named("H100")


def _events(release: tuple[int, int], program: Callable[[], None]) -> list[int]:
    """Sizes of allocations, and of frees as negative numbers."""
    with PredictedDevice(H100, release=release) as device:
        program()
        events = device.finish().devices[0].events
    signs = {Action.ALLOC: 1, Action.FREE_REQUESTED: -1}
    pairs = zip(events.action.tolist(), events.size.tolist(), strict=True)
    return [signs[Action(action)] * size for action, size in pairs if action in signs]


def _taken(release: tuple[int, int], program: Callable[[], None]) -> list[int]:
    with PredictedDevice(H100, release=release) as device:
        program()
        return sizes(device.finish())


def _truncate(bound: float) -> None:
    weight = torch.empty(512, 1024, device="cuda")
    nn.init.trunc_normal_(weight, std=1.0, a=-bound, b=bound)


WEIGHT = 4 * 512 * 1024


def test_a_truncated_normal_is_drawn_in_place_until_2_11_and_again_since_then() -> None:
    assert _taken((2, 11), lambda: _truncate(2.0)) == [WEIGHT]
    # It is drawn again as often as so many elements need.
    for bound, rounds in ((2.0, 4), (3.0, 2), (20.0, 0)):
        assert _taken((2, 12), partial(_truncate, bound)).count(WEIGHT) == 1 + 2 * rounds
    for release in ((2, 6), (2, 13)):
        with PredictedDevice(H100, release=release):
            weight = nn.init.trunc_normal_(torch.empty(4096), std=1.0, a=-1.0, b=1.0)
            assert float(weight.abs().max()) <= 1 and 0.4 < float(weight.std()) < 0.7


LENGTH, WIDTH = 256, 512
ONE = 4 * LENGTH * WIDTH
WEIGHTS = 4 * LENGTH * LENGTH


def _attend() -> None:
    attention = nn.MultiheadAttention(WIDTH, 1).to("cuda")
    x = torch.zeros(LENGTH, 1, WIDTH, device="cuda")
    with torch.no_grad():
        attention(x, x, x)


def test_attention_holds_scaled_queries_and_keys_to_its_end_until_2_11() -> None:
    old, new = (_events(release, _attend) for release in ((2, 11), (2, 12)))
    assert [size for size in old if size > 0] == [size for size in new if size > 0]
    after_scores = [events[events.index(WEIGHTS) :] for events in (old, new)]
    assert [part.index(-ONE) < part.index(WEIGHTS, 1) for part in after_scores] == [False, True]


def test_a_function_without_its_deletions_has_its_lines() -> None:
    kept = without_deletions(functional, "multi_head_attention_forward")
    ours, theirs = kept.__code__, functional.multi_head_attention_forward.__code__
    assert (ours.co_filename, ours.co_firstlineno) == (theirs.co_filename, theirs.co_firstlineno)
    assert (
        inspect.signature(kept).parameters.keys()
        == inspect.signature(functional.multi_head_attention_forward).parameters.keys()
    )


@pytest.mark.parametrize(("release", "on_card"), [((2, 5), False), ((2, 6), True)])
def test_a_mask_of_later_positions_is_on_the_default_device_since_2_6(release: tuple[int, int], on_card: bool) -> None:
    with PredictedDevice(H100, release=release):
        torch.set_default_device("cuda")
        try:
            assert nn.Transformer.generate_square_subsequent_mask(8).is_cuda == on_card
        finally:
            torch.set_default_device(None)


def test_torch_is_its_own_again_afterwards() -> None:
    before = (init._no_grad_trunc_normal_, functional.multi_head_attention_forward)
    with PredictedDevice(H100, release=(2, 5)):
        pass
    after = (init._no_grad_trunc_normal_, functional.multi_head_attention_forward)
    assert after == before


@pytest.mark.parametrize(("release", "saved"), [((2, 1), 2), ((2, 2), 0)])
def test_a_mean_saves_its_input_until_2_1(release: tuple[int, int], saved: int) -> None:
    def rows_and_planes(x: torch.Tensor) -> torch.Tensor:
        rows = (x * 2).mean(-1, keepdim=True)
        return rows.sum() + functional.adaptive_avg_pool2d(x * 3, 1).sum() + functional.adaptive_avg_pool2d(x, 2).sum()

    with PredictedDevice(H100, release=release):
        x = torch.zeros(LENGTH, 4, WIDTH, WIDTH, device="cuda", requires_grad=True)
        one = x.nbytes
        loss = rows_and_planes(x)
        assert torch.cuda.memory_allocated() // one == 1 + saved
        loss.backward()
        # The gradient.
        assert torch.cuda.memory_allocated() // one == 2
        loss = checkpoint(rows_and_planes, x, use_reentrant=False)
        assert torch.cuda.memory_allocated() // one == 2
        loss.backward()
        assert torch.cuda.memory_allocated() // one == 2
        with torch.no_grad():
            kept = rows_and_planes(x)
            assert torch.cuda.memory_allocated() // one == 2 and kept.is_cuda
