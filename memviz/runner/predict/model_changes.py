"""Optimizations applied to a program's own models, as they reach the device: `memviz predict --with ...`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any
from weakref import WeakSet

from torch import nn

from memviz.errors import UsageError
from memviz.runner.knobs import parse_named
from memviz.runner.plan import label_of, optimization_named
from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.named_devices import on_card
from memviz.runner.predict.torch_patches import Patches
from optimizations import OPTIMIZATIONS, Optimization, apply_all, check_together


def optimizations_named(texts: Sequence[str], knobs: Sequence[tuple[str, str]]) -> tuple[Optimization, ...]:
    """From NAME:KNOB=VALUE each. A knob that is set by itself belongs to every one of them that has it."""
    having = {kind.name: {knob.name for knob in fields(kind)} for kind in OPTIMIZATIONS}  # type: ignore[arg-type]
    said = dict(map(parse_named, texts))
    for knob, value in knobs:
        names = [name for name in said if knob in having.get(name, ())]
        if not names:
            raise UsageError(f"--set {knob}={value}: no optimization of --with has this knob.")
        for name in names:
            said[name] = {**said[name], knob: value}
    chosen = tuple(optimization_named(name, given) for name, given in said.items())
    for change in chosen:
        if getattr(change, "changes_loop", False):
            raise UsageError(f"{change.name} changes a loop and no model: change the script's own, as its file says.")
    try:
        check_together(chosen)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return chosen


class ModelChanges:
    """Each model is changed once: where it is moved to the device, or where it is first called there."""

    def __init__(self, optimizations: Sequence[Optimization], assumptions: Assumptions) -> None:
        # Settings of the environment are the device's own from the start.
        self._changes = [change for change in optimizations if not change.environment]
        self._assumptions = assumptions
        self._seen: WeakSet[nn.Module] = WeakSet()
        self._within = False
        self.applied: dict[str, list[str]] = {change.name: [] for change in self._changes}
        """Classes of the models that each changed."""

    @contextmanager
    def following(self) -> Iterator[None]:
        if not self._changes:
            yield
            return
        patches = Patches()
        try:
            for name in ("to", "cuda", "to_empty"):
                patches.replace(nn.Module, name, self._moved(getattr(nn.Module, name)))
            patches.replace(nn.Module, "__call__", self._called(nn.Module.__call__))
            yield
        finally:
            patches.undo()

    def _moved(self, move: Any) -> Any:
        def moved(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            within, self._within = self._within, True
            try:
                out = move(model, *args, **kwargs)
            finally:
                self._within = within
            if not within:
                self._arrived(model)
            return out

        return moved

    def _called(self, call: Any) -> Any:
        def called(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._within:
                return call(model, *args, **kwargs)
            self._arrived(model)
            self._within = True
            try:
                return call(model, *args, **kwargs)
            finally:
                self._within = False

        return called

    def _arrived(self, model: nn.Module) -> None:
        weight = next(model.parameters(), None)
        if weight is None or model in self._seen or not on_card(weight):
            return
        self._seen.update(model.modules())
        for change in self._changes:
            try:
                change.check(model, training=model.training)
                apply_all(model, [change])
            except ValueError as error:
                self._assumptions.say(f"{label_of((change,))} was not applied to {type(model).__name__}: {error}")
            else:
                self.applied[change.name].append(type(model).__name__)
