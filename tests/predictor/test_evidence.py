"""Rules that no recording proves, and memory that is not predicted."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from memviz.predictor.accuracy import unproven_sentence
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.predictor.rules import RULES, Standing, Unproven
from memviz.runner.execute import predict
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from memviz.units import bytes_text
from tests.predictor.rows import A100
from tests.second_process import predict as predict_in

MiB = 1 << 20
NAMED = [(rule, operator) for rule in RULES for operator in rule.operators]


def found(device: PredictedDevice) -> dict[str, Unproven]:
    return {one.rule: one for one in device.unproven()}


def test_every_operator_named_is_one_of_torch_and_has_one_rule() -> None:
    names = [operator for _, operator in NAMED]
    assert len(set(names)) == len(names)
    spaces = (torch.ops.aten, torch.ops.c10d)
    assert [name for _, name in NAMED if not any(hasattr(space, name) for space in spaces)] == []


def attended(x: torch.Tensor) -> torch.Tensor:
    """Attention whose sums of exponents, 4 bytes a row, are kept for the backward."""
    return functional.scaled_dot_product_attention(x, x, x)


def test_sums_of_attention_are_counted_while_they_live(device: PredictedDevice) -> None:
    x = torch.zeros(1, 1, MiB // 4, 8, device="cuda", requires_grad=True)
    attended(attended(x)).sum().backward()
    sums = found(device)["memory-efficient attention"]
    # The highest moment is in the backward of the second, before the first's.
    assert (sums.standing, sums.bytes, sums.bytes_at_peak, sums.bytes_at_most) == ("read", 2 * MiB, 2 * MiB, None)


def test_what_was_not_there_at_the_highest_moment_has_no_part_of_it(device: PredictedDevice) -> None:
    attended(torch.zeros(1, 1, MiB // 4, 8, device="cuda", requires_grad=True))
    large = torch.zeros(64 * MiB, device="cuda")
    sums = found(device)["memory-efficient attention"]
    assert (sums.bytes, sums.bytes_at_peak) == (MiB, 0)
    del large


def test_what_a_recording_proves_is_not_said_but_on_cards_that_it_does_not_speak_for() -> None:
    def rules(card: str) -> set[str]:
        with PredictedDevice(card_named(card)) as device:
            table = torch.zeros(512, 16, device="cuda")
            rows = torch.zeros(4096, dtype=torch.int64, device="cuda")
            table.index_put_((rows,), torch.zeros(4096, 16, device="cuda"), accumulate=True)
            (table @ table.t()).sum()
            return set(found(device))

    assert rules("RTX 4090") == set()
    assert rules("H100") == {"index_put with sorted indices", "cuBLAS's workspaces"}


T4 = card_named("T4")
"""A card for which no workspace of a convolution is counted."""
CONVOLUTIONS = "cuDNN convolution workspaces"


def convolution(layer: nn.Module, shape: tuple[int, ...], *, wants_gradient: bool) -> Unproven:
    with PredictedDevice(T4) as device:
        image = torch.zeros(shape, device="cuda", requires_grad=wants_gradient)
        layer.cuda()(image).sum().backward()
        return found(device)[CONVOLUTIONS]


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_convolution_has_a_likely_and_an_upper_figure(channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    image, result, weight = 4 * 8 * 32 * 32 * 4, 4 * 16 * 32 * 32 * 4, 16 * 8 * 9 * 4
    for card, likely in ((T4, 0 if channels_last else image + result + weight), (A100, 0)):
        with PredictedDevice(card) as device, torch.no_grad():
            layer = nn.Conv2d(8, 16, 3, padding=1, bias=False).cuda().to(memory_format=layout)
            layer(torch.zeros(4, 8, 32, 32, device="cuda").to(memory_format=layout))
            one = found(device)[CONVOLUTIONS]
        assert (one.standing, one.bytes, one.bytes_at_peak) == ("not predicted", likely, 0)
        # An image of as many channels as the result has, for each of nine places of the window.
        is_counted = card is A100 and not channels_last
        assert one.bytes_at_most == (2 * 108 * 65_536 if is_counted else likely + 9 * result)


def test_the_backward_of_a_convolution_is_larger() -> None:
    one = convolution(nn.Conv2d(8, 16, 3, padding=1, bias=False), (4, 8, 32, 32), wants_gradient=True)
    image, result, weight = 4 * 8 * 32 * 32 * 4, 4 * 16 * 32 * 32 * 4, 16 * 8 * 9 * 4
    # Gradients of the result, of the image and of the weights are copied too, once in each direction.
    assert one.bytes == 2 * image + result + 2 * weight


PICTURE = 8 * 3 * 96 * 96 * 4


@pytest.mark.parametrize(
    ("layer", "shape", "wants_gradient", "unfolded"),
    [
        # Patches are unfolded once and not for every pixel, unless they overlap.
        (nn.Conv2d(3, 384, 16, 16, bias=False), (8, 3, 96, 96), False, PICTURE),
        (nn.Conv2d(3, 768, 16, 16), (8, 3, 96, 96), True, PICTURE),
        (nn.Conv1d(3, 768, 4, 4), (8, 3, 96), True, PICTURE // 96),
        (nn.Conv2d(3, 64, 2, 3), (8, 3, 96, 96), True, 8 * 3 * 32 * 32 * 4 * 4),
        # Backward, the finer one is the gradient that comes in.
        (nn.ConvTranspose2d(256, 3, 16, 16, bias=False), (8, 256, 6, 6), True, PICTURE),
        # With a stride the gradient of the image is made of windows of the results.
        (nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), (4, 8, 32, 32), True, 9 * 4 * 16 * 16 * 16 * 4),
    ],
)
def test_an_image_is_unfolded_at_most_once_for_each_place_of_a_window(
    layer: nn.Module, shape: tuple[int, ...], wants_gradient: bool, unfolded: int
) -> None:
    one = convolution(layer, shape, wants_gradient=wants_gradient)
    assert one.bytes is not None and one.bytes_at_most == one.bytes + unfolded


@pytest.mark.parametrize(
    ("layer", "steps", "batch", "reserve"),
    [
        (nn.GRU(123, 320, 4), 500, 50, 864_000_000),
        (nn.LSTM(123, 320, 4), 500, 50, 736_000_000),
        (nn.GRU(672, 800, bidirectional=True), 326, 64, 801_177_600),
    ],
)
def test_reserves_of_recurrent_layers_are_those_that_cudnn_reported(
    layer: nn.Module, steps: int, batch: int, reserve: int, device: PredictedDevice
) -> None:
    layer = deepcopy(layer).cuda()
    x = torch.zeros(steps, batch, layer.input_size, device="cuda")
    before = torch.cuda.memory_allocated()
    out, states = layer(x)
    kept = torch.cuda.memory_allocated() - before
    results = sum(tensor.nbytes for tensor in (out, *(states if isinstance(states, tuple) else (states,))))
    # Blocks may be up to 1 MiB larger than what they are asked for.
    assert 0 <= kept - results - reserve < 4 * MiB
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        layer.eval()(x)
    assert torch.cuda.max_memory_allocated() - before - kept < 2 * reserve
    one = found(device)["cuDNN's recurrent layers"]
    assert one.standing == Standing.ESTIMATED and one.bytes is not None and one.bytes >= reserve


def test_in_words_the_large_ones_are_named_with_their_bytes() -> None:
    small = Unproven("small", Standing.READ, "", 1000, 0, None)
    large = Unproven("masks", Standing.READ, "", 3 * MiB, MiB, None)
    unknown = Unproven("layers", Standing.MISSING, "", None, 0, None)
    missing = Unproven("convolutions", Standing.MISSING, "", 2 * MiB, 0, 5 * MiB)
    assert unproven_sentence([small]) == ""
    assert unproven_sentence([small, large]) == (
        f"Not proved by any recording: masks (read: {bytes_text(3 * MiB)}, {bytes_text(MiB)} of the peak)."
    )
    assert "layers (not predicted); convolutions (not predicted: estimated" in unproven_sentence([unknown, missing])


def test_a_run_notes_them() -> None:
    plan = plan_of(Request("feed_forward", {"dim": "1024", "layers": "2"}, on="predict", card="H100"))
    run = predict(plan, lambda text: None).run
    assert [note for note in run.notes if note.startswith("Not proved by any recording: ")]


def test_programs_and_people_are_told(tmp_path: Path) -> None:
    script = """
import torch
torch.nn.functional.mse_loss(torch.zeros(2 << 20, device="cuda"), torch.zeros(2 << 20, device="cuda"))
"""
    (tmp_path / "train.py").write_text(script)
    done = predict_in("--json", "train.py", folder=tmp_path)
    (told,) = json.loads(done.stdout.splitlines()[-1])["unproven"]
    assert (told["rule"], told["standing"]) == ("buffers of other reductions", "read")
    assert told["bytes"] >= 8 * MiB
    assert "- Not proved by any recording: buffers of other reductions (read: 8.0" in done.stderr
