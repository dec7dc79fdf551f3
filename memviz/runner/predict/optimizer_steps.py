"""How many steps a program's optimizers took, and its end after so many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self
from weakref import WeakKeyDictionary

from memviz.runner.predict.torch_patches import Patches


class EnoughSteps(SystemExit):
    """The program ends as if it had called `sys.exit(0)`."""


class OptimizerSteps:
    """A program with several optimizers, such as a GAN, ends when all of them have taken their steps.

    One that never steps does not keep it: the program ends too where another would take one step too many.
    """

    def __init__(self, most: int | None, tell: Callable[[int], None] = lambda steps: None) -> None:
        self._most = most
        self._tell = tell
        self._taken: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._patches = Patches()
        self.taken = 0
        """Of the optimizer that took most."""

    def __enter__(self) -> Self:
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        made = Optimizer.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self._taken.setdefault(optimizer, 0)

        self._patches.replace(Optimizer, "__init__", init)
        self._patches.call_back(register_optimizer_step_pre_hook(self._steps).remove)
        self._patches.call_back(register_optimizer_step_post_hook(self._stepped).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.undo()

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
