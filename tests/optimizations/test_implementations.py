"""`implementation=library`: the same memory as this project's code, undone like it, and refused where it is missing."""

from typing import Any

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner.execute import predict_plan
from memviz.runner.plan import optimization_of, plan_of
from memviz.runner.request import Request
from optimizations.checkpointing import Checkpointing
from optimizations.layerwise_casting import LayerwiseCasting
from tests.optimizations.tiny import autoencoder, bert, flux, llama

LLAMA = ("llama", {"layers": "2", "sequence": "256", "batch": "1"})
FLUX = ("flux", {"double_layers": "2", "single_layers": "2", "height": "128", "width": "128"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("workload", [LLAMA, FLUX], ids=lambda one: one[0])
@pytest.mark.parametrize(
    ("name", "mode", "knobs"),
    [
        ("checkpointing", "training", {}),
        ("layerwise_casting", "inference", {}),
        ("weight_offload", "inference", {}),
        ("weight_offload", "inference", {"granularity": "leaf"}),
    ],
)
def test_it_takes_the_same_memory(workload: Any, name: str, mode: str, knobs: dict[str, str]) -> None:
    if name == "weight_offload":
        pytest.importorskip("accelerate", reason="accelerate is not installed")
    peaks = []
    for implementation in ("memviz", "library"):
        chosen = ((name, {**knobs, "implementation": implementation}),)
        request = Request(workload[0], {**workload[1], "mode": mode}, chosen, numerics=False)
        run = predict_plan(plan_of(request), lambda _: None, figures_only=True).run
        peaks.append((run.peak_requested_bytes, run.weights_bytes, run.weights_at_peak_bytes))
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("make", [llama, bert, flux, autoencoder], ids=lambda make: make.__name__)
def test_undone_nothing_of_it_is_left(make: Any) -> None:
    case = make()
    before = [(type(module), set(vars(module))) for module in case.model.modules()]
    for change in (Checkpointing(implementation="library"), LayerwiseCasting("bf16", implementation="library")):
        undo = change.apply(case.model)
        undo()
        assert {weight.dtype for weight in case.model.parameters()} == {torch.float32}
    names = {"_gradient_checkpointing_func", "gradient_checkpointing", "_require_grads_hook", "_require_grads_hooks"}
    after = [(type(module), set(vars(module)) - names) for module in case.model.modules()]
    assert after == [(kind, names_before - names) for kind, names_before in before]


def test_what_it_cannot_do_is_refused() -> None:
    library = {"implementation": "library"}
    for name, knobs, words in (
        ("checkpointing", {"every": "2"}, "supports no other knob"),
        ("layerwise_casting", {"ahead": "true"}, "only storage, compute and skip"),
        ("weight_offload", {"granularity": "model"}, "granularity=block or leaf"),
    ):
        with pytest.raises(UsageError, match=words):
            optimization_of(name, {**knobs, **library})


def test_it_is_another_name_of_by() -> None:
    assert optimization_of("lora", {"implementation": "library"}) == optimization_of("lora", {"by": "peft"})
    assert optimization_of("eight_bit_states", {"implementation": "memviz"}) == optimization_of("eight_bit_states", {})
    with pytest.raises(UsageError, match="by is given more than once"):
        optimization_of("lora", {"implementation": "library", "by": "peft"})
