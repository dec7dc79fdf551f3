"""States in 8 bits by bitsandbytes, where that is installed: its very steps, its very bytes, and back to torch's."""

from __future__ import annotations

import copy
import io
import sys
from typing import Any

import pytest
import torch
from torch import nn

from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from optimizations.eight_bit_states import EightBitStates, Held
from optimizations.optimizer_in_backward import OptimizerInBackward
from tests.optimizations.memory import Memory
from tests.optimizations.test_eight_bit_states import losses
from tests.optimizations.tiny import gpt2, stack

OURS = EightBitStates(least=1000, by="bitsandbytes")


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


def test_where_it_is_not_installed_that_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    case = stack()
    for refuse in (lambda: OURS.check(case.model, training=True), lambda: OURS.apply(case.model)):
        with pytest.raises(ValueError, match="by=bitsandbytes needs a library that is not installed: pip install bits"):
            refuse()
    with pytest.raises(ValueError, match="by is 'apex'; it is one of torch, bitsandbytes"):
        EightBitStates(by="apex")


@pytest.mark.parametrize("in_backward", [False, True])
def test_it_steps_as_that_librarys_own_optimizer_to_the_bit_and_follows_a_scheduler(library, in_backward):
    ours, theirs = gpt2(), gpt2()
    undo = [OURS.apply(ours.model), *([OptimizerInBackward().apply(ours.model)] if in_backward else [])]
    optimizers = (
        torch.optim.AdamW(ours.model.parameters(), lr=3e-3, betas=(0.8, 0.9), eps=1e-7, weight_decay=0.1),
        library.optim.AdamW8bit(
            theirs.model.parameters(), 3e-3, (0.8, 0.9), 1e-7, weight_decay=0.1, min_8bit_size=1000
        ),
    )
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in optimizers]
    for _ in range(5):
        for case, optimizer, scheduler in zip((ours, theirs), optimizers, schedulers, strict=True):
            torch.manual_seed(0)
            case.loss(case.model).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(one, other)
    for back in undo:
        back()


def test_it_learns_as_without_it_and_undone_torch_goes_on_from_there(library):
    plain, case = gpt2(), gpt2()
    expected = losses(plain, 25)
    undo = OURS.apply(case.model)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=3e-3)
    found = []
    for number in range(25):
        torch.manual_seed(0)
        loss = case.loss(case.model)
        loss.backward()
        optimizer.step()
        assert all(parameter.grad is not None for parameter in case.model.parameters())
        optimizer.zero_grad()
        found.append(float(loss.detach()))
        if number == 20:
            assert {type(value) for state in optimizer.state.values() for value in state.values()} == {
                torch.Tensor,
                Held,
            }
            undo()
    assert found[0] == expected[0] and found != expected
    assert found[-1] == pytest.approx(expected[-1], rel=0.1) and found[-1] < found[20]
    state = optimizer.state[case.model.transformer.h[0].mlp.c_fc.weight]
    assert {key: (each.dtype, each.shape) for key, each in state.items()} == {
        "step": (torch.float32, torch.Size([])),
        "exp_avg": (torch.float32, torch.Size([32, 128])),
        "exp_avg_sq": (torch.float32, torch.Size([32, 128])),
    }
    assert state["step"] == 25


def test_a_saved_optimizer_goes_on_to_the_bit(library):
    case = stack(dropout=0.0)
    twin = copy.deepcopy(case.model)
    for model in (case.model, twin):
        OURS.apply(model)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=3e-3) for model in (case.model, twin)]

    def step(number: int) -> None:
        model = (case.model, twin)[number]
        case.loss(model).backward()
        optimizers[number].step()
        optimizers[number].zero_grad()

    step(0)
    file = io.BytesIO()
    torch.save((case.model.state_dict(), optimizers[0].state_dict()), file)
    file.seek(0)
    weights, states = torch.load(file, weights_only=False)
    twin.load_state_dict(weights)
    optimizers[1].load_state_dict(states)
    for number in (0, 1):
        step(number)
    for one, other in zip(case.model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_it_does_not_step_is_refused_and_loses_no_gradient(library):
    case = stack()
    optimizers = (
        torch.optim.SGD(case.model.parameters(), 0.1),
        torch.optim.AdamW(case.model.parameters(), amsgrad=True),
    )
    case.loss(case.model).backward()
    undo = OURS.apply(case.model)
    for optimizer in optimizers:
        with pytest.raises(ValueError, match="leave by=torch"):
            optimizer.step()
        assert all(parameter.grad is not None for parameter in case.model.parameters())
    undo()


def test_of_each_number_two_bytes_and_two_scales_of_a_block_and_nothing_beside_while_it_steps(library):
    width = 1024
    model = nn.Sequential(*(nn.Linear(width, width, bias=False, device="meta") for _ in range(4)))
    weights = 4 * width * width * 4
    undo = EightBitStates(by="bitsandbytes").apply(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with Memory() as memory:
        memory.note(list(model.parameters()))
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
    numbers, maps = 4 * width * width, 2 * 256 * 4
    assert memory.allocated - 2 * weights == 2 * numbers + 2 * numbers // 256 * 4 + maps
    assert memory.peak_allocated == memory.allocated
    del undo


def test_a_predicted_run_takes_what_the_librarys_states_take(library):
    settings, runs = {"layers": "4", "sequence": "64"}, []
    for chosen in ((), (("eight_bit_states", {}),), (("eight_bit_states", {"by": "bitsandbytes"}),)):
        request = Request("llama", settings, chosen, optimizer="adamw-for-loop", numerics=False)
        runs.append(predict(plan_of(request), lambda _: None).run)
    plain, ours, theirs = (run.peak_allocated_bytes for run in runs)
    numbers = runs[0].parameters
    # Weights in bf16: two states of two bytes each, or of one and a 64th. What one weight's step takes is not there.
    assert plain - theirs == pytest.approx(2 * numbers - 2 * numbers // 64, rel=0.25)
    assert theirs < ours


def test_it_goes_on_from_the_states_of_torchs_optimizer_and_of_a_loaded_state_dict(library):
    """Applied before the first step, in the middle, or to a resumed run: the next step is nearly the same."""
    case = stack()
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=0.01)
    for _ in range(3):
        case.loss(case.model).backward()
        optimizer.step()
        optimizer.zero_grad()
    state_dict, weights = optimizer.state_dict(), {k: v.clone() for k, v in case.model.state_dict().items()}
    results = []
    for way in ("wide", "in the middle", "load_state_dict", "load"):
        resumed = stack()
        resumed.model.load_state_dict(weights)
        undo = OURS.apply(resumed.model) if way != "wide" else (lambda: None)
        other = torch.optim.AdamW(resumed.model.parameters(), lr=0.01)
        if way == "load":
            OURS.load(other, state_dict)
        else:
            other.load_state_dict(copy.deepcopy(state_dict))
        resumed.loss(resumed.model).backward()
        other.step()
        assert all(float(state["step"]) == 4 for state in other.state.values())
        results.append([weight.detach() - weights[name] for name, weight in resumed.model.named_parameters()])
        undo()
    for step in results[1:]:
        for one, expected in zip(step, results[0], strict=True):
            assert (one - expected).norm() < 0.1 * expected.norm()
