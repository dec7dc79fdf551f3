"""Each optimization on every kind of model: outputs and gradients as claimed, an unshared copy, and a clean undo."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optimizations import Optimization, apply_all, weight_offload
from optimizations.activation_offload import ActivationOffload, host_bytes
from optimizations.attention_backend import AttentionBackend
from optimizations.checkpointing import Checkpointing
from optimizations.chunked_cross_entropy import ChunkedCrossEntropy
from optimizations.chunked_feed_forward import ChunkedFeedForward
from optimizations.flat_gradients import FlatGradients
from optimizations.split_feed_forward import SplitFeedForward
from optimizations.vae_slicing import VaeSlicing
from optimizations.vae_tiling import VaeTiling
from optimizations.weight_offload import WeightOffload
from optimizations.weight_quantization import WeightQuantization
from tests.optimizations import tiny
from tests.optimizations.memory import predicted
from tests.optimizations.tiny import Case, different, one_step

ACTIVATIONS = ActivationOffload(least_mib=0.0, from_host=True)
FEED_FORWARDS = "gpt2 llama bert vit ltx flux hunyuan_video"
ALL = "bert flux gpt2 llama ltx stack vit"


def tied() -> Case:
    return tiny.llama(tie_word_embeddings=True)


def mpt() -> Case:
    """Return a model whose feed-forward gets the residual too."""
    from transformers import MptConfig, MptForCausalLM

    config = MptConfig(d_model=32, n_heads=2, n_layers=2, vocab_size=64, max_seq_len=32)
    return tiny._language_model(MptForCausalLM, config)


def unet() -> Case:
    from memviz.runner.plan import make_workload

    workload = make_workload("sdxl", {"mode": "training"}).small()
    torch.manual_seed(0)
    model, inputs = workload.build(), workload.inputs(torch.device("cpu"))
    return Case(model, lambda model: workload.loss(model(**inputs)))


EFFECTS: list[tuple[str, tuple[Any, ...]]] = [
    ("stack gpt2 llama ltx vit", (ACTIVATIONS,)),
    ("stack llama", (Checkpointing(), ACTIVATIONS)),
    ("stack ltx gpt2 llama", (Checkpointing(every=2, invert=True),)),
    ("ltx gpt2 llama", (Checkpointing(keep="both"),)),
    ("ltx gpt2 llama unet", (Checkpointing(),)),
    ("stack llama", (FlatGradients(micro_batches=1),)),
    ("gpt2 llama ltx", (AttentionBackend("math"),)),
    *(("llama gpt2 tied mixtral", (ChunkedCrossEntropy(tokens),)) for tokens in (1, 3, 1000)),
    (f"{FEED_FORWARDS} mpt", (ChunkedFeedForward(tokens=3),)),
    (f"{FEED_FORWARDS} mpt", (ChunkedFeedForward(tokens=3, recompute=False),)),
    (FEED_FORWARDS, (SplitFeedForward(4),)),
    ("flux bert", (SplitFeedForward(4), Checkpointing())),
    ("autoencoder", (VaeSlicing(),)),
    ("autoencoder", (VaeTiling(),)),
    *((ALL, (WeightOffload(ahead=ahead),)) for ahead in (False, True)),
    *((ALL, (WeightOffload("leaf", ahead=ahead),)) for ahead in (False, True)),
    *((ALL, (way,)) for way in (WeightOffload(group=3), WeightOffload("model"))),
    ("bert flux llama ltx vit", (WeightQuantization(group=16),)),
    ("flux llama", (WeightQuantization(codes="float8"),)),
]
ROWS = [(name, chosen) for names, chosen in EFFECTS for name in names.split()]
QUICK = {"stack", "gpt2", "llama", "autoencoder"}


def case_of(name: str) -> Case:
    make = {"tied": tied, "mpt": mpt, "unet": unet}.get(name) or getattr(tiny, name)
    case: Case = make()
    return case


def words(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(map(repr, value))


def results(case: Case, *, training: bool) -> dict[str, Tensor]:
    """The loss, twice in inference since some go by the pass before; in training with all gradients."""
    if training:
        return one_step(case.model, case.loss)
    torch.manual_seed(7)
    with torch.no_grad():
        return {f"loss {number}": case.loss(case.model) for number in (1, 2)}


def state(model: nn.Module) -> list[Any]:
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return [
        (type(module), [len(vars(module)[name]) for name in hooks], "forward" in vars(module), name)
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[0] not in QUICK)) for row in ROWS],
    ids=words,
)
def test_outputs_are_as_claimed_for_a_copy_too_and_undo_restores_the_model(
    name: str, chosen: tuple[Optimization, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Weights at rest have the other sign, so that a layer which reads them there gets it wrong.
    monkeypatch.setattr(weight_offload, "_on_host", lambda tensor: -tensor)
    monkeypatch.setattr(weight_offload, "_on_device", lambda tensor, device: -tensor)
    case, claims = case_of(name), {change.claim for change in chosen}
    training = all(change.needs != "inference" and change.claim != "lossy" for change in chosen)
    # Dropout is drawn again in a recomputation, but otherwise by kernels that compute in another order.
    case.model.train(training and claims == {"bitwise"}).requires_grad_(training)
    plain, before = results(case, training=training), state(case.model)
    weights = {name: weight.detach().clone() for name, weight in case.model.named_parameters()}
    undo = apply_all(case.model, chosen)
    ours = results(case, training=training)
    twin = Case(copy.deepcopy(case.model), case.loss)
    if ACTIVATIONS in chosen:
        assert host_bytes(case.model).most > host_bytes(case.model).now == 0
    undo()
    if claims == {"bitwise"}:
        assert different(plain, ours) == []
    else:
        near = {"rtol": 0.05, "atol": 5e-3} if "lossy" in claims else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(ours, plain, **near)
        assert "lossy" not in claims or different(plain, ours) != []
    assert state(case.model) == before
    assert all(torch.equal(weight, weights[name]) for name, weight in case.model.named_parameters())
    assert different(plain, results(case, training=training)) == []
    for parameter in case.model.parameters():
        parameter.data.zero_()
    if not any(isinstance(change, AttentionBackend) for change in chosen):
        assert different(ours, results(twin, training=training)) == []


LLAMA = {"layers": "2", "sequence": "64"}
LONG = {"layers": "1", "sequence": "4096"}
FLUX = {"double_layers": "1", "single_layers": "2"}
CACHE = {"layers": "4", "narrow": "8", "mode": "inference", "cache": "true", "sequence": "2048", "new_tokens": "2"}
PEAKS = [
    ("llama", LONG, "none", "chunked_cross_entropy", {"tokens": "512"}, 0.15, 0.5),
    ("llama", {**LONG, "layers": "3"}, "none", "activation_offload", {}, 0.6, 0.95),
    ("flux", FLUX, "none", "chunked_feed_forward", {"tokens": "512"}, 0.5, 0.97),
    ("flux", FLUX, "none", "split_feed_forward", {}, 0.5, 0.97),
    ("hunyuan_video", FLUX, "none", "split_feed_forward", {}, 0.5, 0.97),
    ("llama", {**LLAMA, "layers": "12"}, "adamw-for-loop", "eight_bit_states", {}, 0.7, 0.9),
    ("llama", LLAMA, "adamw", "optimizer_in_backward", {}, 0.9, 0.96),
    ("llama", LLAMA, "adamw-for-loop", "lora", {"rank": "8"}, 0.2, 0.33),
    ("llama", {**CACHE, "batch": "8"}, "none", "kv_cache", {"kind": "quantized"}, 0.5, 0.97),
    ("flux", FLUX, "none", "weight_offload", {}, 0.8, 0.9),
]


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "settings", "optimizer", "name", "knobs", "least", "most"), PEAKS)
def test_a_predicted_run_has_a_lower_peak(
    workload: str, settings: Any, optimizer: Any, name: str, knobs: Any, least: float, most: float
) -> None:
    plain, changed = (predicted(workload, settings, *some, optimizer=optimizer) for some in ((), ((name, knobs),)))
    assert least < changed.run.peak_allocated_bytes / plain.run.peak_allocated_bytes < most
