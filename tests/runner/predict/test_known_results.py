"""What is remembered of an operator is what torch would give again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.predict.shapes import ResultCache, shape_key
from memviz.runner.request import Request
from memviz.trace.model import NO_STACK

aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class Counted:
    def __init__(self) -> None:
        self.results = ResultCache()
        self.runs = 0

    def __call__(self, func: Any, *args: Any) -> Any:
        shapes = shape_key(args, {})
        assert shapes is not None
        return self.results.of(func, args, {}, shapes, self._run)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.runs += 1
        return func(*args, **kwargs)


def as_seen(value: Any) -> list[Any]:
    items = value if isinstance(value, tuple | list) else [value]
    return [(t.shape, t.stride(), t.dtype, t.untyped_storage().nbytes()) for t in items]


CALLS = {
    "product": (aten.mm.default, lambda: (meta(6, 4), meta(3, 4).t())),
    "one after the other": (aten.silu.default, lambda: (meta(2, 3, 4),)),
    "transposed": (aten.silu.default, lambda: (meta(2, 3, 4).transpose(0, 2),)),
    "stretched": (aten.add.Tensor, lambda: (meta(5, 1), meta(1, 7, dtype=torch.float32))),
    "several": (aten.native_layer_norm.default, lambda: (meta(4, 8), [8], meta(8), meta(8), 1e-5)),
    "a list": (aten.cat.default, lambda: ([meta(2, 3), meta(4, 3)],)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_time_is_the_same_and_runs_nothing(name: str) -> None:
    func, arguments = CALLS[name]
    counted = Counted()
    first, second = counted(func, *arguments()), counted(func, *arguments())
    assert as_seen(second) == as_seen(first) == as_seen(func(*arguments()))
    assert counted.runs == 1


def test_memory_that_is_shared_is_not_made_anew() -> None:
    counted = Counted()
    for runs in (1, 2):
        given = meta(4, 6)
        assert (
            counted(aten._unsafe_view.default, given, [24]).untyped_storage()._cdata == given.untyped_storage()._cdata
        )
        assert counted.runs == runs


def test_what_is_written_in_place_stays_what_it_was() -> None:
    counted = Counted()
    for _ in range(2):
        given = meta(4, 6)
        assert counted(aten.add_.Tensor, given, meta(1, 6)) is given
    assert counted.runs == 1


def test_numbers_that_are_equal_and_of_other_types_are_told_apart() -> None:
    counted, whole = Counted(), meta(3, dtype=torch.int64)
    assert counted(aten.mul.Tensor, whole, 2).dtype == torch.int64
    assert counted(aten.mul.Tensor, whole, 2.0).dtype == torch.float32
    assert counted(aten.mul.Tensor, whole, 2).dtype == torch.int64


def test_what_lies_on_the_host_or_has_a_generator_is_never_remembered() -> None:
    assert shape_key((torch.empty(2),), {}) is None
    assert shape_key((meta(2),), {"generator": torch.Generator()}) is None


@pytest.mark.slow
def test_figures_alone_are_those_of_the_whole_prediction() -> None:
    knobs = {"layers": "2", "mode": "training"}
    plan = plan_of(Request("gpt2", knobs, (("checkpointing", {}), ("chunked_cross_entropy", {})), optimizer="adamw"))
    whole, figures = predict(plan, lambda phase: None), predict(plan, lambda phase: None, figures_only=True)
    assert replace(figures.run, took_seconds=0) == replace(whole.run, took_seconds=0)
    assert (whole.trace.devices[0].events.stack != NO_STACK).any()
    assert (figures.trace.devices[0].events.stack == NO_STACK).all()
