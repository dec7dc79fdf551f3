"""Predicted allocations compared to those of the same step on real tensors, as torch's profiler counts them."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from memviz.predictor.device import PredictedDevice
from tests.predictor.models import Language, Picture, train
from tests.predictor.rows import A100, allocations

_SCALAR = 16
"""Bytes: on a CPU the loss and wrapped numbers have memory of the same allocator."""


def real(build: Callable[[], nn.Module], inputs: Tensor, targets: Tensor) -> list[tuple[tuple[str, ...], int]]:
    """Return operators (outermost first) and bytes of each allocation in the second step."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    train(model, inputs, targets, optimizer)
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiler:
        train(model, inputs, targets, optimizer)
    events = profiler.profiler.kineto_results.events()
    spans = [(event.start_ns(), event.end_ns(), event.name()) for event in events if event.name().startswith("aten::")]
    taken = [
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]" and event.nbytes() > 0
    ]
    return [(tuple(name[6:] for begin, end, name in spans if begin <= at <= end), size) for at, size in taken]


def predicted(build: Callable[[], nn.Module], inputs: Tensor, targets: Tensor) -> list[tuple[str, int]]:
    with torch.device("meta"):
        model = build()
    with PredictedDevice(A100) as device:
        device.place(model)
        there = inputs.to(device.torch_device), targets.to(device.torch_device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        train(model, *there, optimizer)
        before = len(allocations(device.finish()))
        train(model, *there, optimizer)
        return [(row.operator, row.size) for row in allocations(device.finish())[before:]]


def test_a_language_model_takes_the_same_bytes_in_each_step() -> None:
    words = torch.randint(0, 503, (2, 32))
    # The CPU's kernel has a buffer of its own there.
    own = ("native_layer_norm_backward", "resize_")
    # The card's one multiplies into a buffer first.
    softmax = "_softmax_backward_data"
    truth = Counter(
        size
        for around, size in real(Language, words, words)
        if around[-2:] != own and softmax not in around and size > _SCALAR
    )
    ours = Counter(size for name, size in predicted(Language, words, words) if name != softmax and size > _SCALAR)
    assert ours == truth
    assert sum(ours.values()) > 100


def test_a_model_of_pictures_takes_the_same_bytes_where_kernels_have_no_buffers_of_their_own() -> None:
    pictures, kinds = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    buffered = ("convolution", "batch_norm", "group_norm_backward")
    truth = Counter(
        size
        for around, size in real(Picture, pictures, kinds)
        if size > _SCALAR and not any(part in name for name in around for part in buffered)
    )
    ours = Counter(
        size
        for operator, size in predicted(Picture, pictures, kinds)
        if size > _SCALAR and not any(part in operator for part in buffered)
    )
    assert ours == truth
    assert sum(ours.values()) > 15


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 4, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_linear_layer_takes_the_same_bytes_however_its_input_lies(shape: tuple[int, ...], turned: bool) -> None:
    def build() -> nn.Module:
        return nn.Linear(8, 8)

    def run(model: nn.Module, device: torch.device) -> None:
        x = torch.zeros(shape, device=device)
        model(x.transpose(0, 1) if turned else x).sum().backward()

    model = build()
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiler:
        run(model, torch.device("cpu"))
    events = profiler.profiler.kineto_results.events()
    truth = Counter(event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > _SCALAR)
    with torch.device("meta"):
        model = build()
    with PredictedDevice(A100) as device:
        device.place(model)
        before = len(allocations(device.finish()))
        run(model, device.torch_device)
        ours = Counter(row.size for row in allocations(device.finish())[before:] if row.category.name != "WORKSPACE")
    assert Counter({size: count for size, count in ours.items() if size > _SCALAR}) == truth
