"""The loss in pieces: the same loss and gradients, and never more than a piece of the logits."""

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.predictor.hooks import TRITON_NOT_RUN
from memviz.runner.request import Run
from optimizations.chunked_cross_entropy import ChunkedCrossEntropy, chunked_cross_entropy
from tests.optimizations.memory import Memory, predicted
from tests.optimizations.tiny import different, llama, one_step
from tests.second_process import ROOT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_function_is_cross_entropy_over_tokens_that_count(dtype, with_bias):
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 9, 16, dtype=dtype), torch.randn(40, 16, dtype=dtype)
    bias = torch.randn(40, dtype=dtype) if with_bias else None
    targets = torch.randint(40, (2, 9))
    targets[0, :4] = -100
    leaves = [each.requires_grad_() for each in (hidden, weight, bias) if each is not None]
    expected = F.cross_entropy(F.linear(hidden, weight, bias).flatten(0, 1).float(), targets.flatten())
    gradients = torch.autograd.grad(expected, leaves)
    total, count = chunked_cross_entropy(hidden, weight, targets, bias, tokens=4)
    assert int(count) == 14
    ours = torch.autograd.grad(total / count, leaves)
    near = {"rtol": 0.02, "atol": 0.02} if dtype is not torch.float32 else {"rtol": 1.3e-6, "atol": 1e-5}
    torch.testing.assert_close(total / count, expected)
    torch.testing.assert_close(ours, gradients, **near)
    assert [our.dtype for our in ours] == [dtype] * len(ours)


def test_what_needs_no_gradient_gets_none():
    hidden, weight, targets = torch.randn(6, 4), torch.randn(8, 4, requires_grad=True), torch.arange(6)
    total, _ = chunked_cross_entropy(hidden, weight, targets, tokens=2)
    total.backward()
    assert weight.grad is not None and hidden.grad is None
    with torch.no_grad():
        again, _ = chunked_cross_entropy(hidden, weight, targets, tokens=4)
    torch.testing.assert_close(again, total.detach())


def test_without_gradients_none_are_made():
    """Evaluation takes a chunk's logits and their logarithms, and no gradient of the head."""
    words, width, tokens = 32_000, 1024, 64
    model = torch.nn.Linear(width, words, bias=False, device="meta", dtype=torch.bfloat16)
    hidden, targets = (
        torch.empty(512, width, device="meta", dtype=torch.bfloat16),
        torch.empty(512, device="meta").long(),
    )
    peaks = {}
    for with_gradients in (False, True):
        with Memory() as memory, torch.set_grad_enabled(with_gradients):
            memory.note([hidden, model.weight, targets])
            chunked_cross_entropy(hidden, model.weight, targets, tokens=tokens)
        peaks[with_gradients] = memory.peak_allocated
    assert peaks[True] - peaks[False] >= 2 * words * width
    assert peaks[False] < 2 * (words * width + 512 * width) + 11 * words * tokens


def test_the_heads_gradient_in_fp32_does_not_round_with_every_chunk():
    torch.manual_seed(0)
    hidden, weight = torch.randn(8192, 32).bfloat16(), (torch.randn(300, 32) * 0.2).bfloat16()
    targets = torch.randint(0, 300, (8192,))

    def gradient(dtype: torch.dtype, **knobs: Any) -> torch.Tensor:
        leaf = weight.clone().to(dtype).requires_grad_()
        total, count = chunked_cross_entropy(hidden.to(dtype), leaf, targets, **knobs)
        (total / count).backward()
        assert leaf.grad is not None and leaf.grad.dtype is dtype
        return leaf.grad.float()

    exact = gradient(torch.float32)
    once, own, sums = (
        float((gradient(torch.bfloat16, **knobs) - exact).norm() / exact.norm())
        for knobs in ({"tokens": 8192}, {"tokens": 64}, {"tokens": 64, "accum_dtype": torch.float32})
    )
    assert sums < 1.2 * once < own / 4


@pytest.mark.slow
def test_what_fp32_sums_take_is_predicted():
    """4 bytes more per weight of the head: an fp32 sum of twice the size, and the product of one chunk."""
    words, width = 32_000, 256
    with torch.device("meta"):
        hidden = torch.empty(128, width, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(words, width, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.empty(128, dtype=torch.long)
    peaks, runs = [], []
    for accum_dtype in (None, torch.float32):
        with Memory() as memory:
            memory.note([hidden, weight, targets])
            chunked_cross_entropy(hidden, weight, targets, tokens=8, accum_dtype=accum_dtype)[0].backward()
        peaks.append(memory.peak_allocated)
        hidden.grad = weight.grad = None
        knobs = {} if accum_dtype is None else {"accum_dtype": "float32"}
        chosen = ("chunked_cross_entropy", {"tokens": "64", **knobs})
        run = predicted("llama", {"layers": "1", "sequence": "512"}, chosen).run
        runs.append(run.peak_allocated_bytes)
    assert 3.9 * words * width <= peaks[1] - peaks[0] <= 4.1 * words * width
    assert 2 * 2048 * 128_256 <= runs[1] - runs[0] <= 4 * 2048 * 128_256


def test_trainers_and_generate_see_what_the_model_takes():
    case = llama()
    case.model.eval()
    prompt, plain = torch.arange(3, 8)[None], inspect.signature(case.model.forward)
    expected = case.model.generate(prompt, max_new_tokens=4, do_sample=False)
    ChunkedCrossEntropy().apply(case.model)
    assert inspect.signature(case.model.forward) == plain
    lengths = []
    case.model.lm_head.register_forward_hook(lambda _module, _inputs, logits: lengths.append(logits.shape[1]))
    assert torch.equal(case.model.generate(prompt, max_new_tokens=4, do_sample=False), expected)
    assert lengths == [1] * 4


class Wrapper(torch.nn.Module):
    """A wrapper like those of peft, which answers for the model inside."""

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.base_model = inside

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)


def passed(model: Any) -> Any:
    tokens = torch.arange(20).reshape(2, 10)
    return model(input_ids=tokens, labels=tokens)


# torch's compiler instantiates the autograd.Function and reads .grad of all tensors, and torch warns of both.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("wrap", "before"),
    [
        pytest.param(Wrapper, False, id="wrapped"),
        pytest.param(Wrapper, True, id="wrapped later"),
        pytest.param(lambda model: torch.compile(model, backend="eager"), False, id="compiled", marks=pytest.mark.slow),
    ],
)
def test_a_model_within_wrappers_is_found_once(wrap: Any, before: bool):
    # One layer, and inputs of one shape: the compiler takes its time for each.
    case = replace(llama(num_hidden_layers=1), loss=lambda model: passed(model).loss)
    plain = one_step(case.model, case.loss)
    model = case.model if before else wrap(case.model)
    undo = ChunkedCrossEntropy(tokens=4).apply(model)
    output = passed(wrap(model) if before else model)
    assert output.logits is None
    loss = output.loss
    case.model.zero_grad()
    loss.backward()
    ours = {name: weight.grad for name, weight in case.model.named_parameters()}
    torch.testing.assert_close({"loss": loss.detach(), **ours}, plain)
    undo()
    assert different(plain, one_step(case.model, case.loss)) == []


def test_backward_twice_is_refused_and_not_wrong():
    weight = torch.randn(8, 4, requires_grad=True)
    total, _ = chunked_cross_entropy(torch.randn(6, 4), weight, torch.arange(6))
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already run on this loss"):
        total.backward()


@pytest.mark.parametrize("given", [{}, {"num_items_in_batch": 7}, {"shift_labels": True}])
def test_whatever_a_trainer_says_to_the_loss_counts(given: dict[str, Any]):
    case = llama()
    tokens = torch.arange(20).reshape(2, 10)
    labels = tokens.clone()
    labels[1, 5:] = -100
    arguments = {**given, "shift_labels": labels} if "shift_labels" in given else given
    expected = case.model(input_ids=tokens, labels=labels, **arguments)
    ChunkedCrossEntropy(tokens=4).apply(case.model)
    ours = case.model(input_ids=tokens, labels=labels, **arguments)
    torch.testing.assert_close(ours.loss, expected.loss)
    assert ours.logits is None
    assert ours.keys() == {"loss", "cache", "past_key_values"} & expected.keys()
    as_tuple = case.model(input_ids=tokens, labels=labels, return_dict=False, **arguments)
    torch.testing.assert_close(as_tuple[0], expected.loss)
    torch.testing.assert_close(case.model(input_ids=tokens).logits, expected.logits)


@pytest.mark.parametrize("change", [lambda it: it * 2, lambda it: it / 2, lambda it: it.float(), lambda it: it[:, 1:]])
def test_logits_that_are_changed_on_the_way_are_never_taken_for_the_loss(change):
    case = llama()
    inner = type(case.model.model).forward

    class Head(type(case.model)):
        def forward(self, input_ids, labels=None):
            logits = change(self.lm_head(inner(self.model, input_ids).last_hidden_state))
            return self.loss_function(logits=logits, labels=labels, vocab_size=64)

    case.model.__class__ = Head
    ChunkedCrossEntropy().apply(case.model)
    with pytest.raises(ValueError, match="needs all of them"):
        case.model(torch.arange(6)[None], labels=torch.arange(6)[None])


def test_memory_is_a_pieces_and_not_all_tokens():
    tokens, width, words, piece = 4096, 64, 32_000, 256
    with torch.device("meta"):
        hidden = torch.empty(tokens, width, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(words, width, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.empty(tokens, dtype=torch.long)
    peaks = {}
    for size in (piece, 2 * piece, tokens):
        with Memory() as memory:
            memory.note([hidden, weight, targets])
            chunked_cross_entropy(hidden, weight, targets, tokens=size)[0].backward()
        peaks[size] = memory.peak_allocated
        hidden.grad = weight.grad = None
    # At the most a piece's logits exist in bf16 and fp32 at once, and without a card's own kernel once more in fp32.
    for size in (2 * piece, tokens):
        added = peaks[size] - peaks[piece]
        assert 6 * (size - piece) * words <= added <= 10.1 * (size - piece) * words


BY_LIGER = ("chunked_cross_entropy", {"by": "liger"})
WORDS, WIDTH = 128_256, 2_048
INTERPRETED = """
from optimizations.chunked_cross_entropy import ChunkedCrossEntropy
from tests.optimizations.tiny import llama, one_step
import torch
cases = llama(), llama(tie_word_embeddings=True)
for case in cases:
    plain = one_step(case.model, case.loss)
    undo = ChunkedCrossEntropy(by="liger").apply(case.model)
    ours = one_step(case.model, case.loss)
    undo()
    assert ours.keys() == plain.keys() and not torch.equal(ours["lm_head.weight" if "lm_head.weight" in ours else
        "model.embed_tokens.weight"], torch.zeros(()))
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)
    assert torch.equal(one_step(case.model, case.loss)["loss"], plain["loss"])
print("as without it")
"""


@pytest.fixture
def library() -> Any:
    pytest.importorskip("triton", reason="triton is not installed")
    return pytest.importorskip("liger_kernel.transformers", reason="liger-kernel is not installed")


def test_on_the_processor_it_says_what_would_do(library: Any) -> None:
    case = llama()
    undo = ChunkedCrossEntropy(by="liger").apply(case.model)
    with pytest.raises(ValueError, match="Liger's kernels need a GPU. Use by=torch on a CPU"):
        case.loss(case.model)
    undo()
    case.loss(case.model).backward()


def test_losses_and_gradients_are_those_of_the_model_as_it_is(library: Any) -> None:
    """Its kernels interpreted, which Triton decides when they are imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", INTERPRETED]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "as without it\n", done.stderr


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("tokens", [1024, 3000])
def test_it_takes_both_gradients_and_the_logits_of_a_piece_to_the_byte(
    library: Any, tokens: int, trained: bool
) -> None:
    """A piece has its share of the tokens for the words a channel, rounded up to a power of two."""
    with PredictedDevice(card_named("RTX 4090")) as device:
        hidden = torch.empty(tokens, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        weight = torch.empty(WORDS, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=trained)
        targets = torch.zeros(tokens, dtype=torch.long, device="cuda")
        # The workspace of products of matrices is there before.
        hidden @ weight[:8].t()
        device.reset_peak()
        before = device.peak_requested_bytes
        loss = library.LigerFusedLinearCrossEntropyLoss(reduction="sum")(weight, hidden, targets)
        taken = device.peak_requested_bytes - before
        loss.backward()
    share = -(-tokens // -(-WORDS // WIDTH))
    piece = 1 << (share - 1).bit_length()
    gradients = 2 * WIDTH * (tokens + WORDS * trained)
    losses_and_mask = tokens * (4 + 1)
    assert taken == gradients + losses_and_mask + 2 * piece * WORDS


def test_a_run_says_what_did_not_run_and_takes_less(library: Any) -> None:
    plain, ours = (run(*chosen) for chosen in ((), (BY_LIGER,)))
    assert TRITON_NOT_RUN in ours.notes and TRITON_NOT_RUN not in plain.notes
    # Its logits as bf16, as fp32 and as the gradient are not there.
    assert plain.peak_allocated_bytes - ours.peak_allocated_bytes > 1024 * WORDS * 4


def run(*chosen: Any) -> Run:
    return predicted("llama", {"layers": "1", "batch": "1", "sequence": "1024"}, *chosen, card="RTX 4090").run
