"""All optimizations: their places in one order, their libraries, and what they refuse of knobs, models and plans."""

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import permutations
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn

from memviz.errors import UsageError
from memviz.runner import prices
from memviz.runner.plan import optimization_of, plan_of
from memviz.runner.request import Request
from optimizations import GROUPS, OPTIMIZATIONS, Optimization, apply_all, check_together
from optimizations.activation_offload import ActivationOffload
from optimizations.allocator_settings import AllocatorSettings
from optimizations.checkpointing import Checkpointing
from optimizations.chunked_cross_entropy import ChunkedCrossEntropy
from optimizations.chunked_feed_forward import ChunkedFeedForward
from optimizations.eight_bit_states import EightBitStates
from optimizations.flat_gradients import FlatGradients
from optimizations.gradient_accumulation import GradientAccumulation
from optimizations.kv_cache import KvCache
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.lora import Lora
from optimizations.optimizer_in_backward import OptimizerInBackward
from optimizations.split_feed_forward import SplitFeedForward
from optimizations.vae_slicing import VaeSlicing
from optimizations.vae_tiling import VaeTiling
from optimizations.weight_offload import WeightOffload
from optimizations.weight_quantization import WeightQuantization
from tests.house.printed_code import EFFECTS
from tests.house.repository import ROOT
from tests.optimizations.memory import predicted
from tests.optimizations.tiny import Case, Stack, autoencoder, bert, flux, llama, ltx, stack
from tests.optimizations.whole import Whole
from tests.runner.output_check.test_comparison import SPOILED

each_class = pytest.mark.parametrize("kind", OPTIMIZATIONS, ids=lambda kind: kind.name)


@dataclass(frozen=True)
class Noted:
    """Does nothing but note when, into a list of the test's."""

    name: str
    notes: list[str] = field(default_factory=list)
    refuses: bool = False
    not_with: Mapping[str, str] = field(default_factory=dict)

    def apply(self, model: nn.Module) -> Callable[[], None]:
        if self.refuses:
            raise ValueError(f"{self.name} refuses")
        self.notes.append(self.name)
        return lambda: self.notes.append(f"undo {self.name}")


def test_the_order_is_fixed_whatever_order_they_are_given_in():
    names = [kind.name for kind in OPTIMIZATIONS]
    order = ["allocator_settings", "lora", "weight_quantization", "weight_offload", "checkpointing", "flat_gradients"]
    assert sorted(order, key=names.index) == order
    for given in permutations(["users_own", "checkpointing", "attention_backend", "flat_gradients"]):
        notes: list[str] = []
        undo = apply_all(nn.Linear(1, 1), [Noted(name, notes) for name in given])
        undo()
        order = ["attention_backend", "checkpointing", "flat_gradients", "users_own"]
        assert notes == [*order, *(f"undo {name}" for name in reversed(order))]


def test_each_has_a_row_in_every_table():
    names = {kind.name for kind in OPTIMIZATIONS}
    tables = {
        "GROUPS of optimizations/__init__.py": {kind.name for kinds in GROUPS.values() for kind in kinds},
        "EFFECTS of tests/house/printed_code.py": set(EFFECTS),
        "SPOILED of tests/runner/output_check/test_comparison.py": set(SPOILED),
        "the stored prices: python -m memviz.runner.prices NAME": {
            price["name"] for price in prices._presets()["feed_forward"]["prices"]
        },
    }
    assert {table: names ^ rows for table, rows in tables.items() if rows != names} == {}
    assert sum(map(len, GROUPS.values())) == len(names) == len(OPTIMIZATIONS)


def test_a_refusal_half_way_undoes_what_was_applied():
    notes: list[str] = []
    chosen = [
        Noted("flat_gradients", notes, refuses=True),
        Noted("checkpointing", notes),
        Noted("attention_backend", notes),
    ]
    with pytest.raises(ValueError, match="flat_gradients refuses"):
        apply_all(nn.Linear(1, 1), chosen)
    assert notes == ["attention_backend", "checkpointing", "undo checkpointing", "undo attention_backend"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_pair_that_does_not_go_together_is_named_with_the_reason_of_either(turned):
    pair = [Noted("one", not_with={"other": "they both move house."}), Noted("other")]
    pair = pair[::-1] if turned else pair
    words = f"{pair[0].name} cannot be combined with {pair[1].name}: they both move house."
    for refuse in (check_together, lambda pair: apply_all(nn.Linear(1, 1), pair)):
        with pytest.raises(ValueError, match=words):
            refuse([Noted("third"), *pair])
    assert [each.notes for each in pair] == [[], []]


def test_the_same_twice_is_refused():
    with pytest.raises(ValueError, match="checkpointing is given twice"):
        check_together([Checkpointing(every=2), Checkpointing()])


def test_pairs_that_are_ruled_out_name_optimizations_that_exist():
    names = {kind.name for kind in OPTIMIZATIONS}
    for kind in OPTIMIZATIONS:
        assert set(kind.not_with) <= names - {kind.name}
        assert all(reason.endswith(".") for reason in kind.not_with.values())


@each_class
def test_each_has_what_a_command_line_and_a_page_show(kind):
    assert is_dataclass(kind) and kind.__dataclass_params__.frozen
    assert kind.__module__ == f"optimizations.{kind.name}"
    assert kind.title and 1 <= kind.sentence.count(". ") + 1 <= 2 and kind.sentence.endswith(".")
    known = get_type_hints(kind)
    for each in fields(kind):
        assert each.metadata["help"]
        assert each.metadata.get("python_only") or known[each.name] in (int, float, bool, str, int | None, str | None)
        choices = each.metadata.get("choices", ())
        assert not choices or each.default in choices
    made = kind()
    assert made.claim in ("bitwise", "rounding", "training", "lossy") and isinstance(dict(made.environment), dict)


@each_class
def test_each_file_can_be_copied_away_alone(kind):
    """An optimization's file imports torch and the standard library only."""
    tree = ast.parse((ROOT / "optimizations" / f"{kind.name}.py").read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}


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
        chosen = (name, {**knobs, "implementation": implementation})
        run = predicted(workload[0], {**workload[1], "mode": mode}, chosen).run
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


@pytest.mark.parametrize(
    ("kind", "knobs", "words"),
    [
        (ActivationOffload, {"least_mib": -1.0}, "the minimum is 0"),
        (ActivationOffload, {"most_gib": -0.5}, "the minimum is 0"),
        *(
            (AllocatorSettings, {"conf": conf}, "Write name:value")
            for conf in ("", "  ", "expandable_segments", "expandable_segments=True", "a:1,,b", "a:[1,2")
        ),
        (Checkpointing, {"every": -1}, "every is -1"),
        (Checkpointing, {"keep": "some"}, "one of nothing, attention, matmuls, both"),
        (Checkpointing, {"skip": "1,x"}, "skip has 'x'"),
        (Checkpointing, {"skip": "5-3"}, "skip has '5-3'"),
        (Checkpointing, {"function": print, "offload": True}, "cannot be combined with keep or offload"),
        (ChunkedCrossEntropy, {"accum_dtype": "fp8"}, "accum_dtype is 'fp8'; it must be one of weight, float32"),
        (ChunkedCrossEntropy, {"by": "apple"}, "by is 'apple'; it must be one of torch, liger"),
        (ChunkedCrossEntropy, {"tokens": 64, "by": "liger"}, "Liger chooses the chunk size itself"),
        (EightBitStates, {"by": "apex"}, "by is 'apex'; it must be one of torch, bitsandbytes"),
        (FlatGradients, {"how": "cat"}, "one of flat, list_then_cat, plain"),
        (FlatGradients, {"micro_batches": 0}, "minimum is 1"),
        (GradientAccumulation, {"pieces": 1}, "minimum is 2"),
        (KvCache, {"kind": "paged"}, "kind is 'paged'"),
        (LayerwiseCasting, {"storage": "int8"}, "'int8'; it must be one of float8_e4m3fn, float8_e5m2, bf16, fp16"),
        (LayerwiseCasting, {"compute": "float8_e4m3fn"}, "compute cannot be"),
        (LayerwiseCasting, {"granularity": "row"}, "granularity cannot be 'row'; it must be one of leaf, block, model"),
        (LayerwiseCasting, {"skip": "norm,("}, r"'\(' in skip is not a regular expression"),
        (LayerwiseCasting, {"storage": "fp16", "compute": "bf16"}, "bfloat16 save nothing when stored in fp16"),
        (LayerwiseCasting, {"storage": "bf16", "compute": "bf16"}, "save nothing"),
        (LayerwiseCasting, {"granularity": "model", "ahead": True}, "granularity=model has no next unit"),
        (Lora, {"by": "unsloth"}, "by is 'unsloth'; it must be one of torch, peft"),
        (SplitFeedForward, {"splits": 0}, "the minimum is 2"),
        (SplitFeedForward, {"only": "("}, "is not a regular expression"),
        (WeightOffload, {"granularity": "model", "ahead": True}, "granularity=model has no next unit"),
        (WeightQuantization, {"by": "quanto"}, "by is 'quanto'; it must be one of torch, torchao"),
        (WeightQuantization, {"codes": "float8", "bits": 4}, "Use bits=8 and by=torch"),
        (WeightQuantization, {"codes": "float8", "by": "torchao"}, "Use bits=8 and by=torch"),
        (WeightQuantization, {"codes": "nf4"}, "codes is 'nf4'; it must be one of whole, float8"),
    ],
)
def test_impossible_knobs_are_refused_at_once(kind: Any, knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**knobs)


def linear(**more: Any) -> nn.Module:
    return nn.Linear(2, 2, **more)


def frozen() -> nn.Module:
    return linear().requires_grad_(False)


def mamba() -> nn.Module:
    """Return a model whose states have a fixed size, although transformers calls them a cache."""
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1))


def gemma() -> nn.Module:
    """Return a model that changes its logits before its loss."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32, "head_dim": 8}
    return Gemma2ForCausalLM(Gemma2Config(**sizes, num_attention_heads=2, num_key_value_heads=1))


CHECKS: list[tuple[Optimization, Callable[[], Any], str, str]] = [
    (ActivationOffload(), Stack, "inference", "saves no activations for backward"),
    (Checkpointing(), Stack, "inference", "Use it in training only"),
    (Checkpointing(), linear, "training", "No blocks were found"),
    (Checkpointing(skip="7"), Stack, "training", "skip names block 7; this model has 5, numbered 0 to 4"),
    (Checkpointing(implementation="library"), Whole, "training", "Whole does not support gradient checkpointing"),
    (ChunkedCrossEntropy(), gemma, "training", "final_logit_softcapping"),
    (ChunkedCrossEntropy(), Stack, "training", "No language model"),
    (ChunkedCrossEntropy(), llama, "inference", "has no loss"),
    (ChunkedFeedForward(), Stack, "training", "No feed-forward was recognised"),
    (ChunkedFeedForward(only="mlp"), Whole, "inference", "there are blocks.0.ff, blocks.1.ff"),
    (EightBitStates(least=1), Stack, "inference", "no optimizer"),
    (FlatGradients(), Stack, "inference", "Inference has no gradients"),
    (FlatGradients(), frozen, "training", "No parameter of this model is trained"),
    (FlatGradients(), lambda: linear(dtype=torch.float64), "training", "weight is torch.float64"),
    (FlatGradients(), lambda: nn.Sequential(linear(), linear(device="meta")), "training", "on cpu, meta"),
    (FlatGradients(), lambda: nn.Embedding(2, 2, sparse=True), "training", "sparse=False"),
    *((KvCache(), make, "inference", "No language model of transformers") for make in (ltx, linear, mamba)),
    (KvCache(), llama, "training", "has no KV cache"),
    (Lora(only="nothing"), llama, "training", "layers in the blocks: model.layers.0.self_attn.q_proj"),
    (OptimizerInBackward(), Stack, "inference", "no optimizer"),
    (OptimizerInBackward(), frozen, "training", "No weight of this model is trained"),
    *((kind(), llama, "inference", "no diffusers autoencoder") for kind in (VaeSlicing, VaeTiling)),
    *((kind(), autoencoder, "training", "all activations for backward") for kind in (VaeSlicing, VaeTiling)),
    (WeightOffload(), Stack, "training", "Autograd keeps the weights"),
    (WeightOffload(), linear, "inference", "No blocks were found"),
    (WeightQuantization(), llama, "training", "whole numbers take no gradient"),
]


@pytest.mark.parametrize(("change", "make", "mode", "words"), CHECKS)
def test_what_does_not_fit_the_model_is_refused(change: Any, make: Callable[[], Any], mode: str, words: str) -> None:
    made = make()
    with pytest.raises(ValueError, match=words):
        change.check(made.model if isinstance(made, Case) else made, training=mode == "training")


@pytest.mark.parametrize(
    ("change", "make", "words"),
    [
        (ActivationOffload(), stack, "already"),
        (FlatGradients(), stack, "Undo that first"),
        (Lora(), llama, "already has adapters"),
        (WeightOffload("leaf"), stack, "already"),
        (WeightQuantization(only="mlp"), llama, "already"),
    ],
)
def test_applying_twice_is_refused(change: Any, make: Callable[[], Any], words: str) -> None:
    model = make().model
    change.apply(model)
    with pytest.raises(ValueError, match=words):
        change.apply(model)


@pytest.mark.parametrize(
    ("change", "module", "words"),
    [
        (ChunkedCrossEntropy(by="liger"), "liger_kernel.transformers", "^by=liger needs libraries.*pip install liger"),
        (EightBitStates(by="bitsandbytes"), "bitsandbytes", "by=bitsandbytes needs a library.*: pip install bits"),
        (KvCache(by="hqq"), "hqq", "pip install hqq, or take by=fp8"),
        (KvCache(by="quanto"), "optimum", "pip install optimum-quanto, or take by=fp8"),
        (LayerwiseCasting(implementation="library"), "diffusers.hooks", "needs diffusers"),
        (Lora(by="peft"), "peft", "by=peft needs a library that is not installed: pip install peft"),
        (WeightOffload(implementation="library"), "diffusers.hooks", "needs diffusers"),
        (WeightQuantization(by="torchao"), "torchao.quantization", "by=torchao needs a library.*: pip install torchao"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_library_that_is_not_there_is_named_with_what_to_do_and_the_model_stays(
    monkeypatch: pytest.MonkeyPatch, change: Any, module: str, words: str
) -> None:
    for name in (module.partition(".")[0], module) if module.startswith("liger") else (module,):
        monkeypatch.setitem(sys.modules, name, None)
    model = llama().model
    before = list(model.parameters())
    training = change.needs == "training"
    for refuse in (lambda: change.check(model, training=training), lambda: change.apply(model)):
        with pytest.raises(ValueError, match=words):
            refuse()
    assert all(one is other and one.requires_grad for one, other in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("workload", "settings", "name", "words"),
    [
        ("llama", {"mode": "inference"}, "kv_cache", "Set cache=true"),
        ("llama", {}, "optimizer_in_backward", "Add one, such as --optimizer adamw"),
        ("llama", {}, "gradient_accumulation", "it is 1. Set batch=2"),
        ("flux", {"batch": "2"}, "gradient_accumulation", "training only"),
        ("vae", {"mode": "training"}, "vae_slicing", "inference only"),
        ("vae", {"mode": "training"}, "vae_tiling", "inference only"),
    ],
)
def test_a_plan_without_use_for_it_says_what_to_set(
    workload: str, settings: dict[str, str], name: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        plan_of(Request(workload, settings, ((name, {}),)))
