"""Gradients in one flat buffer, and a batch in pieces: the same sums, less memory, and what interferes."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributed, nn

from memviz.errors import UsageError
from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.plan import plan_of
from memviz.runner.predicted_script import parse_optimizations
from memviz.runner.request import Request, Run
from optimizations.checkpointing import Checkpointing
from optimizations.flat_gradients import FlatGradients, flat_gradient
from optimizations.gradient_accumulation import GradientAccumulation
from tests import forked
from tests.optimizations.memory import Memory, predicted
from tests.optimizations.pieces import parts_of
from tests.optimizations.tiny import Case, Stack, bert, flux, gpt2, llama, vit
from tests.optimizations.two_ranks import RANKS, WRAPPED

WAYS = ("flat", "list_then_cat", "plain")
MiB = 1 << 20


def batches(count: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(3, 8).to(dtype) for _ in range(count)]


def model_in(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return Stack(2).to(dtype)


def take_step(model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    losses = []
    for x in inputs:
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return losses


def summed(how: str, dtype: torch.dtype, count: int, **knobs: bool) -> tuple[list[Tensor], Tensor]:
    model = model_in(dtype)
    FlatGradients(how, micro_batches=count, **knobs).apply(model)
    return take_step(model, batches(count, dtype)), flat_gradient(model)


@settings(max_examples=12)
@given(st.sampled_from([torch.float32, torch.bfloat16]), st.integers(1, 5), st.booleans())
def test_losses_and_sums_are_bitwise_equal_in_all_ways(dtype, count, joined):
    (losses, total), *others = (summed(how, dtype, count, joined=joined) for how in WAYS)
    expected = torch.zeros_like(total)
    plain_losses = []
    for x in batches(count, dtype):
        model = model_in(dtype)
        plain_losses += take_step(model, [x])
        expected += torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert (total.dtype, torch.equal(total, expected), losses) == (torch.float32, True, plain_losses)
    for other_losses, other in others:
        assert (torch.equal(other, total), other_losses) == (True, losses)


def test_sums_of_bf16_gradients_are_closer_to_the_truth_than_bf16_sums():
    plain, exact = model_in(torch.bfloat16), 0
    for x in batches(5, torch.bfloat16):
        single = model_in(torch.bfloat16)
        take_step(single, [x])
        take_step(plain, [x])
        exact = exact + torch.cat([parameter.grad.flatten().double() for parameter in single.parameters()])
    _, total = summed("flat", torch.bfloat16, 5)
    rounded = torch.cat([parameter.grad.flatten().double() for parameter in plain.parameters()])
    assert (total - exact).norm() < (rounded - exact).norm() / 1000


# What an optimizer finds.


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_after_a_step_every_parameter_has_its_sum(how, dtype):
    model = model_in(dtype)
    FlatGradients(how, micro_batches=2).apply(model)
    take_step(model, batches(2, dtype))
    total, start = flat_gradient(model), 0
    for parameter in model.parameters():
        part = total[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
        assert torch.equal(parameter.main_grad, part) and torch.equal(parameter.grad, part.to(dtype))
        assert parameter.main_grad.data_ptr() == part.data_ptr()
        assert (parameter.grad.data_ptr() == part.data_ptr()) == (dtype == torch.float32)
    assert start == total.numel()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("clears", [True, False])
def test_training_goes_on_as_without_it(how, clears):
    """Three steps of two micro-batches; whether the sums are cleared between is not left to the loop."""
    models = [model_in(torch.float32), model_in(torch.float32)]
    FlatGradients(how, micro_batches=2).apply(models[0])
    for step in range(3):
        for model, always in zip(models, (clears, True), strict=True):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            take_step(model, batches(2, seed=step))
            optimizer.step()
            if always:
                optimizer.zero_grad()
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


def test_without_fill_grad_only_main_grad_is_there():
    model = model_in(torch.bfloat16)
    FlatGradients(micro_batches=1, fill_grad=False).apply(model)
    take_step(model, batches(1, torch.bfloat16))
    assert all(
        parameter.grad is None and parameter.main_grad.dtype == torch.float32 for parameter in model.parameters()
    )


def test_an_optimizer_that_steps_too_early_is_told():
    model = model_in(torch.float32)
    undo = FlatGradients(micro_batches=3).apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    take_step(model, batches(2))
    with pytest.raises(RuntimeError, match="stepped after 2 of 3 micro-batches"):
        optimizer.step()
    other = torch.optim.SGD(Stack(2).parameters(), lr=0.1)
    other.step()
    undo()
    optimizer.step()


def test_parameters_without_a_gradient_count_as_zero():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(2, 2)
            self.used = nn.Linear(8, 3)
            self.frozen = nn.Linear(3, 3).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.frozen(self.used(x))

    for how in WAYS:
        model = Half()
        FlatGradients(how, micro_batches=2).apply(model)
        take_step(model, batches(2))
        total = flat_gradient(model)
        assert (total.numel(), total[:6].abs().sum() == 0, total[6:].abs().min() > 0) == (33, True, True)


def test_parameters_replaced_after_it_was_applied_are_found():
    model = model_in(torch.float32)
    FlatGradients(micro_batches=2).apply(model)
    for module in list(model.modules()):
        for name, each in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(each.detach().clone()))
    take_step(model, batches(2))
    assert torch.equal(flat_gradient(model), summed("flat", torch.float32, 2)[1])


def test_it_goes_with_checkpointing_and_tied_weights():
    expected = None
    for checkpointed in (False, True):
        case = llama(tie_word_embeddings=True)
        FlatGradients(micro_batches=2).apply(case.model)
        if checkpointed:
            Checkpointing().apply(case.model)
        for _ in range(2):
            case.loss(case.model).backward()
        total = flat_gradient(case.model)
        expected = total if expected is None else expected
        assert torch.equal(total, expected)
    assert total.numel() == sum(parameter.numel() for parameter in case.model.parameters())


def test_a_forward_without_gradients_is_no_part_of_a_step():
    model = model_in(torch.float32)
    FlatGradients(micro_batches=2).apply(model)
    first, second = batches(2)
    take_step(model, [first])
    with torch.no_grad():
        model(first)
    take_step(model, [second])
    with torch.no_grad():
        model(first)
    assert torch.equal(flat_gradient(model), summed("flat", torch.float32, 2)[1])


def test_undo_leaves_a_model_that_accumulates_as_before():
    model = model_in(torch.float32)
    hooks = dict(model._forward_pre_hooks)
    undo = FlatGradients(micro_batches=2).apply(model)
    take_step(model, batches(3))
    undo()
    model.zero_grad()
    take_step(model, batches(4))
    plain = model_in(torch.float32)
    take_step(plain, batches(4))
    assert all(
        torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), plain.parameters(), strict=True)
    )
    assert not any(hasattr(parameter, "main_grad") for parameter in model.parameters())
    assert dict(model._forward_pre_hooks) == hooks
    FlatGradients().apply(model)


# Memory, in bytes a parameter, of weights in bf16 on meta.

SIZES = (11, 7, 5, 3)
"""Weights of so many times 16 MiB: large enough for a segment each. In another order some of what is reserved is
reserved for want of a hole of the right size, up to 0.2 bytes a parameter."""


class Weights(nn.Module):
    """Gradients and nothing else: a weight's gradient is as large as it, and activations are small."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(each * 8 * MiB, dtype=torch.bfloat16) for each in SIZES)

    def forward(self) -> Tensor:
        return sum(weight.sum() for weight in self.weights)


def peaks(how: str | None, **knobs: bool) -> tuple[float, float]:
    """The most bytes allocated and reserved, for each parameter."""
    with torch.device("meta"):
        model = Weights()
    count = sum(parameter.numel() for parameter in model.parameters())
    with Memory() as memory:
        memory.note(list(model.parameters()))
        if how is not None:
            FlatGradients(how, **knobs).apply(model)
        for _ in range(4):
            model().backward()
    return tuple(round(each / count, 1) for each in (memory.peak_allocated, memory.peak_reserved))


def test_live_bytes_are_those_of_each_way_and_the_list_reserves_four_bytes_a_parameter_more():
    """Weights 2, fp32 sum 4, gradients of a micro-batch 2, joined 2; the list twice, after those 2 are freed."""
    allocated, reserved = zip(*map(peaks, WAYS), strict=True)
    assert allocated == (10, 12, 10)
    assert (reserved[0] - reserved[2], reserved[1] - reserved[2]) == (0, 4)


def test_without_joining_the_last_micro_batch_flat_needs_four_bytes_a_parameter_less():
    largest = 2 * max(SIZES) / sum(SIZES)
    assert peaks("flat", joined=False, fill_grad=False)[0] == pytest.approx(2 + 4 + largest, abs=0.1)
    assert peaks("list_then_cat", joined=False, fill_grad=False)[0] == 2 + 4 + 4


def test_an_incomplete_sum_is_not_handed_out():
    model = Stack()
    with pytest.raises(ValueError, match="no complete sum"):
        flat_gradient(model)
    FlatGradients(micro_batches=2).apply(model)
    take_step(model, batches(1))
    with pytest.raises(ValueError, match="no complete sum"):
        flat_gradient(model)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this PyTorch has no gloo")
    folder = tmp_path_factory.mktemp("ranks")
    program = str(Path(__file__).with_name("two_ranks.py"))
    ranks = [_started(program, rank, folder) for rank in range(RANKS)]
    try:
        # A rank that fails leaves the other waiting for it.
        while any(each.poll() is None for each in ranks) and not any(each.poll() for each in ranks):
            time.sleep(0.05)
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    assert [each.returncode for each in ranks] == [0] * RANKS, (folder / "0.log").read_text()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def _started(program: str, rank: int, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{rank}.log").open("wb") as log:
        return forked.start([program, str(rank), str(folder)], of=forked.with_torch, stdout=log, stderr=log)


@pytest.mark.slow
def test_under_the_wrapper_sums_are_the_mean_of_plain_ones_and_training_goes_on_as_without(found):
    """Buffers are sent around when the wrapper would have, and weights and sums are the same to the bit."""
    for each in found:
        sums = each["is_the_mean_of_plain_sums"]
        assert len(sums) == len(WRAPPED) * 2 * 3 * 2 and all(sums.values()), sums
        assert set(map(tuple, each["trains_as_the_wrapper_alone"].values())) == {()}
        assert set(each["undone_the_wrapper_reduces_as_ever"].values()) == {True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("inside the wrapper", "apply FlatGradients to the wrapper"),
        ("around the wrapper", "FlatGradients to that wrapper"),
        ("a hook", "has a communication hook"),
        ("a built-in hook", "has a communication hook"),
        ("the last under no_sync", "local to this rank. Leave no_sync before the last"),
        ("static_graph", "a static graph, whose first step it must reduce itself"),
        ("a graph that becomes static", "a static graph"),
        ("join", "different numbers of batches"),
    ],
)
def test_what_the_wrapper_does_otherwise_is_refused(found, case, words):
    assert all(words in each["refused"][case] for each in found)
    assert all(each["refused"]["and then goes on"] is True for each in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("fully_shard", "sharded or replicated by FSDP or replicate"),
        ("a shard", "weight is a shard of a parameter"),
        ("fully_shard afterwards, the model", "sharded or replicated by FSDP"),
        ("fully_shard afterwards, a part", "do not use FlatGradients with FSDP"),
        ("replicate", "sharded or replicated by FSDP or replicate"),
        ("replicate afterwards", "sharded or replicated by FSDP or replicate"),
    ],
)
def test_what_is_sharded_is_refused_before_a_gradient_is_lost(found, case, words):
    assert all(words in each["refused_under_fsdp"][case] for each in found)


def test_fsdp_1_is_refused_by_its_name_and_by_its_parameters():
    """FSDP 1 needs an accelerator, so its marks on a model are imitated here."""

    class FullyShardedDataParallel(nn.Linear):
        pass

    with pytest.raises(ValueError, match="in FSDP 1 by MixedPrecision"):
        FlatGradients().apply(nn.Sequential(FullyShardedDataParallel(2, 2)))
    flattened = nn.Linear(2, 2)
    flattened.weight._fsdp_flattened = True
    with pytest.raises(ValueError, match="weight is a shard of a parameter"):
        FlatGradients().apply(flattened)


def test_parameters_replaced_in_the_middle_of_a_step_are_told_and_the_next_step_is_whole():
    model = nn.Linear(4, 4)
    FlatGradients(micro_batches=2).apply(model)
    model(torch.ones(1, 4)).sum().backward()
    model.weight = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(RuntimeError, match="Parameters were replaced"):
        model(torch.ones(1, 4)).sum().backward()
    model.zero_grad()
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((4, 4), 2.0))


@pytest.mark.parametrize("make", [gpt2, llama, bert, vit, flux])
def test_gradients_are_those_of_the_whole_batch_up_to_rounding(make: Any) -> None:
    case = make()
    case.model.eval()  # no dropout, and gradients all the same
    whole = gradients(case, None)
    ours = gradients(case, GradientAccumulation(2))
    assert whole.keys() == ours.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(gradient, ours[name]) for name, gradient in whole.items())


def gradients(case: Case, pieces: GradientAccumulation | None) -> dict[str, Tensor]:
    case.model.zero_grad()
    for part, share in parts_of(case.model, pieces):
        (case.loss(part) * share).backward()
    return {name: weight.grad.clone() for name, weight in case.model.named_parameters() if weight.grad is not None}


def test_every_row_is_in_one_piece_and_shares_say_how_many_there_are() -> None:
    rows = torch.arange(7)
    places = torch.arange(7 * 3).reshape(7, 3)
    inputs = {"tokens": rows, "img_ids": places, "more": {"sizes": rows * 2, "names": ["a"]}, "scale": 3, "none": None}
    split = list(GradientAccumulation(3).split(inputs))
    assert [len(piece["tokens"]) for piece, _ in split] == [2, 2, 3]
    assert [share for _, share in split] == [2 / 7, 2 / 7, 3 / 7]
    assert torch.equal(torch.cat([piece["tokens"] for piece, _ in split]), rows)
    for piece, _ in split:
        assert torch.equal(piece["more"]["sizes"], 2 * piece["tokens"])
        assert torch.equal(piece["img_ids"], places)
        assert (piece["more"]["names"], piece["scale"], piece["none"]) == (["a"], 3, None)


def masked(case: Case, counts: tuple[int, ...], shifted: bool = True) -> dict[str, Tensor]:
    """Return a batch with this many labels per row; a masked language model gets other tokens than its labels."""
    torch.manual_seed(3)
    tokens = torch.randint(5, 60, (len(counts), 10))
    labels = torch.full_like(tokens, -100)
    for row, count in enumerate(counts):
        labels[row, 10 - count :] = tokens[row, 10 - count :]
    return {"input_ids": tokens if shifted else torch.where(labels == -100, tokens, 3), "labels": labels}


def gradients_of(case: Case, inputs: dict[str, Any], pieces: GradientAccumulation | None) -> dict[str, Tensor]:
    case.model.eval().zero_grad()
    for piece, share in [(inputs, 1.0)] if pieces is None else pieces.split(inputs):
        (case.model(**piece).loss * share).backward()
    return {name: weight.grad.clone() for name, weight in case.model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("counts", [(1, 2, 10, 10), (10, 3, 10, 1), (0, 0, 4, 10)])
@pytest.mark.parametrize(
    ("make", "shifted", "given"),
    [(llama, True, {}), (gpt2, True, {}), (bert, False, {}), (llama, True, {"num_items_in_batch": 17})],
)
def test_unequal_numbers_of_targets_give_the_gradients_of_the_whole_batch(
    make: Any, shifted: bool, given: dict[str, Any], counts: tuple[int, ...]
) -> None:
    case = make()
    inputs = {**masked(case, counts, shifted), **given}
    whole = gradients_of(case, inputs, None)
    torch.testing.assert_close(gradients_of(case, inputs, GradientAccumulation(2)), whole, rtol=1e-4, atol=1e-6)


def test_embeddings_in_place_of_tokens_and_shifted_labels_count_as_their_loss_counts() -> None:
    case = llama()
    inputs = masked(case, (1, 2, 10, 10))
    shifted = nn.functional.pad(inputs["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    tokens = inputs.pop("input_ids")
    for more in (
        {"input_ids": tokens, "shift_labels": shifted},
        {"inputs_embeds": case.model.get_input_embeddings()(tokens).detach()},
    ):
        whole = gradients_of(case, {**inputs, **more}, None)
        ours = gradients_of(case, {**inputs, **more}, GradientAccumulation(2))
        torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-6)


class Pair(NamedTuple):
    tokens: Tensor
    scale: int


@pytest.mark.parametrize("batch", [3, 4])
def test_positions_of_several_axes_and_named_tuples_are_cut_by_rows(batch: int) -> None:
    rows, places = torch.arange(batch), torch.arange(3 * batch * 5).reshape(3, batch, 5)
    inputs = {"position_ids": places, "pair": Pair(rows, 2), "cache_position": torch.arange(batch)}
    split = [piece for piece, _ in GradientAccumulation(2).split(inputs)]
    assert torch.equal(torch.cat([piece["position_ids"] for piece in split], 1), places)
    assert torch.equal(torch.cat([piece["pair"].tokens for piece in split]), rows)
    for piece in split:
        assert piece["position_ids"].shape == (3, len(piece["pair"].tokens), 5)
        assert piece["pair"].scale == 2 and len(piece["cache_position"]) == batch
    (piece, _), _ = GradientAccumulation(2).split({"tokens": rows, "position_ids": torch.arange(5)})
    assert torch.equal(piece["position_ids"], torch.arange(5))


def test_rows_that_lie_in_one_sequence_are_refused() -> None:
    inputs = {"input_ids": torch.zeros(4, 3), "pixel_values": torch.zeros(64, 8), "image_grid_thw": torch.ones(4, 3)}
    with pytest.raises(ValueError, match="With image_grid_thw the rows of this batch are one sequence"):
        list(GradientAccumulation(2).split(inputs))


def test_a_batch_that_is_too_small_or_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="A batch of 1 cannot be divided into 2 micro-batches"):
        list(GradientAccumulation(2).split({"x": torch.zeros(1, 3)}))
    with pytest.raises(ValueError, match="no batch to split"):
        list(GradientAccumulation(2).split({"scale": 2.0, "img_ids": torch.zeros(4, 3)}))
    with pytest.raises(UsageError, match="changes a training loop"):
        parse_optimizations(["gradient_accumulation"], [])


def test_what_counts_backward_passes_counts_the_pieces() -> None:
    chosen = (("gradient_accumulation", {"pieces": "4"}), ("flat_gradients", {}), ("optimizer_in_backward", {}))
    settings = {"batch": "4", "micro_batches": "3"}
    for change in chosen[1:]:
        request = Request("gpt2", settings, optimizations=(chosen[0], change), optimizer="adamw")
        assert plan_of(request).optimizations[1].micro_batches == 12  # type: ignore[attr-defined]


def _run(batch: int, pieces: int) -> Run:
    settings = {"layers": "2", "narrow": "4", "batch": str(batch), "sequence": "256", "dropout": "0.0"}
    changes = (("gradient_accumulation", {"pieces": str(pieces)}),) if pieces > 1 else ()
    return predicted("gpt2", settings, *changes).run


@pytest.mark.slow
def test_activations_of_a_run_exist_for_one_piece_at_a_time() -> None:
    """At its peak 8 rows in 4 pieces hold what 2 rows alone do, the others' tokens, and a loss with its share."""
    whole, pieced, small = _run(8, 1), _run(8, 4), _run(2, 1)
    beside = 6 * 256 * 8 + 512
    assert pieced.peak_allocated_bytes - beside == small.peak_allocated_bytes < whole.peak_allocated_bytes / 2


def test_the_check_of_outputs_sees_the_pieces_and_a_wrong_one() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    torch.manual_seed(1)
    inputs = {"input": torch.randn(4, 4)}
    right = GradientAccumulation(2).split
    apply = GradientAccumulation(2).apply
    numerics = compare_outputs(build, inputs, apply, training=True, claim="rounding", split=right, loss=square)
    assert numerics.verdict.ok

    def wrong(given: Any) -> Any:
        return ((piece, 1.0) for piece, _ in right(given))

    numerics = compare_outputs(build, inputs, apply, training=True, claim="rounding", split=wrong, loss=square)
    assert not numerics.verdict.ok


def square(output: Tensor) -> Tensor:
    return output.square().mean()
