"""Every compatible pair, in order of application, on a small model: as claimed, and undone bit for bit.

An optimization that changes the outputs is compared to itself alone, so that errors of the other one show. Pairs of
which one has a knob for another code path are tested with it too. The models take turns: each optimization meets all of
them, and each pair one (`test_effects.py` has each optimization alone on each kind of model).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from optimizations import OPTIMIZATIONS, Optimization, activation_offload, apply_all, check_together, weight_offload
from optimizations.activation_offload import ActivationOffload
from optimizations.attention_backend import AttentionBackend
from optimizations.checkpointing import Checkpointing
from optimizations.chunked_cross_entropy import ChunkedCrossEntropy
from optimizations.chunked_feed_forward import ChunkedFeedForward
from optimizations.eight_bit_states import EightBitStates
from optimizations.flat_gradients import FlatGradients
from optimizations.gradient_accumulation import GradientAccumulation
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.lora import Lora
from optimizations.split_feed_forward import SplitFeedForward
from optimizations.weight_offload import WeightOffload
from optimizations.weight_quantization import WeightQuantization
from tests.optimizations.pieces import parts_of
from tests.optimizations.tiny import Case, autoencoder, different, flux, llama, ltx
from tests.optimizations.whole import WIDTH, Whole

pytestmark = pytest.mark.slow

SMALL: dict[str, Optimization] = {
    each.name: each
    for each in (
        *(AttentionBackend("math"), Lora(rank=2), ChunkedCrossEntropy(tokens=3), SplitFeedForward(splits=2)),
        *(ChunkedFeedForward(tokens=3), Checkpointing(every=2), ActivationOffload(least_mib=0.0)),
        *(FlatGradients(micro_batches=1), EightBitStates(least=1)),
    )
}
"""Cut so small that they have an effect on a small model."""
OTHERWISE: dict[str, Optimization] = {
    each.name: each
    for each in (LayerwiseCasting(ahead=True), WeightOffload(ahead=True), WeightQuantization(codes="float8"))
}
"""The same optimizations on side streams, or with other codes."""


def whole() -> Case:
    torch.manual_seed(0)
    x = torch.randn(2, 6, WIDTH)
    return Case(Whole(), lambda model: model(x).square().mean())


CASES: tuple[Callable[[], Case], ...] = (llama, whole, ltx, flux, autoencoder)


def goes_together(pair: tuple[type[Optimization], type[Optimization]]) -> bool:
    try:
        check_together([kind() for kind in pair])
    except ValueError:
        return False
    return {kind.needs for kind in pair} != {"training", "inference"}


def usual(kind: type[Optimization]) -> Optimization:
    return SMALL.get(kind.name, kind())


PAIRS = [(usual(one), usual(other)) for one, other in combinations(OPTIMIZATIONS, 2) if goes_together((one, other))]
ONCE_MORE = [
    pair
    for one, other in PAIRS
    for pair in (
        (OTHERWISE.get(one.name), other),
        (one, OTHERWISE.get(other.name)),
        (OTHERWISE.get(one.name), OTHERWISE.get(other.name)),
    )
    if None not in pair and "allocator_settings" not in (one.name, other.name)
]


def named(pair: tuple[Optimization, Optimization]) -> str:
    return " and ".join(each.name + "*" * (each in OTHERWISE.values()) for each in pair)


def as_usual(change: Any) -> Any:
    """Return the change without `ahead`, which changes no bit."""
    return replace(change, ahead=False) if hasattr(change, "ahead") else change


@pytest.fixture(autouse=True)
def what_waits_on_the_host_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one device here: activations are copied all the same, and weights at rest have the other sign."""
    monkeypatch.setattr(activation_offload, "_is_on_host", lambda tensor: False)
    monkeypatch.setattr(weight_offload, "_on_host", turned)
    monkeypatch.setattr(weight_offload, "_on_device", lambda tensor, device: turned(tensor))


def turned(tensor: Tensor) -> Tensor:
    """Negate a tensor, also one of 8 bits, which torch cannot negate."""
    return (-tensor.to(torch.float32)).to(tensor.dtype)


def counted(chosen: list[Any]) -> list[Any]:
    """Set the number of backward passes of a step, as a run does."""
    passes = next((change.pieces for change in chosen if isinstance(change, GradientAccumulation)), 1)
    return [replace(change, micro_batches=passes) if hasattr(change, "micro_batches") else change for change in chosen]


def results(case: Case, pieces: GradientAccumulation | None = None, *, training: bool) -> dict[str, Tensor]:
    """The loss; in training its gradients too, and the weights after two steps, which are taken back.

    In inference the loss twice, since some go by what the pass before has shown.
    """
    torch.manual_seed(7)
    if not training:
        with torch.no_grad():
            return {f"loss {number}": case.loss(case.model.eval()) for number in (1, 2)}
    case.model.train().zero_grad()
    loss = backward(case, pieces)
    numbers = {f"gradient {name}": each.grad for name, each in case.model.named_parameters() if each.grad is not None}
    numbers = {"loss": loss, **{name: each.clone() for name, each in numbers.items()}}
    before = [(parameter, parameter.detach().clone()) for parameter in case.model.parameters()]
    optimizer = torch.optim.SGD(
        [parameter for parameter in case.model.parameters() if parameter.requires_grad], 0.05, momentum=0.9
    )
    for _ in range(2):
        case.model.zero_grad()
        backward(case, pieces)
        optimizer.step()
    names = dict(case.model.named_parameters())
    numbers |= {f"weight {name}": each.detach().clone() for name, each in names.items() if each.requires_grad}
    assert any(not torch.equal(each, value) for each, value in before)
    for each, value in before:
        each.data = value
    case.model.zero_grad()
    return numbers


def backward(case: Case, pieces: GradientAccumulation | None) -> Tensor:
    """The loss of a step, after its backward passes."""
    total = torch.zeros(())
    for part, share in parts_of(case.model, pieces):
        loss = case.loss(part) if share == 1 else case.loss(part) * share
        loss.backward()
        total += loss.detach()
    return total


def made(make: Callable[[], Case]) -> Case:
    """Return a case whose weights float8_e4m3fn represents exactly, so that storing them there is lossless."""
    case = make()
    for parameter in case.model.parameters():
        parameter.data = parameter.data.to(torch.float8_e4m3fn).to(parameter.dtype)
    return case


def changed(case: Case, chosen: list[Optimization], *, training: bool) -> dict[str, Tensor]:
    torch.manual_seed(3)
    undo = apply_all(case.model, chosen)
    try:
        pieces = next((change for change in chosen if isinstance(change, GradientAccumulation)), None)
        return results(case, pieces, training=training)
    finally:
        undo()


def takes(case: Case, chosen: list[Optimization], *, training: bool) -> bool:
    undo: list[Callable[[], None]] = []
    try:
        for each in chosen:
            each.check(case.model, training=training)
            undo.append(each.apply(case.model))
    except ValueError:
        return False
    finally:
        for back in reversed(undo):
            back()
    return True


def compare(ours: dict[str, Tensor], expected: dict[str, Tensor], claim: str) -> None:
    if claim == "bitwise":
        assert different(ours, expected) == []
        return
    near = {"rtol": 2e-2, "atol": 1e-3} if claim == "training" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(ours, expected, **near)


NO_MODEL_HAS_BOTH = {
    *(("split_feed_forward", part) for part in ("vae_slicing", "vae_tiling")),
    *(("chunked_feed_forward", part) for part in ("vae_slicing", "vae_tiling")),
    *((part, other) for part in ("vae_slicing", "vae_tiling") for other in ("kv_cache", "weight_quantization")),
}
"""Autoencoders have no feed-forwards, no cache and no linear layers in blocks; other models nothing to take apart."""
CANNOT_TRAIN = {
    (one.name, other.name)
    for one, other in combinations(OPTIMIZATIONS, 2)
    if {one.name, other.name} & {"layerwise_casting", "weight_quantization"}
    if "training" in (one.needs, other.needs) and Lora not in (one, other)
}
"""Quantized or cast weights cannot be trained, and these are for training; with adapters between them they go."""


@cache
def plainly(make: Callable[[], Case], *, training: bool) -> dict[str, Tensor]:
    """Results of the model without optimizations; the same for all pairs."""
    return results(made(make), training=training)


IN_TURN = PAIRS + ONCE_MORE


@pytest.mark.parametrize("turn", range(len(IN_TURN)), ids=map(named, IN_TURN))
def test_together_they_keep_what_they_claim(turn: int) -> None:
    pair = IN_TURN[turn]
    chosen = counted(list(pair))
    training = any(change.needs == "training" for change in pair)
    # The other models have a batch of one.
    models = (llama, whole) if any(isinstance(each, GradientAccumulation) for each in chosen) else CASES
    first = turn % len(models)
    in_turn = (*models[first:], *models[:first])
    make = next((make for make in in_turn if takes(made(make), chosen, training=training)), None)
    excluded = (pair[0].name, pair[1].name) in CANNOT_TRAIN | NO_MODEL_HAS_BOTH
    assert (make is None) == excluded, "Add a model that has both to CASES, or the pair to NO_MODEL_HAS_BOTH."
    if make is None:
        return
    case, plain = made(make), plainly(make, training=training)
    weights = {name: each.detach().clone() for name, each in case.model.named_parameters()}
    lossy = [as_usual(each) for each in chosen if each.claim == "lossy"]
    order = ("bitwise", "rounding", "training")
    others = [each.claim for each in chosen if each.claim != "lossy"]
    claim = max(others, key=order.index, default="bitwise")
    ours = changed(case, chosen, training=training)
    expected = changed(case, lossy, training=training) if lossy else plain
    compare(ours, expected, claim)
    assert different(weights, dict(case.model.named_parameters())) == []
    assert different(results(case, training=training), plain) == []
    assert not any({"forward", "_loss_function"} & set(vars(module)) for module in case.model.modules())


@pytest.mark.parametrize(
    ("storing", "otherwise"),
    [(name, otherwise) for name in ("layerwise_casting", "weight_quantization") for otherwise in (False, True)],
)
def test_what_cannot_train_goes_with_adapters_between(storing: str, otherwise: bool) -> None:
    names = {name for pair in CANNOT_TRAIN for name in pair}
    names -= {"eight_bit_states", "flat_gradients", "layerwise_casting", "weight_quantization"} - {storing}
    rest = [kind for kind in OPTIMIZATIONS if kind.name in names]
    chosen = counted([OTHERWISE[storing] if kind.name == storing and otherwise else usual(kind) for kind in rest])
    case = made(llama)
    lora = SMALL["lora"]
    stored = next(as_usual(each) for each in chosen if each.name == storing)
    expected = changed(case, [lora, stored], training=True)
    compare(changed(case, [lora, *chosen], training=True), expected, "rounding")
