"""A sweep over torch's own list of operators.

Results on the simulated card have the shapes and dtypes of the host's, and results on the host their own values.
"""

import sys
import unittest
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100

SAMPLES = 1
"""Number of torch's samples that are taken for forward, and again for backward."""
LEAST_RUNS = 1225
"""Least number of runs that agree; it goes up."""
REFUSED = {
    "histogram": "torch has no kernel of it for CUDA",
    "histogramdd": "torch has no kernel of it for CUDA",
    "sparse.mm.reduce": "torch has no kernel of it for CUDA",
    "sparse.sampled_addmm": "tensors in CSR layout have no rule",
    "tensor_split": "torch takes indices from the host only",
}
"""Operators that stop a program; it gets shorter."""
STRIDES_DIFFER = {"linalg.eig", "pca_lowrank", "svd_lowrank"}


@pytest.fixture(scope="module")
def operators() -> Iterator[list[Any]]:
    """Read torch's list, whose module wants the base class of a package that nothing here needs."""
    with pytest.MonkeyPatch.context() as patches:
        package: Any = ModuleType("expecttest")
        package.TestCase = unittest.TestCase
        patches.setitem(sys.modules, "expecttest", package)
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core

        # For each sample torch looks through all callers for a test case of its own: four times as long as all else.
        for module in (common_utils, core):
            patches.setattr(module, "extract_test_fn", lambda: None)
        yield op_db


def placed(value: Any, on_card: bool, trains: bool) -> Any:
    """Copy the tensors among the arguments, and name the card where they name the host."""

    def one(part: Any) -> Any:
        if isinstance(part, Tensor):
            copied = part.detach().cuda() if on_card else part.detach().clone()
            return copied.requires_grad_(trains and part.requires_grad)
        is_host = isinstance(part, torch.device | str) and str(part) == "cpu"
        return "cuda" if on_card and is_host else part

    return tree_map(one, value)


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def ran(op: Callable[..., Any], sample: Any, on_card: bool, trains: bool) -> tuple[list[Any], list[Any], list[Tensor]]:
    """Return shapes and dtypes of results and gradients, the strides of results, and all values."""
    # Not `torch.manual_seed`: without a card that notes its call stack, for when there is one.
    torch.default_generator.manual_seed(0)
    first, args, kwargs = placed((sample.input, sample.args, sample.kwargs), on_card, trains)
    out = op(first, *args, **kwargs)
    results, found = tensors(out), []
    assert all(tensor.is_cuda is on_card for tensor in results)
    differentiable = [tensor for tensor in tensors(sample.output_process_fn_grad(out)) if tensor.requires_grad]
    if trains and differentiable:
        leaves = [tensor for tensor in tensors((first, args, kwargs)) if tensor.requires_grad]
        loss = sum(tensor.abs().sum() for tensor in differentiable)
        found = [g for g in torch.autograd.grad(loss, leaves, allow_unused=True) if g is not None]  # type: ignore[arg-type]
    forms = [(tuple(tensor.shape), tensor.dtype) for tensor in (*results, *found)]
    dense = [tensor for tensor in results if tensor.layout is torch.strided and tensor.numel() > 1]
    return forms, [tensor.stride() for tensor in dense], [tensor.detach() for tensor in (*results, *found)]


def equals(one: Tensor, other: Tensor) -> bool:
    return one.layout is not torch.strided or torch.allclose(one.cfloat(), other.cfloat(), equal_nan=True)


def samples(op: Any, dtype: torch.dtype) -> Iterator[tuple[Any, bool]]:
    trains = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for with_gradients in (False, True) if trains else (False,):
        for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=with_gradients), SAMPLES):
            yield sample, with_gradients


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_operator_gives_what_the_host_gives(operators: list[Any]) -> None:
    runs, refused, wrong, strides, changed = 0, set(), set(), set(), set()
    cases = list(run_on_the_host(operators))
    # One card for all: to begin and to end a prediction takes three times as long as most operators.
    with PredictedDevice(A100):
        for name, op, sample, trains, wanted in cases:
            try:
                forms, layout, _ = ran(op, sample, True, trains)
            except (UsageError, RuntimeError):
                refused.add(name)
                continue
            runs += 1
            if "empty" not in name and not all(map(equals, ran(op, sample, False, trains)[2], wanted[2])):
                changed.add(name)
            if forms != wanted[0]:
                wrong.add(name)
            elif layout != wanted[1]:
                strides.add(name)
    assert (refused, wrong, strides, changed) == (REFUSED.keys(), set(), STRIDES_DIFFER, set())
    assert runs >= LEAST_RUNS


def run_on_the_host(operators: list[Any]) -> Iterator[tuple[str, Any, Any, bool, Any]]:
    for op in operators:
        name = ".".join(filter(None, (op.name, op.variant_test_name)))
        dtype = next((dtype for dtype in (torch.float32, *sorted(op.dtypes, key=str)) if dtype in op.dtypes), None)
        for sample, trains in samples(op, dtype) if dtype is not None else ():
            # The host itself does not run every sample.
            with suppress(RuntimeError, NotImplementedError, AssertionError):
                yield name, op, sample, trains, ran(op, sample, False, trains)
