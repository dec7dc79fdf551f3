"""Out of memory on the predicted GPU: torch's error, its observers, and the state after it."""

import pytest
import torch
from torch import Tensor

from memviz.allocator.settings import parse_settings
from memviz.predictor.device import PredictedDevice
from memviz.predictor.estimate import estimate_of
from memviz.trace.model import Action
from tests.predictor.rows import A100

GiB, MiB = 1 << 30, 1 << 20
USABLE = A100.memory_bytes - 1792 * MiB


def gib(count: int) -> Tensor:
    return torch.empty(count * GiB, dtype=torch.uint8, device="cuda")


def test_the_error_is_torchs_with_its_figures() -> None:
    with PredictedDevice(A100, limited=True) as device:
        held = gib(30)
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            gib(10)
        text = str(caught.value)
        assert isinstance(caught.value, RuntimeError) and type(caught.value) is torch.OutOfMemoryError
        assert text.startswith(
            "CUDA out of memory. Tried to allocate 10.00 GiB. GPU 0 has a total capacity of 39.39 GiB"
        )
        assert "Of the allocated memory 30.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch" in text
        assert f"of which {(USABLE - 30 * GiB) / GiB:.2f} GiB is free" in text
        (failure,) = device.out_of_memory
        assert (failure.requested_bytes, failure.allocated_bytes) == (10 * GiB, 30 * GiB)
        assert "test_out_of_memory.py, line" in failure.where and "gib" not in failure.where.partition("`")[0]
        events = device.finish().devices[0].events
        # The address column holds the free bytes that the driver reported.
        assert (events.action[failure.event], events.size[failure.event]) == (Action.OOM, 10 * GiB)
        assert events.address[failure.event] == USABLE - 30 * GiB
        assert torch.cuda.memory_stats()["num_ooms"] == 1 and device.peak_allocated_bytes == 30 * GiB
        del held


def test_without_a_limit_memory_has_no_end() -> None:
    with PredictedDevice(A100) as device:
        gib(100)
        assert device.peak_reserved_bytes == 100 * GiB and device.out_of_memory == ()


def test_beyond_the_card_a_program_goes_on_and_its_need_is_known() -> None:
    with PredictedDevice(A100, limited=True, goes_beyond_card=True) as device:
        held = [gib(30), gib(20), gib(15)]
        assert len(held) == 3 and device.allocated_bytes == 65 * GiB
        (failure,) = device.out_of_memory
        trace = device.finish()
        events = trace.devices[0].events
        assert (events.action[failure.event], events.size[failure.event]) == (Action.OOM, 20 * GiB)
        assert torch.cuda.mem_get_info()[0] == 0
        estimate = estimate_of(device, trace)
    assert estimate.needs == (65 * GiB, 65 * GiB - estimate.fit().usable_bytes)
    assert estimate.fit_word() == "no" and not estimate.fits()
    with PredictedDevice(A100, limited=True, goes_beyond_card=True) as device:
        torch.cuda.set_per_process_memory_fraction(0.5)
        gib(30)
        assert len(device.out_of_memory) == 1
        assert estimate_of(device, device.finish()).needs == (30 * GiB, 0)


def test_nothing_of_the_failed_operator_is_left_when_the_program_catches_it() -> None:
    with PredictedDevice(A100, limited=True) as device:
        held = torch.empty(4 * GiB, dtype=torch.float32, device="cuda")
        assert device.allocated_bytes == 16 * GiB
        left = None
        try:
            # The sum fits and is freed; only the expression refers to it.
            (held + 1) * 2
        except torch.OutOfMemoryError as error:
            left = device.allocated_bytes
            assert error.__context__ is None
        assert left == device.allocated_bytes == 16 * GiB
        try:
            # Two results, of which the first fits.
            torch.max(held.view(4, -1), 1), torch.sort(held)
        except torch.OutOfMemoryError:
            assert device.allocated_bytes == 16 * GiB
        del held
        assert device.allocated_bytes == 0
        assert [action for action in device.finish().devices[0].events.action.tolist() if action == Action.OOM]


def test_what_functions_of_the_program_hold_is_held_while_its_error_is() -> None:
    def step() -> Tensor:
        kept = gib(20)
        return torch.cat([kept, kept])

    with PredictedDevice(A100, limited=True) as device:
        try:
            step()
        except torch.OutOfMemoryError:
            # Python's traceback holds the function's variables, on a card as here.
            assert device.allocated_bytes == 20 * GiB
        assert device.allocated_bytes == 0


def test_a_resize_that_fails_leaves_what_was_there() -> None:
    with PredictedDevice(A100, limited=True) as device:
        x = torch.zeros(1000, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            x.resize_(20 * GiB)
        assert device.allocated_bytes == 4096
        del x
        assert device.allocated_bytes == 0


def test_backward_may_fail_too() -> None:
    with PredictedDevice(A100, limited=True) as device:
        x = torch.zeros(4 * GiB, device="cuda", requires_grad=True)
        # exp keeps its result: 32 GiB with the input, and the gradient is as much again.
        loss = x.exp().sum()
        with pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        assert x.grad is None
        del loss
        assert device.allocated_bytes == 16 * GiB


def test_observers_are_told_before() -> None:
    seen = []
    with PredictedDevice(A100, limited=True):
        torch._C._cuda_attach_out_of_memory_observer(lambda *figures: seen.append(figures))  # type: ignore[attr-defined]
        with pytest.raises(torch.OutOfMemoryError):
            gib(38)
    assert seen == [(0, 38 * GiB, A100.memory_bytes, USABLE)]


def test_a_share_of_the_card_is_a_limit_even_where_there_is_none() -> None:
    with PredictedDevice(A100) as device:
        torch.cuda.set_per_process_memory_fraction(0.25)
        assert torch.cuda.memory.get_per_process_memory_fraction() == 0.25
        held = gib(9)
        with pytest.raises(torch.OutOfMemoryError, match=r"9\.85 GiB allowed"):
            gib(1)
        torch.cuda.set_per_process_memory_fraction(1.0)
        gib(100)
        assert device.allocated_bytes == 9 * GiB
        del held


def test_cached_memory_is_given_back_before_there_is_none() -> None:
    with PredictedDevice(A100, limited=True, settings=parse_settings("expandable_segments:False")) as device:
        gib(20)
        assert device.reserved_bytes == 20 * GiB
        gib(30)
        assert device.reserved_bytes == device.peak_reserved_bytes == 30 * GiB
        assert device.out_of_memory == () and torch.cuda.memory_stats()["num_alloc_retries"] == 1
