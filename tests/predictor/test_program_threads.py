"""Threads and worker processes of the program see the same device."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Phase
from tests.marks import slow
from tests.predictor.rows import A100, Row, allocations
from tests.replays import replay


def test_threads_take_memory_of_the_same_card() -> None:
    kept: list[Tensor] = []

    def work(_: Any = None) -> None:
        x = torch.ones(256, 256, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
        kept.append(x)

    with PredictedDevice(A100) as device:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(4)))
        assert {(each.device.type, each.is_cuda) for each in kept} == {("cuda", True)}
        # Eight tensors and their gradients.
        assert device.allocated_bytes == 16 * 256 * 1024
        assert replay(device.finish()).exact
        kept.clear()
        assert device.allocated_bytes == 0
    seen = []
    after = threading.Thread(target=lambda: seen.append(torch.cuda.is_available()))
    after.start()
    after.join()
    assert seen == [False]


class Numbered(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return torch.full((3, 8), float(number)), number


@pytest.mark.parametrize("workers", [0, *slow(2)])
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_arrive_with_their_values(workers: int, pinned: bool) -> None:
    with PredictedDevice(A100) as device:
        loader = DataLoader(Numbered(), batch_size=16, num_workers=workers, pin_memory=pinned)
        seen = []
        for x, number in loader:
            assert x.is_pinned() == pinned and x[:, 0, 0].tolist() == number.tolist()
            seen += number.tolist()
            x, number = x.to("cuda", non_blocking=True), number.cuda(non_blocking=True)
            assert device.allocated_bytes == 16 * 24 * 4 + 512
            del x, number
        assert seen == list(range(64)) and device.allocated_bytes == 0
        own = device.recorder.host_memory.peak.workers
        # Two batches of fp32 and of int64 are on their way to each worker's parent.
        assert (own.count, own.batch_bytes) == (workers, workers * 2 * 16 * (24 * 4 + 8))
        assert own.own_bytes is None or (own.own_bytes > workers << 20) == bool(workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_what_has_no_values_arrives_without(workers: int) -> None:
    with PredictedDevice(A100) as device:
        data = TensorDataset(torch.randn(1000, 512, 8), torch.randint(0, 5, (1000,)))
        for x, label in DataLoader(data, batch_size=100, shuffle=True, num_workers=workers, pin_memory=True):
            assert x.shape == (100, 512, 8) and 0 <= min(label.tolist()) <= max(label.tolist()) < 5
            assert str(x.sum().item()) == "unknown"
            assert x.cuda().is_cuda
        assert device.peak_requested_bytes == 100 * 512 * 8 * 4


def test_one_card_for_parallel_modules() -> None:
    with PredictedDevice(A100) as device:
        model = nn.DataParallel(nn.Linear(512, 512, bias=False)).cuda()
        for x in (torch.zeros(4, 512), torch.zeros(4, 512, device="cuda")):
            out = model(x)
            assert out.is_cuda and out.shape == (4, 512)
            out.sum().backward()
        del x, out
        # What came from the host was copied on a stream of its own, and waits for the default one.
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda")
        weight = 512 * 512 * 4
        assert device.allocated_bytes == 2 * weight + 2 * A100.cublas_workspace_bytes


def test_a_program_may_train_in_a_thread_while_another_works() -> None:
    """Autograd counts its nodes in each thread by itself."""

    def rows_of(in_thread: bool) -> list[Row]:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        stop = threading.Event()

        def train() -> None:
            model.cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                model(torch.zeros(8, 64, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        def disturb() -> None:
            while not stop.is_set():
                (torch.ones(4, requires_grad=True) * 2).sum()

        with PredictedDevice(A100) as device:
            if not in_thread:
                train()
                return allocations(device.finish())
            trains, disturbs = threading.Thread(target=train), threading.Thread(target=disturb)
            disturbs.start()
            trains.start()
            trains.join()
            stop.set()
            disturbs.join()
            return allocations(device.finish())

    alone, beside = rows_of(False), rows_of(True)
    assert beside == alone
    assert {row.phase for row in alone} == set(Phase) and {row.module for row in alone} > {"0", "2"}
