"""Attention backends, identified by the tensors saved for backward, and refusals of unsupported inputs."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from optimizations.attention_backend import AttentionBackend
from tests.optimizations.tiny import different, llama, ltx, one_step

TOKENS = 48


class Attention(nn.Module):
    """Self-attention with some names that libraries give their sizes."""

    def __init__(self, heads: int = 2, head_dim: int = 16) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.inputs = nn.Linear(heads * head_dim, 3 * heads * head_dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inputs(x).unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


def switches() -> tuple[object, ...]:
    cuda = torch.backends.cuda
    enabled = (cuda.math_sdp_enabled, cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.cudnn_sdp_enabled)
    return *(each() for each in enabled), torch._C._get_sdp_priority_order()


@pytest.fixture(autouse=True)
def switches_stay():
    before = switches()
    yield
    assert switches() == before


def scores_kept(model: nn.Module, x: Tensor) -> int:
    """Count tensors saved for backward that are as large as the scores: tokens x tokens for each head."""
    sizes = []
    with saved_tensors_hooks(lambda each: sizes.append(tuple(each.shape[-2:])) or each, lambda each: each):
        model(x)
    return sizes.count((x.shape[1], x.shape[1]))


@pytest.mark.parametrize(
    ("backend", "kept"), [("math", True), ("flash", False), ("efficient", False), ("cudnn", False)]
)
def test_only_math_keeps_the_table_of_scores(backend, kept):
    model, x = Attention(), torch.randn(1, TOKENS, 32)
    undo = AttentionBackend(backend).apply(model)
    assert (scores_kept(model, x) > 0) == kept
    undo()
    assert scores_kept(model, x) == 0


def enabled() -> list[str]:
    return [name for name, on in zip(("math", "flash", "efficient", "cudnn"), switches()[:4], strict=True) if on]


@pytest.mark.parametrize("backend", ["math", "flash", "efficient", "cudnn"])
def test_away_from_a_cpu_nothing_stands_in(backend):
    undo = AttentionBackend(backend).apply(Attention().to("meta"))
    assert enabled() == [backend]
    undo()


def test_unless_it_may_and_then_the_chosen_comes_first():
    undo = AttentionBackend("cudnn", strict=False).apply(Attention().to("meta"))
    first = [SDPBackend(each) for each in torch._C._get_sdp_priority_order()[:3]]
    assert enabled() == ["math", "efficient", "cudnn"]
    assert first == [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    undo()


def test_a_model_that_moves_takes_the_choice_along():
    model = Attention()
    undo = AttentionBackend("efficient").apply(model)
    on_cpu = enabled()
    model.to("meta")(torch.empty(1, TOKENS, 32, device="meta"))
    assert (on_cpu, enabled()) == (["math", "flash"], ["efficient"])
    undo()


def test_one_inside_the_other_is_undone_from_within():
    model = Attention().to("meta")
    outer = AttentionBackend("flash").apply(model)
    inner = AttentionBackend("math").apply(model)
    inner()
    assert enabled() == ["flash"]
    outer()


# Attention has to be PyTorch's.


@pytest.mark.slow
def test_eager_attention_of_transformers_becomes_pytorchs_and_goes_back():
    case = llama(attn_implementation="eager")
    eager = one_step(case.model, case.loss)
    undo = AttentionBackend("flash").apply(case.model)
    assert case.model.config._attn_implementation == "sdpa"
    assert different(eager, one_step(case.model, case.loss)) != []
    undo()
    assert case.model.config._attn_implementation == "eager"
    assert different(eager, one_step(case.model, case.loss)) == []


@pytest.mark.slow
def test_a_backend_of_diffusers_own_is_refused():
    model, other = ltx().model, ltx().model
    model.set_attention_backend("_native_math")
    try:
        # diffusers gives it to every model of the process that has none of its own.
        words = r'backend _native_math of diffusers.*set_attention_backend\("native"\)'
        for each in (model, other):
            with pytest.raises(ValueError, match=words):
                AttentionBackend().apply(each)
    finally:
        model.set_attention_backend("native")
    for each in (model, other):
        AttentionBackend().apply(each)()


def test_a_processor_that_multiplies_by_itself_is_refused():
    from diffusers.models.attention_processor import Attention as DiffusersAttention
    from diffusers.models.attention_processor import AttnProcessor

    with pytest.raises(ValueError, match="computes attention by itself with AttnProcessor"):
        AttentionBackend().check(nn.Sequential(DiffusersAttention(16, processor=AttnProcessor())), training=False)
    AttentionBackend("math").check(nn.Sequential(DiffusersAttention(16)), training=False)


def test_a_model_of_transformers_without_pytorchs_attention_is_refused():
    model = llama(attn_implementation="eager").model
    type(model)._supports_sdpa, before = False, type(model)._supports_sdpa
    try:
        with pytest.raises(ValueError, match="LlamaForCausalLM computes attention by itself"):
            AttentionBackend().check(model, training=True)
    finally:
        type(model)._supports_sdpa = before


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(4), nn.Conv1d(4, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.line(each) for each in x])


def mixed(x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x, x)


class Hidden(nn.Module):
    """A forward that does not show which tokens are mixed."""

    def forward(self, x: Tensor) -> Tensor:
        return self._twice(x)

    def _twice(self, x: Tensor) -> Tensor:
        return sum(mixed(x) for _ in range(2))


def with_forward(module: nn.Module, forward: object) -> nn.Module:
    module.forward = forward
    return module


def test_a_model_without_attention_is_refused():
    for refuse in (lambda each: AttentionBackend("math").check(each, training=False), AttentionBackend("math").apply):
        with pytest.raises(ValueError, match="computes no attention, so attention_backend has no effect"):
            refuse(Plain())


@pytest.mark.parametrize(
    "model",
    [
        Attention(),
        Hidden(),
        nn.MultiheadAttention(8, 2),
        nn.Transformer(8, 2, 1, 1, batch_first=True),
        nn.Sequential(nn.Linear(2, 2), Hidden()),
        with_forward(Plain(), lambda x, function=mixed: mixed(x)),
        with_forward(Plain(), Hidden()),
        with_forward(Plain(), torch.relu),
    ],
    ids=["by name", "by a function", "torch's", "in layers", "beside others", "lambda", "a module", "without code"],
)
def test_attention_is_found_wherever_a_forward_gets_it_from(model):
    AttentionBackend("math").check(model, training=False)


# What a kernel cannot do.


def in_dtype(dtype: torch.dtype, head_dim: int = 16) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(Attention(2, head_dim)).to(dtype)


@pytest.mark.parametrize(
    ("backend", "model", "words"),
    [
        ("flash", in_dtype(torch.float32), "computes in float16, bfloat16, but this model is in float32"),
        ("cudnn", in_dtype(torch.float32), "this model is in float32"),
        ("efficient", in_dtype(torch.float64), "computes in float16, bfloat16, float32, but this model is in float64"),
        ("flash", in_dtype(torch.bfloat16, 288), "0 has heads of 288 channels; the flash kernel supports at most 256"),
        ("efficient", in_dtype(torch.bfloat16, 12), "supports a multiple of 8 in this dtype"),
        ("cudnn", in_dtype(torch.float16, 12), "supports a multiple of 8 in this dtype"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused_with_the_reason(backend, model, words):
    with pytest.raises(ValueError, match=words):
        AttentionBackend(backend).check(model, training=True)
    AttentionBackend(backend, strict=False).check(model, training=True)
    AttentionBackend("math").check(model, training=True)


@pytest.mark.parametrize(
    ("backend", "model"),
    [
        ("flash", in_dtype(torch.bfloat16, 12)),
        ("efficient", in_dtype(torch.float32, 12)),
        ("efficient", in_dtype(torch.bfloat16, 288)),
        ("cudnn", in_dtype(torch.float16)),
    ],
)
def test_what_the_kernel_can_do_is_not_refused(backend, model):
    AttentionBackend(backend).check(model, training=True)


def test_grouped_queries_are_refused_for_the_efficient_kernel():
    model = llama().model.to(torch.bfloat16)
    with pytest.raises(ValueError, match="fewer key/value heads than query heads"):
        AttentionBackend("efficient").check(model, training=True)
    AttentionBackend("flash").check(model, training=True)
