"""Optimizers with states of eight bits, and those that step within backward: updates, memory, and state dicts."""

import copy
import gc
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from memviz.runner.fit.space import space_of
from memviz.runner.request import Request
from optimizations.eight_bit_states import BitsandbytesState, EightBitStates, Packed
from optimizations.optimizer_in_backward import OptimizerInBackward
from tests.optimizations.memory import Memory
from tests.optimizations.tiny import Case, gpt2, llama, stack

SMALL = EightBitStates(least=1)


@pytest.mark.parametrize("shape", [(256,), (1000,), (33, 77), (3,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_come_back_as_they_lay_within_a_step_of_their_blocks_scale(shape, dtype):
    transposed = torch.randn(40, 30).t()
    assert Packed.of(transposed, is_signed=True).unpacked().stride() == transposed.stride()
    torch.manual_seed(0)
    numbers = torch.randn(shape).mul(torch.logspace(-3, 3, shape[-1])).to(dtype)
    back = Packed.of(numbers, is_signed=True).unpacked()
    assert (back.shape, back.dtype, back.stride()) == (numbers.shape, dtype, numbers.stride())
    blocks = nn.functional.pad(numbers.float().flatten(), (0, -numbers.numel() % 256)).view(-1, 256)
    largest = blocks.abs().amax(1).repeat_interleave(256)[: numbers.numel()].view(shape)
    # d(share) = 2 sqrt(share) d(code) with half a step of 1/127, and half a step more squared.
    share = (numbers.float().abs() / largest).clamp(max=1)
    allowed = largest * (share.sqrt() / 127 + 0.25 / 127**2) * (1.0 + 1e-3) + numbers.float().abs() * 2**-8
    assert ((back.float() - numbers.float()).abs() <= allowed).all()
    assert (back * numbers >= 0).all()


def test_averages_of_squares_keep_their_orders_of_magnitude_and_never_become_zero():
    numbers = torch.logspace(-14, 0, 256)
    back = Packed.of(numbers, is_signed=False).unpacked()
    assert (back > 0).all()
    large = numbers > 1e-6
    torch.testing.assert_close(back[large], numbers[large], rtol=0.27, atol=0)
    assert Packed.of(torch.zeros(300), is_signed=False).unpacked().count_nonzero() == 0


def test_what_is_packed_in_pieces_is_packed_alike(monkeypatch):
    from optimizations import eight_bit_states

    numbers = torch.randn(5 * 256 + 7)
    whole = Packed.of(numbers, is_signed=True)
    monkeypatch.setattr(eight_bit_states, "_PIECE", 512)
    pieces = Packed.of(numbers, is_signed=True)
    assert torch.equal(whole.codes, pieces.codes) and torch.equal(whole.scales, pieces.scales)
    assert torch.equal(whole.unpacked(), pieces.unpacked())


def losses(case: Case, steps: int, **how) -> list[float]:
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=3e-3, **how)
    found = []
    for _ in range(steps):
        torch.manual_seed(0)
        loss = case.loss(case.model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True}], ids=str)
def test_training_learns_as_it_did_and_not_to_the_bit(how):
    plain, ours = gpt2(), gpt2()
    undo = SMALL.apply(ours.model)
    expected, found = losses(plain, 25, **how), losses(ours, 25, **how)
    undo()
    assert found[:1] == expected[:1] and found != expected
    assert expected[-1] < 0.9 * expected[0]
    assert found[-1] == pytest.approx(expected[-1], rel=0.1)


def test_states_rest_in_bytes_gradients_stay_and_undone_they_are_numbers_again():
    case, other = stack(), stack()
    undo = EightBitStates(least=200).apply(case.model)
    optimizer = torch.optim.AdamW([*case.model.parameters(), *other.model.parameters()])
    for each in (case, other):
        each.loss(each.model).backward()
    gradients = [parameter.grad for parameter in case.model.parameters()]
    optimizer.step()
    assert all(one.grad is theirs for one, theirs in zip(case.model.parameters(), gradients, strict=True))
    state = optimizer.state[case.model.blocks[0].up.weight]
    assert [type(each) for each in state.values()] == [torch.Tensor, Packed, Packed]
    assert isinstance(optimizer.state[case.model.blocks[0].up.bias]["exp_avg"], torch.Tensor)
    assert isinstance(optimizer.state[other.model.blocks[0].up.weight]["exp_avg"], torch.Tensor)
    undo()
    assert all(isinstance(each, torch.Tensor) for state in optimizer.state.values() for each in state.values())
    optimizer.step()


def test_what_cannot_be_stepped_so_is_refused():
    case = stack()
    undo = SMALL.apply(case.model)
    optimizer = torch.optim.LBFGS(case.model.parameters())
    case.loss(case.model).backward()
    with pytest.raises(ValueError, match="LBFGS may need all states at once"):
        optimizer.step(lambda: case.loss(case.model))
    undo()


@pytest.mark.parametrize("by", ["torch", "bitsandbytes"])
def test_between_steps_a_state_is_a_byte_and_a_64th(by):
    if by == "bitsandbytes":
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    width = 1024
    model = nn.Sequential(*(nn.Linear(width, width, bias=False, device="meta") for _ in range(4)))
    numbers = 4 * width * width
    weights = 4 * numbers
    undo = EightBitStates(by=by).apply(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with Memory() as memory:
        memory.note(list(model.parameters()))
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
    states = 2 * numbers + 2 * numbers // 256 * 4
    if by == "bitsandbytes":
        # Two tables of codes, and nothing beside while it steps.
        assert memory.allocated - 2 * weights == states + 2 * 256 * 4
        assert memory.peak_allocated == memory.allocated
    else:
        assert memory.allocated - 2 * weights == states
        # At the most two wide states of one weight, what its step takes, and what packing takes of one.
        assert memory.peak_allocated < 2 * weights + 2 * numbers + 6 * 4 * width * width
        undo()


@pytest.mark.slow
def test_fit_tries_it_where_training_may_change():
    request = Request("gpt2", {"layers": "1", "narrow": "4"}, optimizer="adamw")
    keeps = {keep: "eight_bit_states" in space_of(request, keep).names for keep in ("outputs", "training", "nothing")}
    assert keeps == {"outputs": False, "training": True, "nothing": True}
    space = space_of(request, "training")
    chosen = [way for way in space.candidates.values() if "eight_bit_states" in dict(way.request.optimizations)]
    assert {way.keeps for way in chosen} == {"training"}


@pytest.mark.slow
@pytest.mark.parametrize("undo_first", ["states", "steps"])
def test_with_steps_in_backward_weights_are_the_same_to_the_bit_and_neither_gradients_nor_wide_states_gather(
    undo_first,
):
    torch.manual_seed(0)
    expected, ours = gpt2(), gpt2()
    both = {"steps": OptimizerInBackward().apply(ours.model), "states": SMALL.apply(ours.model)}
    alone = SMALL.apply(expected.model)
    assert losses(ours, 4) == losses(expected, 4)
    for one, other in zip(ours.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(one, other)
    optimizer = torch.optim.AdamW(ours.model.parameters(), lr=3e-3)
    ours.loss(ours.model).backward()
    assert all(parameter.grad is None for parameter in ours.model.parameters())
    kinds = {
        type(value) for state in optimizer.state.values() for value in state.values() if value is not state["step"]
    }
    assert kinds == {Packed}
    alone()
    both.pop(undo_first)()
    both.popitem()[1]()
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert all(isinstance(value, torch.Tensor) for value in states)


def saved_and_loaded(optimizer):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def stepped(model, optimizer, seed):
    torch.manual_seed(seed)
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def linear():
    torch.manual_seed(0)
    return nn.Linear(64, 128)


def test_a_step_with_a_closure_takes_the_gradients_of_that_closure():
    weights = {}
    for has_closure in (False, True):
        model = linear()
        undo = EightBitStates().apply(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        calls = []

        def closure(model=model, optimizer=optimizer, calls=calls):
            optimizer.zero_grad()
            torch.manual_seed(len(calls))
            loss = model(torch.randn(8, 64)).square().mean()
            loss.backward()
            calls.append(float(loss.detach()))
            return loss

        for _ in range(4):
            if has_closure:
                assert float(optimizer.step(closure).detach()) == calls[-1]
            else:
                closure()
                optimizer.step()
        assert len(calls) == 4
        assert any(isinstance(value, Packed) for value in optimizer.state[model.weight].values())
        weights[has_closure] = model.weight.detach().clone()
        undo()
    assert torch.equal(weights[True], weights[False])


@pytest.mark.parametrize("resume", ["without it", "load_state_dict", "load"])
def test_training_resumes_from_its_state_dict_with_and_without_it(resume):
    model = linear()
    undo = EightBitStates().apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for seed in range(3):
        stepped(model, optimizer, seed)
    state_dict = saved_and_loaded(optimizer)
    again = linear()
    again.load_state_dict(model.state_dict())
    undo_again = EightBitStates().apply(again) if resume != "without it" else (lambda: None)
    resumed = torch.optim.AdamW(again.parameters(), lr=0.5)
    if resume == "load":
        EightBitStates().load(resumed, state_dict)
        assert isinstance(resumed.state[again.weight]["exp_avg"], Packed)
        assert isinstance(resumed.state[again.bias]["exp_avg"], torch.Tensor)
    else:
        resumed.load_state_dict(state_dict)
    stepped(model, optimizer, 7)
    stepped(again, resumed, 7)
    torch.testing.assert_close(again.weight, model.weight, rtol=0, atol=0 if resume == "without it" else 0.004)
    assert resumed.param_groups[0]["lr"] == 0.01
    assert float(resumed.state[again.weight]["step"]) == 4
    undo()
    undo_again()


def test_adafactor_moves_rows_with_large_gradients_as_far_as_without_it():
    """Rounded to zero, the averages of rows with small gradients enlarge the update that its clipping scales down."""
    moved = {}
    for packs in (False, True):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4096, 8))
        start = weight.detach().clone()
        model = nn.ParameterList([weight])
        undo = EightBitStates().apply(model) if packs else (lambda: None)
        optimizer = torch.optim.Adafactor([weight], lr=0.01)
        scale = torch.full((4096, 1), 1e-3)
        scale[:256:16] = 1
        scale[256:] = scale[:256].repeat(15, 1)
        for _ in range(30):
            weight.grad = torch.randn(4096, 8) * scale
            optimizer.step()
        moved[packs] = (weight.detach() - start)[scale[:, 0] == 1].abs().mean()
        undo()
    torch.testing.assert_close(moved[True], moved[False], rtol=1e-3, atol=0)


OURS = EightBitStates(least=1000, by="bitsandbytes")


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


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
                BitsandbytesState,
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
        with pytest.raises(ValueError, match="use by=torch"):
            optimizer.step()
        assert all(parameter.grad is not None for parameter in case.model.parameters())
    undo()


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


Make = Callable[[Any], Optimizer]
MAKES: dict[str, Make] = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=1e-2),
    "AdamW, foreach": lambda weights: torch.optim.AdamW(weights, lr=1e-2, foreach=True),
    "AdamW, fused": lambda weights: torch.optim.AdamW(weights, lr=1e-2, fused=True),
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
}


def trained(case: Case, make: Make, steps: int = 3, micro_batches: int = 1) -> dict[str, torch.Tensor]:
    optimizer = make(case.model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(steps):
        for part in range(micro_batches):
            torch.manual_seed(10 * step + part)
            case.loss(case.model).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return {name: each.detach().clone() for name, each in case.model.named_parameters()}


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("case", [stack, gpt2, lambda: llama(tie_word_embeddings=True)], ids=["stack", "gpt2", "tied"])
def test_weights_after_some_steps_are_the_same_to_the_bit(case: Callable[[], Case], name: str):
    plain, ours = case(), case()
    start = {key: each.detach().clone() for key, each in ours.model.named_parameters()}
    undo = OptimizerInBackward().apply(ours.model)
    stepped = trained(ours, MAKES[name])
    undo()
    expected = trained(plain, MAKES[name])
    assert [key for key, each in expected.items() if not torch.equal(each, stepped[key])] == []
    assert not any(torch.equal(each, start[key]) for key, each in stepped.items() if "bias" not in key)


def test_micro_batches_are_added_up_before_the_step():
    plain, ours = stack(), stack()
    undo = OptimizerInBackward(micro_batches=3).apply(ours.model)
    stepped = trained(ours, MAKES["AdamW"], micro_batches=3)
    undo()
    expected = trained(plain, MAKES["AdamW"], micro_batches=3)
    assert all(torch.equal(each, stepped[key]) for key, each in expected.items())


ROUTES = ["ab", "aa", "bb", "ba", "a", "aa", "bab", ""]
"""Experts used in each pass of a step: some, none, or in more or fewer passes than declared."""


def trained_experts(micro_batches: int | None, fails: bool = False) -> tuple[list[torch.Tensor], list[int]]:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    undo = OptimizerInBackward(micro_batches).apply(model) if micro_batches else lambda: None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for route in ROUTES:
        if fails:
            for number in range(2):
                with pytest.raises(RuntimeError, match="out of memory"):
                    failing(model["b"](model["a"](torch.ones(3, 4)))).sum().backward()
                optimizer.zero_grad(set_to_none=number == 0)
            optimizer.zero_grad()
        for expert in route:
            model[expert](torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    undo()
    counts = [int(state["step"]) for state in optimizer.state.values()]
    return [weight.detach().clone() for weight in model.parameters()], counts


def failing(x: torch.Tensor) -> torch.Tensor:
    """Its backward pass fails when the last weights have their gradients and the first do not."""
    x.grad_fn.next_functions[1][0].register_hook(_fail)  # type: ignore[union-attr]
    return x


def _fail(*_: Any) -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("fails", [False, True])
def test_experts_without_tokens_and_passes_that_failed_leave_the_others_in_step(fails: bool):
    expected, steps = trained_experts(None, fails)
    ours, stepped = trained_experts(2, fails)
    assert steps == stepped
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


CLIPS = ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIPS[:2])
@pytest.mark.parametrize("early", [False, True])
def test_clipping_is_refused_for_its_weights_alone_until_undone(name: str, early: bool):
    """Also by a function that a program imported before, as far as that refuses by itself."""
    case, other = stack(), stack()
    # Models of other tests may wait for the collector yet.
    gc.collect()
    plain = [getattr(nn.utils.clip_grad, each) for each in CLIPS]
    clip = getattr(nn.utils, name)
    undo = OptimizerInBackward().apply(case.model)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    case.loss(case.model).backward()
    clip = clip if early else getattr(nn.utils, name)
    # The early one for values finds nothing to clip, which torch refuses in its own words.
    with pytest.raises((ValueError, RuntimeError) if early and name == "clip_grad_value_" else ValueError):
        clip(case.model.parameters(), 1.0)
    if not early:
        with pytest.warns(UserWarning, match="norm is unknown"):
            assert clip(case.model.parameters(), math.inf).isnan()
    other.loss(other.model).backward()
    clip(other.model.parameters(), 1e-6)
    assert all(weight.grad is not None and weight.grad.abs().max() <= 1e-6 for weight in other.model.parameters())
    optimizer.step()
    undo()
    case.loss(case.model).backward()
    nn.utils.clip_grad_norm_(case.model.parameters(), 1.0)
    assert [getattr(nn.utils.clip_grad, each) for each in CLIPS] == plain


def test_gradients_are_gone_after_backward_and_stay_where_no_optimizer_is():
    case = stack()
    undo = OptimizerInBackward().apply(case.model)
    case.loss(case.model).backward()
    assert all(parameter.grad is not None for parameter in case.model.parameters())
    case.model.zero_grad()
    optimizer = torch.optim.SGD(case.model.blocks.parameters(), lr=0.1)
    case.loss(case.model).backward()
    assert {name for name, each in case.model.named_parameters() if each.grad is not None} == {
        "first.weight",
        "first.bias",
    }
    undo()
    case.loss(case.model).backward()
    assert all(parameter.grad is not None for parameter in case.model.parameters())
    # Models of other tests may wait for the collector yet.
    gc.collect()
    assert Optimizer.__init__.__module__ == "torch.optim.optimizer"
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_an_optimizer_that_was_there_before_steps_in_backward_from_its_second_step_on():
    case = stack()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    undo = OptimizerInBackward().apply(case.model)
    case.loss(case.model).backward()
    assert case.model.first.weight.grad is not None
    optimizer.step()
    optimizer.zero_grad()
    before = case.model.first.weight.detach().clone()
    case.loss(case.model).backward()
    assert case.model.first.weight.grad is None
    assert not torch.equal(before, case.model.first.weight)
    undo()


def test_the_newest_optimizer_of_a_weight_steps_it_alone_and_one_that_is_gone_not_at_all():
    case = stack(dropout=0.0)
    undo = OptimizerInBackward().apply(case.model)
    first = torch.optim.SGD(case.model.parameters(), lr=100.0)
    second = torch.optim.SGD(case.model.parameters(), lr=0.0)
    before = case.model.first.weight.detach().clone()
    case.loss(case.model).backward()
    assert torch.equal(before, case.model.first.weight)
    del first, second
    gc.collect()
    case.loss(case.model).backward()
    assert case.model.first.weight.grad is not None
    undo()


def test_undone_in_any_order_nothing_listens_any_more():
    plain = Optimizer.__init__
    one, other = stack(), stack()
    undo_one, undo_other = OptimizerInBackward().apply(one.model), OptimizerInBackward().apply(other.model)
    undo_one()
    optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
    other.loss(other.model).backward()
    assert other.model.first.weight.grad is None
    undo_other()
    assert Optimizer.__init__ is plain
    assert optimizer.state == {}


def test_what_needs_all_gradients_is_refused():
    case = stack()
    undo = OptimizerInBackward().apply(case.model)
    with pytest.raises(ValueError, match="LBFGS may need all gradients at once"):
        torch.optim.LBFGS(case.model.parameters())
    undo()


def test_a_step_holds_one_gradient_and_not_all():
    width, depth = 256, 12
    model = nn.Sequential(*(nn.Linear(width, width, bias=False, device="meta") for _ in range(depth)))
    x, weight = torch.empty(1, width, device="meta"), 4 * width * width
    peaks = []
    for applied in (False, True):
        undo = OptimizerInBackward().apply(model) if applied else lambda: None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        with Memory() as memory:
            memory.note([*model.parameters(), x])
            model(x).sum().backward()
            optimizer.step()
        peaks.append(memory.peak_allocated)
        optimizer.zero_grad()
        undo()
    assert peaks[0] // weight == 2 * depth
    assert peaks[1] // weight == depth + 1
