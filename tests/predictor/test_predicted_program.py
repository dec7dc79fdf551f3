"""`memviz.predicting` around code, `memviz.predict` of a function."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import memviz
from memviz.errors import MemvizError, UsageError
from memviz.predictor.accuracy import fit_on
from memviz.predictor.assumptions import DataNeeded
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.predictor.group.ranks import GroupRank
from memviz.runner.execute import predict
from memviz.runner.plan import plan_of
from memviz.runner.predicted_script import ScriptOrder, predict_script
from memviz.runner.record.script import load_script
from memviz.runner.request import Request
from memviz.trace.model import Category, Phase
from tests.facts import missing
from tests.marks import slow
from tests.predictor.rows import A100, Row, allocations
from tests.replays import replay

WIDTH = 512
WEIGHT = WIDTH * WIDTH * 4


def train(steps: int, *, rows: int = 4) -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(steps):
        model(torch.randn(rows, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_functions_estimate_adds_up() -> None:
    estimate = memviz.predict(train, 2, rows=16)
    categories = estimate.by_category()
    assert categories["parameter"] == WEIGHT and categories["optimizer_state"] == 2 * WEIGHT
    assert sum(categories.values()) == estimate.peak_requested <= estimate.peak_allocated <= estimate.peak_reserved
    assert estimate.peak == estimate.peak_reserved and estimate.steps == 2
    labels = estimate.trace.devices[0].event_labels
    assert labels is not None and Category.GRADIENT in labels.category.tolist()


def test_what_fits_is_asked_of_any_card_that_is_named() -> None:
    estimate = memviz.predict(lambda: torch.empty(20 << 30, dtype=torch.uint8, device="cuda"), card="RTX 4090")
    assert estimate.fits() and estimate.fits("RTX 4090") and estimate.fits("H100")
    assert not estimate.fits("T4")
    with pytest.raises(UsageError):
        estimate.fits("no such card")
    # Without a card there is no verdict until one is named.
    estimate = memviz.predict(lambda: torch.empty(20 << 30, dtype=torch.uint8, device="cuda"))
    assert estimate.fits("RTX 4090") and not estimate.fits("T4") and estimate.peak_reserved_on_card is None
    for ask in (estimate.fits, estimate.fit, estimate.fit_word):
        with pytest.raises(UsageError, match="No card given"):
            ask()
    assert missing(repr(estimate), "live 20.00 GiB", "allocated 20.00 GiB", "reserved 20.00 GiB") == []


def test_a_block_of_code_is_an_estimate_when_it_is_over() -> None:
    with memviz.predicting(card="T4") as predicted:
        assert torch.cuda.get_device_name().endswith("T4")
        with pytest.raises(UsageError, match="before the `with` block ends"):
            predicted.peak  # noqa: B018
        held = torch.ones(1000, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
        del held
    assert predicted.peak_requested == 4000 and predicted.out_of_memory == 1
    assert not predicted.fits() and not predicted.fits("T4") and predicted.fits("H100")
    assert not torch.cuda.is_available()
    # An error inside leaves the estimate until there.
    with pytest.raises(KeyError), memviz.predicting() as predicted:
        torch.ones(1000, device="cuda")
        raise KeyError
    assert predicted.peak_requested == 4000
    assert torch.ones(3).sum().item() == 3


def test_answers_and_steps_are_given_as_to_the_command() -> None:
    def ask() -> int:
        return int(torch.rand(3, device="cuda").long().sum())

    with pytest.raises(DataNeeded):
        memviz.predict(ask)
    line = ask.__code__.co_firstlineno + 1
    assert memviz.predict(ask, assume={f"test_predicted_program.py:{line}": 3}).assumed[0].where.endswith(f":{line}")
    with memviz.predicting(steps=3) as predicted:
        train(5)
    assert predicted.steps == 3


# Fit of a predicted run on a card.


GiB = 1 << 30


def test_what_a_card_keeps_for_itself_is_set_aside_by_kind() -> None:
    found = {}
    for name in ("A100 40GB", "RTX 4090"):
        card = card_named(name)
        with PredictedDevice(card) as device:
            # A GiB less than the whole card: it fits with a context of 512 MiB, and not with that of an A100.
            held = torch.empty(card.memory_bytes - GiB, dtype=torch.uint8, device="cuda")
            found[name] = fit_on(device.finish(), card, device.highest_bytes().reserved)
            del held
    assert [each.fits for each in found.values()] == [False, True]
    assert [each.overhead_bytes for each in found.values()] == [1792 << 20, 512 << 20]
    for name, each in found.items():
        assert each.usable_bytes + each.overhead_bytes == card_named(name).memory_bytes


def test_what_is_reserved_on_a_card_is_after_the_cache_was_released() -> None:
    card = card_named("RTX 4090")
    with PredictedDevice(card) as device:
        for gibibytes in (12, 13):
            torch.empty(gibibytes * GiB, dtype=torch.uint8, device="cuda")
        # Both are cached without a limit; on the card the first is given back for the second.
        fit = fit_on(device.finish(), card, device.highest_bytes().reserved)
    assert (fit.fits, fit.peak_reserved_bytes) == (True, 13 * GiB)
    assert fit.too_much_bytes == 25 * GiB - fit.usable_bytes


@pytest.mark.slow
def test_a_choice_of_kernels_ends_with_its_run() -> None:
    """Many predictions share one process, and none may affect the next."""
    settings = {"layers": "1", "narrow": "4", "sequence": "256"}

    def peak(*optimizations: tuple[str, dict[str, str]], card: str = "RTX 4090") -> int:
        request = Request("gpt2", settings, optimizations, card=card)
        return predict(plan_of(request), lambda phase: None).run.peak_requested_bytes

    before = peak()
    math = peak(("attention_backend", {"backend": "math"}))
    assert math > before
    assert peak() == before
    with pytest.raises(MemvizError, match="No enabled attention kernel"):
        peak(("attention_backend", {"backend": "flash"}), card="T4")
    assert peak() == before
    assert torch.backends.cuda.math_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.slow
def test_segments_are_ordered_as_the_platforms_driver_does_and_the_interval_covers_both() -> None:
    """An H200 under Linux reserved 12,988 MiB."""
    peaks = {}
    for platform, other in (("linux", "Windows and WSL"), ("wsl", "Linux")):
        lists = (("flat_gradients", {"how": "list_then_cat"}),)
        request = Request("transformer_block", {}, lists, card="H200", torch="2.11", platform=platform, numerics=False)
        run = predict(plan_of(request), lambda phase: None).run
        assert run.expected_error is not None
        peaks[platform] = run.peak_reserved_bytes
        least, most = run.expected_error.reserved_interval(run.peak_reserved_bytes)
        there = run.peak_reserved_bytes + run.expected_error.elsewhere_bytes
        assert least < there < most
        assert run.expected_error.elsewhere == other
        peaks[other] = there
    assert peaks["linux"] == peaks["Linux"] == 12_988 << 20
    assert peaks["wsl"] == peaks["Windows and WSL"] == 10_166 << 20


# Functions that a program registers with atexit, and a second program in the same process.


SHARDED = """
import atexit
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh).to_empty(device="cuda")
model(torch.randn(8, 64, device="cuda")).sum().backward()
atexit.register(lambda: print("rank", dist.get_rank(), torch.cuda.memory_allocated() > 0))
"""
ENDS = """
import atexit

def last():
    print("last")

atexit.register(last)
atexit.register(print, "in vain")
atexit.unregister(print)

@atexit.register
def fails():
    raise ValueError("on the way")

atexit.register(print, "first")
"""


def run(path: Path, text: str, rank: GroupRank | None = None) -> int:
    path.write_text(text)
    done = predict_script(load_script(str(path), []), ScriptOrder(rank=rank))
    assert done.exit_status == 0 and done.stopped is None
    return done.estimate.peak_requested


def test_programs_end_in_one_process_as_if_each_had_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch takes back operators of FSDP2 when Python ends."""
    peaks = [run(tmp_path / "train.py", SHARDED, GroupRank(number, 2)) for number in (0, 1, 0)]
    assert len(set(peaks)) == 1 and not dist.is_initialized()
    assert capsys.readouterr().out == "rank 0 True\nrank 1 True\nrank 0 True\n"
    # Exit functions run as Python runs them.
    run(tmp_path / "ends.py", ENDS)
    said = capsys.readouterr()
    assert said.out == "first\nlast\n"
    assert "ValueError: on the way" in said.err and "atexit callback" in said.err


def test_a_block_is_one_process_of_many() -> None:
    with memviz.predicting(world_size=4, rank=3) as predicted:
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (3, 4)
    assert predicted.rank == GroupRank(3, 4)
    assert memviz.predict(dist.is_initialized, world_size=2).rank == GroupRank(0, 2)
    with pytest.raises(UsageError, match="pass world_size"), memviz.predicting(rank=1):
        pass


# Threads and worker processes of the program see the same device.


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
def test_batches_arrive_with_their_values(workers: int, pinned: bool, device: PredictedDevice) -> None:
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
def test_what_has_no_values_arrives_without(workers: int, device: PredictedDevice) -> None:
    data = TensorDataset(torch.randn(1000, 512, 8), torch.randint(0, 5, (1000,)))
    for x, label in DataLoader(data, batch_size=100, shuffle=True, num_workers=workers, pin_memory=True):
        assert x.shape == (100, 512, 8) and 0 <= min(label.tolist()) <= max(label.tolist()) < 5
        assert str(x.sum().item()) == "unknown"
        assert x.cuda().is_cuda
    assert device.peak_requested_bytes == 100 * 512 * 8 * 4


def test_one_card_for_parallel_modules(device: PredictedDevice) -> None:
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
