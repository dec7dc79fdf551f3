"""Device queries of `torch.cuda` and `torch.accelerator`, and their removal afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100, H100

CUDA_0 = torch.device("cuda", 0)
SAID: dict[str, tuple[Callable[[], Any], Any]] = {
    "is_available": (lambda: torch.cuda.is_available(), True),
    "device_count": (lambda: torch.cuda.device_count(), 1),
    "current_device": (lambda: torch.cuda.current_device(), 0),
    "get_device_name": (lambda: torch.cuda.get_device_name("cuda:0"), "NVIDIA A100 40GB"),
    "get_device_capability": (lambda: torch.cuda.get_device_capability(), (8, 0)),
    "is_bf16_supported": (lambda: torch.cuda.is_bf16_supported(), True),
    "is_tf32_supported": (lambda: torch.cuda.is_tf32_supported(), True),
    "peers": (lambda: torch.cuda.can_device_access_peer(0, 0), False),
    "sync debug": (lambda: (torch.cuda.set_sync_debug_mode("warn"), torch.cuda.get_sync_debug_mode()), (None, 1)),
    "ranges": (
        lambda: (torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.mark("b")),
        (0, 0, 0),
    ),
    "profiler": (lambda: (torch.cuda.profiler.start(), torch.cuda.profiler.stop()), (None, None)),
    "ipc_collect": (lambda: torch.cuda.ipc_collect(), None),
    "built": (lambda: torch.backends.cuda.is_built(), True),
    "cudnn": (lambda: (torch.backends.cudnn.is_available(), type(torch.backends.cudnn.version())), (True, int)),
    "cufft": (lambda: torch.backends.cuda.cufft_plan_cache.size, 0),
    "module": (lambda: torch.get_device_module() is torch.get_device_module("cuda") is torch.cuda, True),
    "accelerator": (lambda: torch.accelerator.current_accelerator(), torch.device("cuda")),
    "accelerators": (lambda: (torch.accelerator.is_available(), torch.accelerator.device_count()), (True, 1)),
    "index": (
        lambda: (torch.accelerator.set_device_index("cuda:0"), torch.accelerator.current_device_index()),
        (None, 0),
    ),
    "device": (lambda: torch.device(type="cuda", index=0), CUDA_0),
    "a device as a context": (lambda: torch.cuda.device(CUDA_0).__enter__(), None),
    "device_of": (lambda: torch.cuda.device_of(torch.zeros(1, device="cuda")).__enter__(), None),
    "is_meta": (lambda: torch.zeros(1, device="cuda").is_meta, False),
    "handles": (lambda: torch.cuda.current_blas_handle() > 0, True),
    "version": (lambda: torch.version.cuda is not None and torch.version.cuda[:3] in ("12.", "13."), True),
}


@pytest.mark.parametrize("what", SAID)
def test_a_machine_with_the_card_answers(what: str) -> None:
    ask, answer = SAID[what]
    with PredictedDevice(A100):
        assert ask() == answer


def test_properties_are_the_cards() -> None:
    with PredictedDevice(H100):
        known = torch.cuda.get_device_properties(0)
        assert (known.name, known.major, known.minor, known.multi_processor_count) == ("NVIDIA H100 80GB", 9, 0, 132)
        assert (known.total_memory, known.warp_size) == (H100.memory_bytes, 32)
        assert (known.max_threads_per_multi_processor, known.regs_per_multiprocessor) == (2048, 65_536)
        assert (known.shared_memory_per_block, known.shared_memory_per_multiprocessor) == (49_152, 233_472)
        assert known.L2_cache_size == 50 << 20 and not hasattr(known, "gcnArchName")
        assert "NVIDIA H100 80GB" in repr(known) and str(known.uuid) in repr(known)
        with pytest.raises(AttributeError):
            known.name = "another"


def test_cuda_begins_when_it_is_first_used_and_ends_with_the_device() -> None:
    torch.cuda.manual_seed_all(3)
    before = {
        name: vars(torch.cuda)[name] for name in ("Stream", "Event", "_initialized", "default_generators", "_cudart")
    }
    words, release, there = set(vars(torch._C)), torch.version.cuda, torch.cuda.is_available()
    with PredictedDevice(A100):
        assert not torch.cuda.is_initialized() and torch.cuda.memory_allocated() == 0
        held = torch.zeros(1, device="cuda")
        assert torch.cuda.is_initialized() and torch.cuda.memory_allocated() == 512
        # Set before there was a device, as programs do.
        assert torch.cuda.initial_seed() == 3
    assert not held.is_cuda and (torch.version.cuda, torch.cuda.is_available()) == (release, there)
    assert {name: vars(torch.cuda)[name] for name in before} == before
    assert set(vars(torch._C)) == words


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_program_may_hide_the_card_from_itself(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with PredictedDevice(A100):
        assert (torch.cuda.is_available(), torch.cuda.device_count()) == (False, 0)
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            torch.zeros(1, device="cuda")


@pytest.mark.parametrize("chosen", ["0", "3", "0,1,2,3", "GPU-3c689e86"])
def test_whichever_card_it_chooses_is_the_one(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    with PredictedDevice(A100):
        assert torch.cuda.device_count() == 1 and torch.zeros(1, device="cuda:0").is_cuda


def test_old_types_are_of_the_card() -> None:
    with PredictedDevice(A100) as device:
        made = torch.cuda.FloatTensor(256, 2)
        assert isinstance(made, torch.cuda.FloatTensor) and not isinstance(torch.zeros(1), torch.cuda.FloatTensor)
        assert device.allocated_bytes == 2048
        halved = torch.zeros(2).type(torch.cuda.HalfTensor)
        assert halved.type() == torch.zeros(2).type("torch.cuda.HalfTensor").type() == "torch.cuda.HalfTensor"
        assert made.type("torch.FloatTensor").device.type == "cpu"
        assert torch.cuda.LongTensor([1, 2]).dtype == torch.int64
        assert made.new_zeros(3, requires_grad=True).is_cuda and made.new(4, 5).shape == (4, 5)
        edges = torch.cuda.sparse.FloatTensor(torch.tensor([[0, 2]]).cuda(), torch.ones(2).cuda(), torch.Size([4]))
        assert isinstance(edges, torch.cuda.sparse.FloatTensor) and not isinstance(edges, torch.cuda.FloatTensor)
        assert edges.to_dense().shape == (4,)
        del made, halved


def made_here() -> Tensor:
    return torch.zeros(128) + torch.ones(128)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize(
    "choose",
    [
        lambda: torch.set_default_device("cuda"),
        lambda: torch.set_default_device(torch.device("cuda", 0)),
        lambda: torch.set_default_tensor_type(torch.cuda.FloatTensor),
        lambda: torch.set_default_tensor_type("torch.cuda.DoubleTensor"),
    ],
)
def test_a_default_device_is_followed_and_taken_back(choose: Callable[[], None]) -> None:
    with PredictedDevice(A100) as device:
        choose()
        assert made_here().device == torch.get_default_device() == CUDA_0
        assert device.peak_requested_bytes == 3 * 128 * made_here().element_size()
        torch.set_default_device("cpu")
        assert not made_here().is_cuda
        choose()
    assert made_here().device.type == torch.get_default_device().type == "cpu"
    assert made_here().dtype == torch.float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_profile_of_the_card_is_one_of_the_host() -> None:
    from torch.profiler import ProfilerActivity, profile

    with PredictedDevice(A100):
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, profile_memory=True, record_shapes=True, with_stack=True) as found:
            x = torch.ones(8, 64, device="cuda")
            (x @ x.T).sum()
        assert "aten::mm" in {row.key for row in found.key_averages()}
        assert "Self CPU time total" in found.key_averages().table(sort_by="cuda_time_total", row_limit=3)
        with profile(activities=[ProfilerActivity.CUDA]), torch.autograd.profiler.emit_nvtx():
            x + 1
