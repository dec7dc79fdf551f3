"""A model against the same model changed, and plans on a reduced model."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import Accelerator
from memviz.runner.output_check import comparison
from memviz.runner.output_check.comparison import check_outputs, compare_outputs, in_proportion
from memviz.runner.output_check.model_runs import ComparedStep, forked, random_state, set_random_state
from memviz.runner.plan import plan_of
from memviz.runner.request import Request, _loss_text, knobs_of
from memviz.runner.workloads import WORKLOADS
from optimizations import OPTIMIZATIONS, apply_all
from optimizations.checkpointing import Checkpointing
from optimizations.flat_gradients import FlatGradients
from optimizations.lora import Adapted
from tests.runner.output_check.models import Stack, nothing, split_wrongly, stack, tokens


def test_checkpointing_is_bitwise_with_dropout_drawn():
    change = Checkpointing()
    found = compare_outputs(
        stack(count=3, residual=True, dropout=0.3), tokens(), change.apply, training=True, claim=change.claim
    )
    assert found.verdict.words == "bitwise equal, as claimed"
    assert found.gradients is not None and found.losses is not None
    assert all(parameter.difference.bitwise for parameter in found.gradients.parameters)
    assert len(found.losses.ours) == 4
    assert found.losses.bitwise
    assert found.notes == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_flat_gradients_over_micro_batches(dtype):
    change = FlatGradients(micro_batches=4)
    whole = tokens(dtype=dtype)["hidden_states"]
    batches = [{"hidden_states": each} for each in whole.chunk(4, dim=1)]
    found = compare_outputs(
        stack(count=2, residual=True, dtype=dtype), batches, change.apply, training=True, claim=change.claim
    )
    assert found.verdict.ok is True
    rounded = "; gradients equal up to rounding" if dtype == torch.bfloat16 else ""
    assert found.verdict.words == f"bitwise equal, as claimed{rounded}"


def keeping_elsewhere(model: nn.Module) -> Callable[[], None]:
    """Takes every gradient away from its parameter."""

    def take(parameter: Tensor) -> None:
        parameter.grad = None

    handles = [each.register_post_accumulate_grad_hook(take) for each in model.parameters()]
    return lambda: [handle.remove() for handle in handles] and None


def test_gradients_that_nobody_says_where_they_are_are_not_compared():
    found = compare_outputs(stack(count=1), tokens(), keeping_elsewhere, training=True, claim="bitwise")
    assert (found.gradients, found.losses) == (None, None)
    assert len(found.notes) == 1 and "gradients" in found.notes[0] and "not compared" in found.notes[0]


def test_all_of_it_is_json_to_the_last_digit():
    found = compare_outputs(
        stack(count=2, residual=True), tokens(), split_wrongly(only_bias=True), training=True, claim="rounding"
    )
    read = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert read["verdict"]["place"] == "layers.0.ff"
    assert [row["difference"]["relative_l2"] for row in read["outputs"]] == [
        output.difference.relative_l2 for output in found.outputs
    ]
    assert [row["alone"]["l2"] for row in read["layers"]] == [layer.alone.l2 for layer in found.layers]


def test_the_change_is_undone_and_what_it_does_beyond_the_model_is_seen():
    """A switch for the whole process, as some backends are: off for the reference, on for the changed layers."""
    switch = {"on": False}

    class Switched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1.5 if switch["on"] else 1.0)

    def build() -> nn.Module:
        return Stack([Switched(32, 32) for _ in range(2)])

    def apply(_model: nn.Module) -> Callable[[], None]:
        switch["on"] = True
        return lambda: switch.update(on=False)

    found = compare_outputs(build, tokens(), apply, training=True, claim="rounding")
    assert switch == {"on": False}
    assert [layer.alone.relative_l2 for layer in found.layers] == pytest.approx([0.5, 0.5])
    assert found.layers[1].chained is not None and found.layers[1].chained.relative_l2 > 0.6
    assert found.verdict.place == "layers.0"


def test_it_is_undone_when_the_changed_model_fails():
    undone: list[bool] = []

    def apply(model: nn.Module) -> Callable[[], None]:
        model.layers[0].net = nn.ModuleList([nn.Linear(3, 3)])
        return lambda: undone.append(True)

    with pytest.raises(RuntimeError):
        compare_outputs(stack(count=1), tokens(), apply, training=False, claim="rounding")
    assert undone == [True]


def test_nothing_to_run_nothing_returned_and_outputs_of_other_shapes_are_refused():
    with pytest.raises(UsageError, match="no inputs for the model"):
        compare_outputs(stack(count=1), [], nothing, training=False, claim="bitwise")

    class Silent(nn.Module):
        def forward(self, hidden_states: Tensor) -> None:
            return None

    with pytest.raises(UsageError, match="returns no tensor"):
        compare_outputs(Silent, tokens(), nothing, training=False, claim="bitwise")

    def reshape(model: nn.Module) -> Callable[[], None]:
        model.layers.append(nn.Linear(32, 16))
        return lambda: None

    with pytest.raises(UsageError, match="shapes must be equal"):
        compare_outputs(stack(count=1), tokens(), reshape, training=False, claim="rounding")


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_outputs_are_compared_on_the_device_that_was_measured(monkeypatch, kind):
    monkeypatch.setattr(comparison, "find_accelerator", lambda: Accelerator(kind, None))
    assert comparison.place_of("measured").type == kind
    assert comparison.place_of("predicted").type == "cpu"


def test_a_device_with_a_generator_of_its_own_is_forked_and_set_whatever_it_is_called(monkeypatch):
    """`torch.xpu` as torch names it; the generator behind it is that of the tests."""
    states = [torch.tensor([1])]

    class Xpu:
        get_rng_state = staticmethod(lambda _device=None: states[-1])
        set_rng_state = staticmethod(lambda state, _device=None: states.append(state))
        device_count = staticmethod(lambda: 1)

    monkeypatch.setattr(torch, "xpu", Xpu)
    device = torch.device("xpu", 0)
    before = random_state(device)
    with forked(device):
        set_random_state([before[0], torch.tensor([2])], device)
        assert states[-1].tolist() == [2]
    assert states[-1].tolist() == [1]


def numerics(
    workload: str, settings: dict[str, str], *chosen: tuple[str, dict[str, str]], pinned: int | None = None, **how: str
) -> dict[str, Any]:
    request = Request(workload, settings, chosen, numerics=False, **how)
    made = check_outputs(plan_of(request), lambda _: None, "predicted", pinned=pinned)
    assert made is not None
    return made


TRAIN = {"layers": "1", "sequence": "4096", "batch": "2"}
REPEATED = {**TRAIN, "layers": "2"}
READ = {"layers": "2", "sequence": "2048", "mode": "inference", "cache": "true", "new_tokens": "32"}
PICTURE = {"height": "512", "width": "512"}
EXERCISED: dict[str, tuple[str, dict[str, str], tuple[str, dict[str, str]]]] = {
    "several chunks of tokens": ("llama", TRAIN, ("chunked_feed_forward", {})),
    "several chunks of a picture's tokens": ("sdxl", {"mode": "inference"}, ("chunked_feed_forward", {})),
    "several chunks of a batch": ("vit", {"layers": "2"}, ("chunked_feed_forward", {})),
    "several chunks of logits": ("llama", TRAIN, ("chunked_cross_entropy", {})),
    "several micro-batches": ("llama", {**TRAIN, "batch": "5"}, ("gradient_accumulation", {"pieces": "4"})),
    "another kernel": ("llama", TRAIN, ("attention_backend", {"backend": "math"})),
    "slices": ("llama", TRAIN, ("split_feed_forward", {})),
    "recomputed blocks": ("llama", REPEATED, ("checkpointing", {})),
    "moved activations": ("llama", TRAIN, ("activation_offload", {})),
    "summed gradients": ("llama", {**TRAIN, "micro_batches": "2"}, ("flat_gradients", {})),
    "steps in backward": ("llama", TRAIN, ("optimizer_in_backward", {})),
    "states in a byte": ("llama", TRAIN, ("eight_bit_states", {})),
    "adapters": ("llama", TRAIN, ("lora", {})),
    "more tokens than the window": ("llama", READ, ("kv_cache", {"kind": "sliding"})),
    "a window of a model whose tokens all look far back": ("qwen3", READ, ("kv_cache", {"kind": "sliding"})),
    "cached keys read back": ("llama", READ, ("kv_cache", {})),
    "a cache of one size": ("llama", READ, ("kv_cache", {"kind": "static"})),
    "moved weights": ("llama", READ, ("weight_offload", {})),
    "weights in 8 bits": ("llama", READ, ("layerwise_casting", {})),
    "weights as whole numbers": ("llama", READ, ("weight_quantization", {})),
    "several tiles": ("vae", {}, ("vae_tiling", {})),
    "several pictures": ("vae", {**PICTURE, "batch": "2"}, ("vae_slicing", {})),
}
IDLE: dict[str, tuple[str, dict[str, str], tuple[str, dict[str, str]]]] = {
    "one chunk": ("llama", TRAIN, ("chunked_feed_forward", {"tokens": "8192"})),
    "the same kernel": ("llama", TRAIN, ("attention_backend", {})),
    "no block": ("llama", TRAIN, ("checkpointing", {"every": "0"})),
    "blocks that only the whole model has": ("llama", {"layers": "8"}, ("checkpointing", {"skip": "6-7"})),
    "no states": ("llama", TRAIN, ("eight_bit_states", {"least": "1000000000"})),
    "a window for all tokens": ("llama", READ, ("kv_cache", {"kind": "sliding", "window": "4096"})),
    "no token after the prompt": ("llama", {**READ, "new_tokens": "0"}, ("kv_cache", {})),
    "the usual cache": ("llama", READ, ("kv_cache", {"kind": "dynamic"})),
    "one tile": ("vae", PICTURE, ("vae_tiling", {})),
    "one picture": ("vae", PICTURE, ("vae_slicing", {})),
    "settings": ("llama", TRAIN, ("allocator_settings", {})),
    "casts of weights that are trained": ("llama", TRAIN, ("layerwise_casting", {})),
    "whole numbers for weights that are trained": ("llama", TRAIN, ("weight_quantization", {})),
}


Function = Callable[..., Any]


def spoiled(value: Any) -> Any:
    """Multiply floats, and tensors of floats, by -2, which no optimizer and no norm takes back."""
    if isinstance(value, Iterator):
        return map(spoiled, value)
    is_float = isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())
    return value * -2 if is_float else tree_map(spoiled, value) if isinstance(value, (tuple, dict)) else value


def spoil(plain: Function) -> Function:
    return lambda *args, **kwargs: spoiled(plain(*args, **kwargs))


def spoil_other_kernels(plain: Function) -> Function:
    usual = torch.backends.cuda.flash_sdp_enabled
    return lambda *args, **kwargs: plain(*args, **kwargs) * (1 if usual() else -2)


def spoil_pieces(run: Function) -> Function:
    def outer(knobs: Any, function: Function, x: Tensor, *more: Tensor) -> Tensor:
        is_cut = x.dim() > 1 and x.numel() // x.shape[-1] > knobs.tokens
        return run(knobs, function, x, *more) * (-2 if is_cut else 1)

    return outer


def spoil_recomputation(checkpoint: Function) -> Function:
    def outer(block: Function, *args: Any, **how: Any) -> Any:
        calls = count()
        return checkpoint(lambda *values: block(*(spoiled(values) if next(calls) else values)), *args, **how)

    return outer


def spoil_slices(split: Function) -> Function:
    # Slices of a batch are cut in diffusers' own code.
    def outer(whole: Tensor, *args: Any, **kwargs: Any) -> Any:
        slices = getattr(sys._getframe(1).f_locals.get("self"), "use_slicing", False)
        return (spoiled if slices else tuple)(split(whole, *args, **kwargs))

    return outer


def spoil_other_caches(make: Function) -> Function:
    def outer(knobs: Any, config: Any) -> Any:
        cache = make(knobs, config)
        plain = cache.update

        def update(keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
            before, found = cache.get_seq_length(layer), plain(keys, values, layer, *args, **kwargs)
            is_cut = knobs.kind == "sliding" and before + keys.shape[-2] > knobs.window
            is_read_back = before and knobs.kind in ("static", "quantized")
            return spoiled(found) if is_cut or is_read_back else found

        cache.update = update
        return cache

    return outer


def spoil_casts(cast: Function) -> Function:
    def outer(weight: Any, dtype: torch.dtype) -> None:
        cast(weight, dtype)
        weight.data = weight.data * -2 if dtype.itemsize > 1 else weight.data

    return outer


def spoil_gradients(add: Function) -> Function:
    return lambda sums, weight: (weight.grad.mul_(-2), add(sums, weight))[1]


VAES = ("AutoencoderKL", "AutoencoderKLLTXVideo", "AutoencoderKLWan")
SPOILED: dict[str, dict[str, Callable[[Function], Function]]] = {
    "allocator_settings": {},
    "attention_backend": {"torch.nn.functional.scaled_dot_product_attention": spoil_other_kernels},
    "lora": {"optimizations.lora.Adapted.forward": spoil},
    "chunked_cross_entropy": {"optimizations.chunked_cross_entropy._Chunks.with_rows_of": spoil},
    "split_feed_forward": {"optimizations.split_feed_forward._inner": spoil},
    "chunked_feed_forward": {"optimizations.chunked_feed_forward.ChunkedFeedForward.run": spoil_pieces},
    "vae_slicing": {"torch.Tensor.split": spoil_slices},
    "vae_tiling": {f"diffusers.{vae}.{blend}": spoil for vae in VAES for blend in ("blend_v", "blend_h")},
    "kv_cache": {"optimizations.kv_cache.KvCache._cache": spoil_other_caches},
    "weight_quantization": {"optimizations.weight_quantization.Quantized.unpacked": spoil},
    "layerwise_casting": {"optimizations.layerwise_casting._cast": spoil_casts},
    "weight_offload": {"optimizations.weight_offload._on_device": spoil},
    "checkpointing": {"optimizations.checkpointing.checkpoint": spoil_recomputation},
    "activation_offload": {"optimizations.activation_offload._to_device": spoil},
    "gradient_accumulation": {"optimizations.gradient_accumulation.GradientAccumulation.split": spoil},
    "flat_gradients": {"optimizations.flat_gradients._Sums.after_accumulation": spoil_gradients},
    "optimizer_in_backward": {"optimizations.optimizer_in_backward._plain_step": lambda _: lambda *_: None},
    "eight_bit_states": {"optimizations.eight_bit_states._unpacked": spoil},
}
"""Functions by which each has its effect, spoiled only where it has one."""


def results(check: Any) -> dict[str, Any]:
    """Losses of two training steps, then the outputs."""
    twin, model = check.twin, check.build().train(check.twin.training)
    batches = [twin.inputs(check.place, number) for number in range(twin.micro_batches)]
    step = ComparedStep(batches, twin.training, twin.loss, split=comparison._split(check.applied))
    undo = apply_all(model, check.applied)
    losses = step.losses(model, 2, lambda weights: torch.optim.AdamW(weights, lr=1e-2)) if twin.training else []
    found = {"losses": torch.tensor(losses), **step.run(model).outputs}
    undo()
    return found


def shows(check: Any, name: str, patch: pytest.MonkeyPatch) -> bool:
    """Return True if the results differ once the effect is spoiled."""
    plain = results(check)
    for path, spoiling in SPOILED[name].items():
        patch.setattr(path, spoiling(resolve_name(path)))
    ours = results(check)
    patch.undo()
    return any(not torch.equal(value, ours[key]) for key, value in plain.items())


@pytest.mark.parametrize("case", [*EXERCISED, *IDLE])
def test_a_change_is_compared_where_its_effect_shows_and_else_called_not_exercised(case, monkeypatch):
    workload, settings, change = {**EXERCISED, **IDLE}[case]
    optimizer = "none" if settings.get("mode") == "inference" or "layers" not in settings else "adamw"
    plan = plan_of(Request(workload, settings, (change,), optimizer=optimizer, numerics=False))
    is_exercised = shows(comparison._Check(plan, torch.device("cpu"), None), change[0], monkeypatch)
    assert is_exercised == (case in EXERCISED)
    made = numerics(workload, settings, change, optimizer=optimizer)
    verdict = made["verdict"]
    if is_exercised:
        assert made["not_exercised"] == [] and verdict["short"] != "not exercised" and verdict["ok"] is not False
    else:
        assert (verdict["short"], verdict["ok"]) == ("not exercised", None)
        assert "equal" not in verdict["words"] and made["not_exercised"][0]["reason"] in verdict["words"]


MODELS = [kind for kind in WORKLOADS if kind.name in ("bert", "flux", "gpt2", "ltx_video", "qwen3", "vit")]
"""Two for each third; the others take longer, and are in the table above or made of the same blocks."""


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.name)
def test_no_forward_pass_is_called_equal_in_which_no_effect_shows(kind, monkeypatch):
    """A third of the optimizations for each model; each of them comes with some. Two blocks show what four would."""
    knobs = {"mode": "inference", "cache": "true", "batch": "2"}
    knobs |= {"layers": "2", "double_layers": "1", "single_layers": "2", "micro_batches": "1"}
    settings = {name: value for name, value in knobs.items() if name in {each.name for each in knobs_of(kind)}}
    compared = []
    for change in OPTIMIZATIONS[MODELS.index(kind) % 3 :: 3]:
        with suppress(UsageError):
            request = Request(kind.name, settings, ((change.name, {}),), numerics=False)
            check = comparison._Check(plan_of(request), torch.device("cpu"), None)
            if check.applied:
                is_called = check.numerics()["verdict"]["short"] != "not exercised"
                assert is_called == shows(check, change.name, monkeypatch), change.name
                compared.append(change.name)
    assert compared


def test_what_the_run_did_not_move_to_the_host_is_not_exercised():
    change = ("activation_offload", {"least_mib": "1000000"})
    assert numerics("llama", TRAIN, change, pinned=0)["verdict"]["short"] == "not exercised"
    assert numerics("llama", TRAIN, change, pinned=1 << 20)["verdict"]["short"] == "bitwise equal"


def test_adapters_are_compared_once_they_have_learnt_and_beside_losses_of_the_same_training():
    made = numerics("llama", REPEATED, ("lora", {}), ("checkpointing", {}), optimizer="adamw")
    losses, outputs = made["losses"], made["outputs"]
    assert made["verdict"]["ok"] is True and "bitwise" not in made["verdict"]["words"]
    assert losses["trains"] == "adapters" and 0 < losses["updates"] < 1e-2
    assert losses["ours"] == pytest.approx(losses["reference"], rel=1e-5)
    assert losses["ours"][-1] < losses["ours"][0]
    assert any(not row["difference"]["bitwise"] for row in outputs)


def test_adapters_that_nobody_calls_are_found(monkeypatch):
    """They start at zero, so a first step would not show it."""

    def forward(adapted: Adapted, x: torch.Tensor) -> torch.Tensor:
        return adapted.base(x) + 0 * adapted.lora_up(adapted.lora_down(x))

    monkeypatch.setattr(Adapted, "forward", forward)
    made = numerics("llama", TRAIN, ("lora", {}), optimizer="adamw")
    assert made["verdict"]["ok"] is False


@pytest.mark.parametrize(
    ("value", "whole", "reduced", "expected"),
    [(1024, 4096, 64, 16), (4096, 4096, 64, 64), (9000, 4096, 64, 140), (4095, 4096, 64, 63), (1, 4096, 64, 1)],
)
def test_a_size_is_reduced_in_proportion_and_stays_on_its_side_of_the_whole(value, whole, reduced, expected):
    assert in_proportion(value, whole, reduced) == expected


def test_the_facts_of_a_run_say_the_loss_of_the_same_training():
    assert loss_fact([7.96045, 7.9], [7.96045, 7.9], "adapters") == "7.9 training adapters, equal"
    assert loss_fact([5.0], [5.25], "") == "5, baseline 5.25"
    assert loss_fact([5.0000001], [5.0], "") == "5, equal in six digits"


def loss_fact(ours: list[float], reference: list[float], trains: str) -> str:
    return _loss_text({"ours": ours, "reference": reference, "trains": trains})
