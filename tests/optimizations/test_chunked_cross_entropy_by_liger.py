"""The loss in pieces by Liger, where that is installed: its own Python asks for memory, its kernels run on a card."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from memviz.runner.plan import plan_of
from memviz.runner.predict.cards import card_named
from memviz.runner.predict.hooks import TRITON_NOT_RUN
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from memviz.runner.run import Run
from optimizations.chunked_cross_entropy import ChunkedCrossEntropy
from tests.optimizations.tiny import llama
from tests.second_process import ROOT

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


def test_where_it_is_not_installed_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.delitem(sys.modules, "liger_kernel.transformers", raising=False)
    with pytest.raises(ValueError, match="^by=liger needs libraries that are not installed.*pip install liger-kernel"):
        ChunkedCrossEntropy(by="liger").check(llama().model, training=True)


def test_what_it_decides_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="Liger decides by itself: leave tokens out, or take by=torch"):
        ChunkedCrossEntropy(tokens=64, by="liger")
    with pytest.raises(ValueError, match="by is 'apple'; it is one of torch, liger"):
        ChunkedCrossEntropy(by="apple")


def test_on_the_processor_it_says_what_would_do(library: Any) -> None:
    case = llama()
    undo = ChunkedCrossEntropy(by="liger").apply(case.model)
    with pytest.raises(ValueError, match="Liger's kernels run on a GPU alone: on the processor leave by=torch"):
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
    """Of a piece that has as many tokens as there are to a word in each channel, rounded up to a power of two."""
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
    settings = {"layers": "1", "batch": "1", "sequence": "1024"}
    request = Request("llama", settings, chosen, card="RTX 4090", numerics=False)
    return predict(plan_of(request), lambda _: None).run
