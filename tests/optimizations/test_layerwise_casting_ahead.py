"""Cast up ahead of time: the same bits, one piece more in memory, and nothing taken that has changed since."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from memviz.runner.workloads import workload_named
from memviz.trace.model import Action
from optimizations.layerwise_casting import LayerwiseCasting
from tests.optimizations.casting import FP8, TOKENS, Block, dtypes, model, rounded
from tests.optimizations.memory import Memory


@pytest.mark.parametrize("granularity", ["leaf", "block"])
@torch.no_grad()
def test_casting_ahead_changes_no_bit_and_leaves_nothing_behind(granularity):
    case, before, expected = model(tied=True), dtypes(model(tied=True)), rounded(model(tied=True))(TOKENS)
    casting = LayerwiseCasting(granularity=granularity, skip="", ahead=True)
    undo = casting.apply(case)
    resting = dtypes(case)
    case(TOKENS)
    twin = copy.deepcopy(case)
    for each in (case, case, twin, twin):
        assert torch.equal(each(TOKENS), expected)
        assert dtypes(each) == resting
    undo()
    assert dtypes(case) == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in case.modules())


@torch.no_grad()
def test_what_was_cast_ahead_is_not_taken_once_the_pass_goes_elsewhere_or_the_weight_is_another():
    case, twin = model(), rounded(model())
    LayerwiseCasting(skip="", ahead=True).apply(case)
    assert torch.equal(case(TOKENS), twin(TOKENS))
    changed = twin.blocks[0].down.weight
    changed.mul_(2)
    # While the layer before it computes it is cast up already: what is loaded then counts all the same.
    loaded = case.blocks[0].down.weight

    def load_it(*_: object) -> None:
        loaded.copy_(changed.to(FP8))

    load = case.blocks[0].up.register_forward_hook(load_it)
    assert torch.equal(case(TOKENS), twin(TOKENS))
    load.remove()
    with pytest.raises(IndexError):
        case(TOKENS + 100)
    for each in (case, twin):
        del each.blocks[1]
    assert torch.equal(case(TOKENS), twin(TOKENS))
    assert torch.equal(case(TOKENS), twin(TOKENS))


def test_ahead_two_pieces_are_up_at_once_from_the_second_pass_on():
    width = 512
    with torch.device("meta"):
        case = nn.Sequential(*(Block(width) for _ in range(6))).bfloat16()
        x = torch.empty(1, width, dtype=torch.bfloat16)
    matrix, peaks = 4 * width * width, []
    for ahead in (False, True):
        undo = LayerwiseCasting(skip="", ahead=ahead).apply(case)
        with torch.no_grad():
            for _ in range(2):
                with Memory() as memory:
                    memory.note(list(case.parameters()))
                    case(x)
                peaks.append(memory.peak_allocated)
        undo()
    assert peaks[0] == peaks[1] == peaks[2]
    assert peaks[3] - peaks[2] == pytest.approx(2 * matrix, rel=0.01)


@pytest.mark.slow
def test_the_stream_takes_every_weight_but_those_of_the_first_piece_and_the_peak_grows_by_one():
    settings = {"double_layers": "1", "single_layers": "2"}

    def run(ahead: str):
        chosen = (("layerwise_casting", {"skip": "norm", "ahead": ahead}),)
        done = predict(plan_of(Request("flux", settings, chosen, numerics=False)), lambda _: None)
        events = done.trace.devices[0].events
        beside = (events.stream != 0) & (events.action == Action.ALLOC)
        return done.run, events.size[beside]

    (plain, nothing), (ahead, beside) = run("false"), run("true")
    with torch.device("meta"):
        case = workload_named("flux", settings).build()
    LayerwiseCasting(skip="norm").apply(case)
    wide = {name: 2 * each.numel() for name, each in case.named_parameters() if each.dtype == FP8}
    first = {name for name in wide if name.startswith("x_embedder")}
    assert len(nothing) == 0
    assert sorted(beside) == sorted(size for name, size in wide.items() if name not in first)
    assert 0 < ahead.peak_allocated_bytes - plain.peak_allocated_bytes <= max(wide.values()) + 512
    assert (ahead.weights_bytes, ahead.flops, ahead.bytes_moved) == (
        plain.weights_bytes,
        plain.flops,
        plain.bytes_moved,
    )
