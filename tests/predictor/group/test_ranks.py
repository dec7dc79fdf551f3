"""Ranks of a group whose others do not run: collectives as a program sees them, and which ranks represent others."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from memviz.allocator.context import Communicator, communicators_of
from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from memviz.predictor.group.process_group import GroupNeeded
from memviz.predictor.group.ranks import (
    GroupRank,
    Layout,
    classes_of,
    dimension_of,
    grid_of,
    places_of,
    rank_of_environment,
)
from memviz.results.run import rank_list
from tests import forked
from tests.marks import slow
from tests.predictor.group.ranks import as_rank, held, layers
from tests.predictor.rows import A100
from tests.second_process import predict

gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Names in torch 2.13, or the earlier ones."""


def test_a_rank_finds_what_torchrun_would_have_told_it() -> None:
    before = dict(os.environ)
    with as_rank(9, 16) as device:
        assert device.rank == GroupRank(9, 16)
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        assert [os.environ[name] for name in names] == ["9", "16", "1", "8", "1", "2"]
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (9, 16, "nccl")
        assert torch.cuda.device_count() == 8 and torch.cuda.current_device() == 1
        torch.cuda.set_device(1)
        assert torch.ones(3, device="cuda").device == torch.device("cuda", 1) == torch.ones(3, device="cuda:1").device
        with pytest.raises(UsageError, match=r"the card of the predicted rank 9 is cuda:1"):
            torch.ones(3, device="cuda:2")
        with pytest.raises(UsageError, match="invalid device ordinal"):
            torch.ones(3, device="cuda:8")
    assert {name: value for name, value in os.environ.items() if name in GroupRank(9, 16).environment} == {
        name: value for name, value in before.items() if name in GroupRank(9, 16).environment
    }
    assert not dist.is_initialized()


def test_communicators_are_noted_with_the_first_use_of_a_group() -> None:
    with as_rank(0, 8) as device:
        dist.new_group([0, 1, 2])
        pair = dist.new_group([0, 1])
        one = torch.ones(8, device="cuda")
        dist.all_reduce(one)
        dist.all_reduce(one, group=pair)
        dist.all_to_all_single(torch.empty_like(one), one)
        dist.send(one, 3)
        dist.send(one, 3)
        dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1, 2, 3]))
        facts = device.finish().about.facts
    expected = [Communicator(8, exchanges=True), Communicator(2), Communicator(2, exchanges=True)]
    assert communicators_of(facts) == Counter(expected)


def test_ranks_have_to_be_of_the_group() -> None:
    with pytest.raises(UsageError, match="The rank must be 0 to 7"):
        GroupRank(8, 8)
    assert rank_of_environment({"RANK": "3", "WORLD_SIZE": "4"}) == GroupRank(3, 4)
    assert rank_of_environment({"WORLD_SIZE": "1", "RANK": "0"}) is rank_of_environment({}) is None


def test_others_send_what_this_rank_would_send() -> None:
    with as_rank(2, 4):
        one = torch.arange(4.0, device="cuda")
        summed, largest, gathered = one.clone(), one.clone(), torch.empty(16, device="cuda")
        dist.all_reduce(summed)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        part = torch.empty(1, device="cuda")
        gather(gathered, one)
        reduce_scatter(part, one)
        assert summed.tolist() == [0, 4, 8, 12] and largest.tolist() == [0, 1, 2, 3]
        assert gathered.tolist() == [0, 1, 2, 3] * 4 and part.tolist() == [8]
        halves = [torch.empty(4, device="cuda") for _ in range(4)]
        dist.all_gather(halves, one)
        assert [half.tolist() for half in halves] == [[0, 1, 2, 3]] * 4
        swapped = torch.empty(4, device="cuda")
        dist.all_to_all_single(swapped, one)
        assert swapped.tolist() == [2, 2, 2, 2]
        objects: list[Any] = [None] * 4
        dist.all_gather_object(objects, {"rows": 7})
        assert objects == [{"rows": 7}] * 4
        unknown = torch.randn(1 << 10, device="cuda")
        dist.all_reduce(unknown)
        with pytest.raises(UsageError):
            torch.zeros(int(unknown.long()[0]))


def test_values_of_the_host_go_the_same_way() -> None:
    with as_rank(0, 8, begun=False) as device:
        dist.init_process_group("gloo")
        rows = torch.tensor([3])
        dist.all_reduce(rows)
        dist.barrier()
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=10))
        assert rows.item() == 24 and dist.get_backend() == "gloo"
        assert len(device.finish().devices[0].events) == 0


def test_a_list_is_gathered_in_one_piece_that_lives_until_somebody_waits() -> None:
    with as_rank(0, 4) as device:
        sent = torch.empty(1 << 20, device="cuda")
        outputs = [torch.empty(1 << 20, device="cuda") for _ in range(4)]
        before = device.peak_requested_bytes
        dist.all_gather(outputs, sent)
        assert device.peak_requested_bytes - before == 4 * 4 << 20 and held() == 5 * 4 << 20
        work = dist.all_reduce(torch.empty(1 << 20, device="cuda"), async_op=True)
        assert work is not None and held() == 6 * 4 << 20
        work.wait()
        assert held() == 5 * 4 << 20


@pytest.mark.parametrize(("release", "kept"), [((2, 7), 0), ((2, 8), 2 * 16 << 20)])
def test_tensors_of_a_collective_that_is_not_waited_for_are_kept_until_a_later_one(
    release: tuple[int, int], kept: int
) -> None:
    with as_rank(0, 4, release=release) as device:
        sent = torch.empty(1 << 20, device="cuda")
        outputs = [torch.empty(1 << 20, device="cuda") for _ in range(4)]
        # A future, unlike the work, does not give the tensors up.
        dist.all_gather(outputs, sent, async_op=True).get_future().wait()
        del outputs
        # The list, and the buffer between it and NCCL.
        assert held() - sent.nbytes == kept
        dist.all_reduce(sent)
        assert held() - sent.nbytes == kept
        torch.cuda.synchronize()
        assert held() - sent.nbytes == kept
        dist.all_reduce(sent)
        assert held() == sent.nbytes
        assert any("keeps their tensors" in note for note in device.unseen()) == bool(kept)


def test_a_long_queue_has_run_the_collectives_before_it() -> None:
    with as_rank(0, 4, release=(2, 8)):
        sent = torch.empty(1 << 20, device="cuda")
        dist.all_reduce(torch.empty(1 << 20, device="cuda"), async_op=True)
        for launches in (0, 2000):
            for _ in range(launches):
                sent.add_(1)
            assert held() == 2 * sent.nbytes
            dist.all_reduce(sent)
        assert held() == sent.nbytes


@pytest.mark.parametrize("device", [{}, {"device_id": torch.device("cuda", 5)}])
def test_groups_within_the_group(device: dict[str, Any]) -> None:
    """Torch splits the parts off a group that knows its device, instead of making them one by one."""
    with as_rank(5, 8, begun=False):
        dist.init_process_group("nccl", **device)
        mesh = dist.init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "model"))
        assert (mesh["data"].get_local_rank(), mesh["model"].get_local_rank()) == (1, 1)
        assert dist.get_world_size(mesh.get_group("model")) == 4
        tensor = torch.ones(2, device="cuda")
        dist.all_reduce(tensor, group=mesh.get_group("model"))
        assert tensor.tolist() == [4, 4]
        other = dist.new_group([0, 1])
        assert dist.get_rank(other) == -1
        parts = [[3, 2], [1, 0]]
        part = dist.split_group(mesh.get_group("model"), parts) if device else dist.new_group([4, 5])
        assert dist.get_process_group_ranks(part) == [4, 5]


@pytest.mark.parametrize("says", [{}, {"init_method": "env://"}])
def test_who_says_not_of_how_many_is_told_what_to_say(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with PredictedDevice(A100), pytest.raises(GroupNeeded, match="--world-size 8"):
        dist.init_process_group("nccl", **says)
    with PredictedDevice(A100), pytest.raises(GroupNeeded, match="starts 4 processes.*--world-size 8"):
        torch.multiprocessing.spawn(print, nprocs=4)


def test_a_program_may_say_itself_which_process_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with PredictedDevice(A100):
        dist.init_process_group("nccl", rank=1, world_size=2)
        tensor = torch.ones(1, device="cuda")
        dist.all_reduce(tensor)
        assert tensor.item() == 2
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with PredictedDevice(A100):
        dist.init_process_group("nccl", init_method="env://")
        assert dist.get_world_size() == 1
    with as_rank(0, 8, begun=False), pytest.raises(GroupNeeded, match="expects 4 processes"):
        dist.init_process_group("nccl", rank=0, world_size=4)


def _process(number: int, numbers: list[tuple[int, int]]) -> None:
    dist.init_process_group("nccl", rank=number, world_size=8)
    numbers.append((number, dist.get_rank()))


def test_of_processes_that_a_program_starts_one_runs() -> None:
    numbers: list[tuple[int, int]] = []
    with as_rank(3, 8, begun=False):
        torch.multiprocessing.spawn(_process, args=(numbers,), nprocs=8)
    assert numbers == [(3, 3)]


def test_what_a_rank_sends_is_counted_as_along_a_ring() -> None:
    with as_rank(0, 8) as device:
        whole, part = torch.zeros(1024, device="cuda"), torch.zeros(128, device="cuda")
        functions: Any = torch.ops._c10d_functional
        group = dist.distributed_c10d._get_default_group().group_name
        calls = {
            2 * 3584: (lambda: dist.all_reduce(whole), lambda: functions.all_reduce(whole, "sum", group)),
            3584: (
                lambda: gather(whole, part),
                lambda: reduce_scatter(part, whole),
                lambda: functions.all_gather_into_tensor(part, 8, group),
                lambda: functions.reduce_scatter_tensor(whole, "sum", 8, group),
            ),
            512: (lambda: dist.send(part, 1),),
            0: (lambda: dist.recv(part, 1),),
        }
        for size, makers in calls.items():
            for make in makers:
                before = device.link_bytes
                make()
                assert device.link_bytes - before == size


# Waits for memory that end because NCCL runs a group's collectives in order.


MiB = 1 << 20


def active() -> int:
    """Return active bytes, including frees that wait for a stream."""
    return torch.cuda.memory_stats()["active_bytes.all.current"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_same_group", [True, False])
def test_collectives_come_one_after_the_other_whichever_stream_asks(is_async: bool, is_same_group: bool) -> None:
    with as_rank(0, 8):
        side, one, other = torch.cuda.Stream(), torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
        group = None if is_same_group else dist.new_group(list(range(8)))
        before = active()
        held = torch.empty(4 * MiB, dtype=torch.uint8, device="cuda")
        held.record_stream(side)
        del held
        with torch.cuda.stream(side):
            first = dist.all_reduce(one, async_op=is_async)
        second = dist.all_reduce(other, group=group, async_op=is_async)
        if is_async:
            # The collective has not been waited for.
            torch.cuda.current_stream().synchronize()
            second.wait()
        torch.cuda.current_stream().synchronize()
        torch.empty(1, device="cuda")
        assert active() - before == (0 if is_same_group else 4 * MiB)
        del first


@pytest.mark.slow
def test_fsdp1_holds_gradients_of_few_blocks_while_they_are_reduced() -> None:
    """It waits for the free before last at every gathering, and that is behind the reducing before."""

    def peak(count: int) -> int:
        with as_rank(0, 8):
            blocks = [FullyShardedDataParallel(block, device_id=0) for block in layers(1024, count)]
            model = FullyShardedDataParallel(nn.Sequential(*blocks), device_id=0)
            model(torch.randn(2, 1024, device="cuda")).sum().backward()
            return torch.cuda.memory_stats()["active_bytes.all.peak"]

    # Of each more, the part of the weight and of its gradient that stays.
    assert peak(16) - peak(8) == 8 * 2 * 4 * MiB // 8


# The program that is predicted is one that works: on two real processes its step is that of one process alone.


PROGRAM = Path(__file__).parents[2] / "programs" / "parallel_step.py"
ROUNDING = 1e-6


def begun(rank: GroupRank, way: str, meet_at: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, **rank.environment, "MEET_AT": meet_at.as_uri(), "CUDA_VISIBLE_DEVICES": ""}
    # A file is where they meet; and threads of two would wait for one another.
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forked.start([str(PROGRAM), way], of=forked.with_torch, env=environment, text=True, **pipes)


@pytest.mark.parametrize("way", ["data", *slow("sharded", "tensor")])
def test_gradients_and_outputs_are_those_of_one_process(way: str, tmp_path: Path) -> None:
    ranks = [begun(GroupRank(number, 2), way, tmp_path / "meet") for number in range(2)]
    for process in ranks:
        out, errors = process.communicate(timeout=forked.MOST_SECONDS)
        assert process.returncode == 0, errors
        assert float(out) < ROUNDING


@pytest.mark.parametrize("way", ["data", *slow("sharded", "tensor")])
def test_the_same_program_is_predicted(way: str) -> None:
    done = predict("--json", "--world-size", "2", "--rank", "1", PROGRAM, way)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["peak_requested_bytes"] > 0 and figures["out_of_memory"] == 0


@dataclass(frozen=True)
class One:
    fingerprint: str
    layout: Layout = field(default_factory=Layout)


def classes(world_size: int, kind: Callable[[int], object], layout: Layout) -> tuple[list[list[int]], list[int]]:
    """Ranks by class, and which ran."""
    ran: list[int] = []

    def run(ranks: Sequence[int]) -> list[One]:
        ran.extend(ranks)
        return [One(str(kind(rank)), layout) for rank in ranks]

    found = [ranks for ranks, _ in classes_of(world_size, run)]
    return found, sorted(ran)


def by_kind(world_size: int, kind: Callable[[int], object]) -> list[list[int]]:
    """Group all ranks by kind."""
    found: dict[object, list[int]] = {}
    for rank in range(world_size):
        found.setdefault(kind(rank), []).append(rank)
    return list(found.values())


def test_a_dimension_is_a_distance_and_a_length() -> None:
    examples = ([0, 1, 2, 3], [3, 7, 11], [5], [0, 1, 4], range(8))
    assert [dimension_of(ranks) for ranks in examples] == [*((1, 4), (4, 3), None, None, (1, 8))]


@pytest.mark.parametrize(
    ("dimensions", "grid"),
    [
        ([(1, 16)], ((1, 16),)),
        ([(1, 16), (1, 4), (4, 4)], ((1, 4), (4, 4))),
        ([(1, 16), (1, 2), (2, 4), (8, 2), (2, 8)], ((1, 2), (2, 4), (8, 2))),
        ([(1, 16), (4, 4)], ((1, 4), (4, 4))),
        ([(1, 16), (1, 4)], ((1, 4), (4, 4))),
        ([(1, 3)], ((1, 16),)),
        ([], ((1, 16),)),
    ],
)
def test_the_grid_is_the_finest_that_groups_make(
    dimensions: list[tuple[int, int]], grid: tuple[tuple[int, int], ...]
) -> None:
    assert grid_of(dimensions, 16) == grid


def test_places_are_where_a_length_ends() -> None:
    layout = Layout(uneven={(100, 16)}, chains={(16, 4)})
    # Parts of 7 rows: 0 to 13 are full, 14 has two rows, 15 none.
    assert places_of(layout, (1, 16)) == (0, 1, 14, 15)
    assert places_of(layout, (16, 4)) == (0, 1, 2, 3)
    assert places_of(Layout(), (1, 1024)) == (0, 1, 1023)


def test_only_ranks_that_may_differ_run() -> None:
    found, ran = classes(1024, lambda rank: "alike", Layout(dimensions={(1, 1024)}))
    assert found == [list(range(1024))] and ran == [0, 1, 1023]
    parts = [min(max(100 - 7 * rank, 0), 7) for rank in range(16)]
    layout = Layout(dimensions={(1, 16)}, uneven={(100, 16)})
    found, ran = classes(16, lambda rank: parts[rank], layout)
    assert found == by_kind(16, lambda rank: parts[rank]) and ran == [0, 1, 14, 15]
    layout = Layout(dimensions={(1, 4)}, unlike=[[0, 3], [1], [2]])
    found, ran = classes(4, {0: "a", 1: "b", 2: "a", 3: "a"}.get, layout)
    assert found == [[0, 2, 3], [1]] and ran == [0, 1, 2]


def test_dimensions_that_count_are_combined() -> None:
    def kind(rank: int) -> tuple[bool, int]:
        return rank % 4 == 3, rank // 4 % 2

    layout = Layout(dimensions={(1, 4), (4, 2)}, uneven={(9, 4)}, chains={(4, 2)})
    found, _ = classes(8, kind, layout)
    assert found == by_kind(8, kind)

    def stage(rank: int) -> int:
        return rank // 8 % 4

    layout = Layout(dimensions={(1, 8), (8, 4), (32, 2), (1, 64)}, chains={(8, 4)})
    found, ran = classes(64, stage, layout)
    assert found == by_kind(64, stage) and len(ran) == len({*ran}) <= 8


def test_layouts_and_ranks_in_words() -> None:
    layout = Layout({(1, 4)}, {(4, 2)}, {(9, 4)}, [[0, 1], [2]])
    assert Layout.of_json(layout.as_json()) == layout
    assert [rank_list(ranks) for ranks in ([3], [0, 1, 2, 5], [0, 4, 8, 12], list(range(9)))] == [
        *("rank 3", "ranks 0 to 2, 5", "ranks 0, 4, ... 12", "ranks 0 to 8")
    ]
