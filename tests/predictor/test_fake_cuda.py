"""Scripts that use "cuda", and CPU tensors next to it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Action, Category
from tests.predictor.rows import A100, allocations


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))


LARGEST = 4 * 128 * 256
WEIGHTS = 2 * LARGEST + 4 * (256 + 128)
"""Whole blocks of 512 bytes, all of them."""


def test_a_program_may_set_the_allocator_and_read_its_figures() -> None:
    with PredictedDevice(A100) as device:
        first = torch.empty(1 << 20, device="cuda")
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        second = torch.empty(1 << 23, device="cuda")
        figures = torch.cuda.memory_stats()
        assert figures["allocated_bytes.all.current"] == first.nbytes + second.nbytes
        assert figures["segment.all.current"] == 1
        actions = set(device.finish().devices[0].events.action.tolist())
    assert {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP} <= actions


def test_what_goes_to_the_host_leaves_the_device() -> None:
    model = layers()
    with PredictedDevice(A100) as device:
        model.to("cuda")
        model.to("cpu")
        assert device.allocated_bytes == 0
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
        model.to("cuda")
        assert device.allocated_bytes == WEIGHTS
        assert torch.ones(4, device="cuda").cpu().device.type == "cpu"


@pytest.mark.parametrize("pinned", [False, True])
def test_saved_tensors_on_the_host_are_on_the_device_only_for_their_backward(pinned: bool) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)))
    one = 512 * 256 * 4
    with PredictedDevice(A100) as device:
        model.cuda()
        x = torch.zeros(512, 256, device="cuda", requires_grad=True)
        before = device.allocated_bytes
        with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
            out = model(x)
        held = device.allocated_bytes - before - A100.cublas_workspace_bytes
        assert held == one
        device.reset_peak()
        out.sum().backward()
    kept = torch.zeros(0)
    with PredictedDevice(A100) as other:
        model.cuda()
        x = torch.zeros(512, 256, device="cuda", requires_grad=True)
        before = other.allocated_bytes
        kept = model(x)
        assert other.allocated_bytes - before - A100.cublas_workspace_bytes == 8 * one
        kept.sum().backward()
    assert device.peak_allocated_bytes < other.peak_allocated_bytes


@pytest.mark.parametrize("reentrant", [False, True])
def test_autocast_casts_weights_once_and_answers_in_fp32_where_cuda_does(reentrant: bool) -> None:
    model = layers()
    with PredictedDevice(A100) as device:
        model.cuda()
        x = torch.zeros(16, 128, device="cuda", requires_grad=True)
        before = device.allocated_bytes
        with torch.autocast("cuda", dtype=torch.bfloat16):
            first, second = model(x), checkpoint(model, x, use_reentrant=reentrant)
            assert (first.dtype, second.dtype) == (torch.bfloat16, torch.bfloat16)
            assert first.softmax(-1).dtype == first.exp().dtype == first.sum().dtype == torch.float32
            assert torch.cat([first, x]).dtype == torch.float32
            assert nn.functional.mse_loss(first, x).dtype == torch.float32
        cast = [row for row in allocations(device.finish()) if row.operator == "_to_copy" and row.size == LARGEST // 2]
        assert len(cast) == 2
        assert device.allocated_bytes - before > WEIGHTS // 2
        (first + second).float().sum().backward()
        assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {
            torch.float32
        }


@pytest.mark.parametrize("kind", ["foreach", "fused", "for-loop"])
def test_optimizers_take_what_their_kernels_take(kind: str) -> None:
    model = layers()
    options = {"foreach": {}, "fused": {"fused": True}, "for-loop": {"foreach": False}}[kind]
    with PredictedDevice(A100) as device:
        model.cuda()
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for _ in range(2):
            model(torch.zeros(2, 128, device="cuda")).sum().backward()
            before, start = device.allocated_bytes, len(allocations(device.finish()))
            device.reset_peak()
            optimizer.step()
            optimizer.zero_grad()
        rows = allocations(device.finish())[start:]
    temporaries = [row.size for row in rows if row.category is Category.TEMPORARY]
    beside = device.peak_allocated_bytes - before
    if kind == "foreach":
        assert (sum(temporaries), beside) == (WEIGHTS, WEIGHTS)
    elif kind == "fused":
        assert (temporaries, beside) == ([], 0)
    else:
        # The one before is let go only when the next is there.
        assert beside <= 2 * LARGEST + 1024 and sum(temporaries) >= WEIGHTS


@pytest.mark.parametrize(
    ("kind", "options", "states_of_each"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, 1),
        (torch.optim.Adagrad, {}, 1),
        (torch.optim.AdamW, {"lr": torch.tensor(0.1), "capturable": True}, 2),
    ],
)
def test_fused_steps_take_nothing_beside_their_states(kind: Any, options: dict[str, Any], states_of_each: int) -> None:
    model = layers()
    with PredictedDevice(A100) as device:
        model.cuda()
        optimizer = kind(model.parameters(), **({"lr": 0.1} | options), fused=True)
        model(torch.zeros(2, 128, device="cuda")).sum().backward()
        optimizer.step()
        before = device.allocated_bytes
        device.reset_peak()
        optimizer.step()
        assert device.peak_allocated_bytes == before
        states = [state for of in optimizer.state.values() for name, state in of.items() if name != "step"]
        assert sum(state.numel() * 4 for state in states) == states_of_each * WEIGHTS


def test_memory_follows_a_storage_that_changes_its_size() -> None:
    with PredictedDevice(A100) as device:
        x = torch.zeros(1000, device="cuda")
        x.resize_(5000)
        assert device.allocated_bytes == 20_480
        x.untyped_storage().resize_(0)
        assert device.allocated_bytes == 0
        out = torch.empty(0, device="cuda")
        torch.add(torch.ones(300, device="cuda"), 1, out=out)
        assert device.allocated_bytes == 1536


def test_views_take_nothing_and_keep_what_they_show() -> None:
    with PredictedDevice(A100) as device:
        x = torch.zeros(1024, device="cuda")
        views = x[:8].view(2, 4).t()
        assert device.allocated_bytes == 4096
        del x
        assert device.allocated_bytes == 4096
        del views
        assert device.allocated_bytes == 0
