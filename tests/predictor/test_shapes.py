"""Shape rules and remembered results against torch's own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memviz.predictor.device import PredictedDevice
from memviz.predictor.shapes import SHAPE_RULES, KnownResults, ResultCache, shape_key
from memviz.runner.execute import predict
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from memviz.trace.model import NO_STACK

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64]


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    if shape is None:
        shape = tuple(draw(st.lists(st.integers(1, 4), min_size=0, max_size=4)))
    made = torch.empty(shape, device="meta", dtype=draw(st.sampled_from(DTYPES)))
    if made.dim() > 1 and draw(st.booleans()):
        made = made.transpose(0, draw(st.integers(1, made.dim() - 1)))
    return made


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    one = draw(tensors())
    shape = [draw(st.sampled_from([1, size])) for size in one.shape][draw(st.integers(0, one.dim())) :]
    other = draw(tensors(tuple(shape)))
    return (one, other) if draw(st.booleans()) else (other, one)


def same(func: Any, *args: Any, **kwargs: Any) -> None:
    """Compare a shape rule to torch; if torch refuses, the rule must have no answer."""
    ours = SHAPE_RULES[func](func, args, kwargs)
    if ours is NotImplemented:
        return
    theirs = func(*args, **kwargs)
    for mine, real in zip(_listed(ours), _listed(theirs), strict=True):
        assert (mine.shape, mine.dtype, _strides(mine)) == (real.shape, real.dtype, _strides(real))


def _strides(tensor: torch.Tensor) -> list[int]:
    """Along a dimension of one element nothing is ever stepped."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _listed(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, list | tuple) else [value]


@given(pairs())
def test_sums_and_products_of_two(both: tuple[torch.Tensor, torch.Tensor]) -> None:
    same(aten.mul.Tensor, *both)
    same(aten.div.Tensor, *both)


@given(tensors())
def test_a_tensor_and_a_number(tensor: torch.Tensor) -> None:
    same(aten.mul.Scalar, tensor, 2.0)


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4), st.data())
def test_a_number_leaves_dimensions_of_one_element_where_they_stand(
    order: list[int], shape: list[int], data: st.DataObject
) -> None:
    """It depends on them whether a tensor counts as channels last."""
    strides, step = [0] * 4, 1
    for at in order:
        strides[at], step = step, step * shape[at]
    odd = [data.draw(st.integers(1, 30)) if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]
    real, ours = torch.empty_strided(shape, odd), torch.empty_strided(shape, odd, device="meta")
    for func, number in ((aten.mul.Tensor, 2.0), (aten.div.Tensor, torch.tensor(2.0)), (aten.add.Scalar, 1)):
        result = SHAPE_RULES[func](func, (ours, number), {})
        result = func(ours, number) if result is NotImplemented else result
        assert result.stride() == func(real, number).stride()


@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_norms(dtype: torch.dtype) -> None:
    def make(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta", dtype=dtype)

    x = make(2, 3, 8)
    out, mean, rstd = aten.native_layer_norm.default(x, [8], make(8), make(8), 1e-5)
    same(aten.native_layer_norm.default, x, [8], make(8), make(8), 1e-5)
    for wanted in ([True, True, True], [True, False, False]):
        args = (out, x, [8], mean, rstd, make(8), make(8), wanted)
        ours = SHAPE_RULES[aten.native_layer_norm_backward.default](None, args, {})
        theirs = aten.native_layer_norm_backward.default(*args)
        assert [None if our is None else our.shape for our in ours] == [
            None if their is None else their.shape for their in theirs
        ]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class CountedRuns:
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
    counted = CountedRuns()
    first, second = counted(func, *arguments()), counted(func, *arguments())
    assert as_seen(second) == as_seen(first) == as_seen(func(*arguments()))
    assert counted.runs == 1


def test_results_are_remembered_by_all_that_decides_them() -> None:
    counted, whole = CountedRuns(), meta(3, dtype=torch.int64)
    assert counted(aten.mul.Tensor, whole, 2).dtype == torch.int64
    assert counted(aten.mul.Tensor, whole, 2.0).dtype == torch.float32
    assert counted(aten.mul.Tensor, whole, 2).dtype == torch.int64
    # What is written in place stays what it was.
    counted = CountedRuns()
    for _ in range(2):
        given = meta(4, 6)
        assert counted(aten.add_.Tensor, given, meta(1, 6)) is given
    assert counted.runs == 1
    # Memory that is shared is not made anew.
    counted = CountedRuns()
    for runs in (1, 2):
        given = meta(4, 6)
        assert (
            counted(aten._unsafe_view.default, given, [24]).untyped_storage()._cdata == given.untyped_storage()._cdata
        )
        assert counted.runs == runs
    assert shape_key((torch.empty(2),), {}) is None
    assert shape_key((meta(2),), {"generator": torch.Generator()}) is None


@pytest.mark.slow
def test_a_second_conversion_in_host_memory_gives_what_the_first_gave() -> None:
    def converted() -> list[Any]:
        weight = torch.empty(6, 8, device="meta")
        groups = weight.unflatten(1, (-1, 4))
        codes = (groups / groups.abs().amax(-1, keepdim=True).clamp(min=1)).round_().clamp_(-7, 7).to(torch.uint8)
        narrow = torch.empty(2, 3, device="meta")
        narrow.resize_(5).unsqueeze_(0)
        made = [codes, weight.where(weight > 0, 1), *weight.split(3), narrow, torch.zeros(2).add_(1), weight.t_()]
        return [(each.shape, each.stride(), each.dtype, each.device, each.untyped_storage().nbytes()) for each in made]

    with KnownResults():
        first, second = converted(), converted()
    assert first == second == converted()


@pytest.mark.slow
def test_figures_alone_are_those_of_the_whole_prediction() -> None:
    knobs = {"layers": "2", "mode": "training"}
    plan = plan_of(Request("gpt2", knobs, (("checkpointing", {}), ("chunked_cross_entropy", {})), optimizer="adamw"))
    whole, figures = predict(plan, lambda phase: None), predict(plan, lambda phase: None, figures_only=True)
    assert replace(figures.run, took_seconds=0) == replace(whole.run, took_seconds=0)
    assert (whole.trace.devices[0].events.stack != NO_STACK).any()
    assert (figures.trace.devices[0].events.stack == NO_STACK).all()


def test_a_padded_jagged_tensor_has_a_backward(device: PredictedDevice) -> None:
    values = torch.randn(7, 4, device="cuda", requires_grad=True)
    rows = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 7], device="cuda"))
    rows.to_padded_tensor(0.0).sum().backward()
    assert values.grad is not None and values.grad.shape == (7, 4)
