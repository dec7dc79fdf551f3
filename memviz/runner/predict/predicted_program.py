"""Anybody's program on a card that is not there: around code of one's own, or a function of it.

with memviz.predicting(card="RTX 4090") as predicted:
    train()
print(predicted, predicted.fits(), predicted.by_category())
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from memviz.allocator.settings import Settings, parse_settings, settings_from_environment
from memviz.errors import UsageError
from memviz.runner.predict.cards import card_named
from memviz.runner.predict.estimate import Estimate, estimate_of
from memviz.runner.predict.group.rank import GroupRank
from memviz.runner.predict.optimizer_steps import EnoughSteps, OptimizerSteps
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.request import DEFAULT_CARD, release_of


class Predicting:
    """What `predicting` gives: an estimate, as soon as the block is over."""

    def __init__(self, device: PredictedDevice) -> None:
        self.device = device
        self.estimate: Estimate | None = None

    def __repr__(self) -> str:
        return "<Predicting: not over>" if self.estimate is None else repr(self.estimate)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self.estimate is None:
            raise UsageError(f"There is no {name} before the `with` block is over.")
        return getattr(self.estimate, name)


@contextmanager
def predicting(
    card: str | None = None,
    *,
    torch: str = "",
    settings: str | None = None,
    assume: Mapping[str, Any] | None = None,
    steps: int | None = None,
    world_size: int | None = None,
    rank: int = 0,
) -> Iterator[Predicting]:
    """Runs what is inside with a CUDA device that is pretended: nothing is computed there, and its memory is counted.

    Args:
        card: Which one, by a part of its name, as in "RTX 4090". It raises torch.cuda.OutOfMemoryError where it has
            no more; without one memory is not limited, kernels are chosen as for an RTX 4090, and `fits` has to be
            told a card.
        torch: The release whose kernels are followed, as in "2.6"; by default the installed one.
        settings: As in PYTORCH_CUDA_ALLOC_CONF, which holds by default.
        assume: Answers where the program asks for values that nobody computes, by line: {"train.py:12": 3.0}; several
            in a tuple are taken in turn.
        steps: After so many steps of an optimizer the block is over.
        world_size: Of a group of processes, as `torchrun` would say; the others are pretended.
        rank: Which of them runs here.

    Raises:
        DataNeeded: The program asks for values that nobody computes, and no natural answer is known.
        UsageError: A line of `assume` asked for no value.
    """
    device = device_for(card, torch=torch, settings=settings, assume=assume, rank=_rank(world_size, rank))
    done = Predicting(device)
    with device, OptimizerSteps(steps) as counted:
        try:
            yield done
        except EnoughSteps:
            pass
        finally:
            done.estimate = estimate_of(device, device.finish(), steps=counted.taken)
    if unused := device.recorder.assumptions.unused_sentence:
        raise UsageError(unused)


def predict(
    function: Callable[..., Any],
    *args: Any,
    card: str | None = None,
    torch: str = "",
    settings: str | None = None,
    assume: Mapping[str, Any] | None = None,
    world_size: int | None = None,
    rank: int = 0,
    **kwargs: Any,
) -> Estimate:
    """What `function(*args, **kwargs)` would take on a card; what it returns is let go."""
    within = predicting(card, torch=torch, settings=settings, assume=assume, world_size=world_size, rank=rank)
    with within as predicted:
        function(*args, **kwargs)
    assert predicted.estimate is not None
    return predicted.estimate


def device_for(
    card: str | None,
    *,
    torch: str = "",
    settings: str | None = None,
    assume: Mapping[str, Any] | None = None,
    rank: GroupRank | None = None,
) -> PredictedDevice:
    return PredictedDevice(
        card_named(card or DEFAULT_CARD),
        settings=_settings(settings),
        release=release_of(torch),
        assume=assume,
        limited=card is not None,
        rank=rank,
    )


def _rank(world_size: int | None, rank: int) -> GroupRank | None:
    if world_size is None:
        if rank:
            raise UsageError("rank says which process of a group; say of how many with world_size.")
        return None
    return GroupRank(rank, world_size)


def _settings(text: str | None) -> Settings:
    return settings_from_environment(os.environ) if text is None else parse_settings(text)
