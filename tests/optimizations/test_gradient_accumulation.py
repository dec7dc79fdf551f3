"""The batch of a step in pieces: the same gradients up to rounding, and activations for one piece at a time."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.execute import predict
from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.plan import plan_of
from memviz.runner.predicted_script import parse_optimizations
from memviz.runner.request import Request, Run
from optimizations.gradient_accumulation import GradientAccumulation
from tests.optimizations.pieces import parts_of
from tests.optimizations.tiny import Case, bert, flux, gpt2, llama, vit


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
    return predict(plan_of(Request("gpt2", settings, changes, numerics=False)), lambda _: None).run


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
