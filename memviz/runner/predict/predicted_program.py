"""Predicts a program from Python: code in a `with` block, or a function; a limit of optimizer steps ends it.

with memviz.predicting(card="RTX 4090") as predicted:
    train()
print(predicted, predicted.fits(), predicted.by_category())
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from weakref import WeakKeyDictionary

from memviz.allocator.settings import parse_settings, settings_from_environment
from memviz.errors import UsageError
from memviz.runner.predict.cards import card_named
from memviz.runner.predict.compat import Patches
from memviz.runner.predict.estimate import Estimate, estimate_of
from memviz.runner.predict.group.ranks import GroupRank
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.request import DEFAULT_CARD, release_of


class EnoughSteps(SystemExit):
    """Ends the program as `sys.exit(0)` does."""


class OptimizerSteps:
    """Ends a program when all of its optimizers have taken their steps.

    An optimizer that never steps does not prolong it: one step too many of another ends the program too.
    """

    def __init__(self, most: int | None, tell: Callable[[int], None] = lambda steps: None) -> None:
        self._most = most
        self._tell = tell
        self._taken: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._patches = Patches()
        self.taken = 0
        """Steps of the optimizer that took most."""

    def __enter__(self) -> Self:
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        made = Optimizer.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self._taken.setdefault(optimizer, 0)

        self._patches.replace(Optimizer, "__init__", init)
        self._patches.callback(register_optimizer_step_pre_hook(self._steps).remove)
        self._patches.callback(register_optimizer_step_post_hook(self._stepped).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _steps(self, optimizer: Any, *_: Any) -> None:
        if self._most is not None and self._taken.get(optimizer, 0) >= self._most:
            raise EnoughSteps(0)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        count = self._taken[optimizer] = self._taken.get(optimizer, 0) + 1
        if count > self.taken:
            self.taken = count
            self._tell(count)
        if self._most is not None and min(self._taken.values()) >= self._most:
            raise EnoughSteps(0)


class Predicting:
    """Result of `predicting`, with the estimate once the block is over."""

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
    """Run the block with a pretended CUDA device, which counts memory and computes nothing.

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
    if world_size is None and rank:
        raise UsageError("rank says which process of a group; say of how many with world_size.")
    group_rank = None if world_size is None else GroupRank(rank, world_size)
    device = device_for(card, torch=torch, settings=settings, assume=assume, rank=group_rank)
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
    """Predict the memory of `function(*args, **kwargs)` on a card; its result is discarded."""
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
        settings=settings_from_environment(os.environ) if settings is None else parse_settings(settings),
        release=release_of(torch),
        assume=assume,
        limited=card is not None,
        rank=rank,
    )
