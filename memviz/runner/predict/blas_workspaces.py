"""The workspaces that cuBLAS and cublasLt keep: of which size, and since which product."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memviz.runner.predict.evidence import CUBLAS_NUMBER
from memviz.runner.predict.workspaces import WorkspaceSizes, workspace_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memviz.runner.predict.cards import KnownCard
    from memviz.runner.predict.ledger import LiveAllocation
    from memviz.runner.predict.operator_treatments import Treatment


Handle = tuple[bool, int]
"""Whether it is backward's, and the stream. Each thread has one of its own, and on a card backward runs in another."""


class BlasWorkspaces:
    """`take` is told how much, for which operator and by which rule."""

    def __init__(
        self,
        card: KnownCard,
        release: tuple[int, int],
        take: Callable[[int, str, int], LiveAllocation],
        free: Callable[[LiveAllocation], None],
    ) -> None:
        self._card = card
        self._release = release
        self._take = take
        self._free = free
        self._kept: dict[tuple[Handle, bool], LiveAllocation] = {}
        """By the handle, and by whether it is cublasLt's."""
        self._told: dict[str, Any] = {}
        """By the program, since torch 2.13; it goes before the environment."""

    @property
    def sizes(self) -> WorkspaceSizes:
        return replace(self._from_environment, **self._told) if self._told else self._from_environment

    @cached_property
    def _from_environment(self) -> WorkspaceSizes:
        """torch reads it at the first product, and never again."""
        return workspace_sizes(self._card, self._release, os.environ)

    def need(self, handle: Handle, treatment: Treatment, *, is_lt: bool = False) -> None:
        """One that is large enough is used again; if the program has asked for more since, a larger one replaces it."""
        size = self.sizes.lt if is_lt else self.sizes.cublas
        kept = self._kept.get((handle, is_lt))
        if not size or (kept is not None and kept.requested >= size):
            return
        rule = treatment.rule if is_lt else CUBLAS_NUMBER
        self._kept[handle, is_lt] = self._take(size, treatment.name, rule)
        if kept is not None:
            self._free(kept)

    def clear(self) -> None:
        """They are made again when they are needed."""
        while self._kept:
            self._free(self._kept.popitem()[1])

    def functions(self) -> dict[str, Callable[..., int | None]]:
        """Of `torch._C`, behind `torch.backends.cuda.cublas_workspace_size` and its like."""
        return {
            "_cuda_getCublasWorkspaceSize": lambda: self.sizes.cublas,
            "_cuda_setCublasWorkspaceSize": lambda size: self._tell("cublas", size),
            "_cuda_resetCublasWorkspaceSize": lambda: self._forget("cublas"),
            "_cuda_getCublasLtWorkspaceSize": lambda: self.sizes.lt_said,
            "_cuda_setCublasLtWorkspaceSize": lambda size: self._tell("lt_told", size),
            "_cuda_resetCublasLtWorkspaceSize": lambda: self._forget("lt_told"),
            "_cuda_clearCublasWorkspaces": self.clear,
        }

    def _tell(self, which: str, size: int) -> None:
        if size < 0:
            raise RuntimeError(f"The size of a workspace is {size}; it is 0 at least.")
        self._told[which] = size

    def _forget(self, which: str) -> None:
        self._told.pop(which, None)
