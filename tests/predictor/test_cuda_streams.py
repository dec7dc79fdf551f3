"""Streams and events: whose memory is whose, and which frees have to wait."""

import gc
from collections.abc import Callable
from statistics import mean

import pytest
import torch
from torch import Tensor, nn

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100, WORKSPACE

MiB = 1 << 20


def four_mib() -> Tensor:
    return torch.empty(MiB, device="cuda")


def active() -> int:
    """Bytes of blocks that are held or wait."""
    return int(torch.cuda.memory_stats()["active_bytes.all.current"])


def test_streams_are_entered_and_left_and_there_are_32(device: PredictedDevice) -> None:
    default, side = torch.cuda.default_stream(), torch.cuda.Stream()
    assert torch.cuda.current_stream() == default != side and default.cuda_stream == 0
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side == torch.accelerator.current_stream()
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == side
    with side:
        assert torch.cuda.current_stream() == side
    torch.cuda.set_stream(side)
    assert torch.cuda.current_stream().cuda_stream == side.cuda_stream != 0
    torch.accelerator.set_stream(default)
    assert torch.cuda.current_stream() == default
    assert isinstance(side, torch.Stream) and isinstance(torch.Stream(device="cuda"), torch.Stream)
    assert side.device == torch.device("cuda", 0) and hash(side) == hash(side)
    assert torch.cuda.ExternalStream(12_345).cuda_stream == 12_345
    assert torch.cuda.Stream(priority=-1).priority == -1
    handles = [torch.cuda.Stream().cuda_stream for _ in range(33)]
    assert len(set(handles)) == 32 and handles[32] == handles[0]


def test_memory_never_crosses_streams(device: PredictedDevice) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        held = four_mib()
    del held
    assert device.reserved_bytes == 20 * MiB
    # The free block is the other stream's.
    held = four_mib()
    assert device.reserved_bytes == 40 * MiB
    with torch.cuda.stream(side):
        other = four_mib()
    assert device.reserved_bytes == 40 * MiB and device.allocated_bytes == 8 * MiB
    streams = {segment["stream"] for segment in torch.cuda.memory_snapshot()}
    assert streams == {0, side.cuda_stream}
    assert set(device.finish().streams) == streams
    del held, other


def wait_for_both(one: Tensor, side: torch.cuda.Stream) -> None:
    side.wait_stream(torch.cuda.current_stream())
    side.synchronize()


WAITS: dict[str, Callable[[Tensor, torch.cuda.Stream], object]] = {
    "stream": lambda one, side: torch.cuda.current_stream().synchronize(),
    "device": lambda one, side: torch.cuda.synchronize(),
    "event": lambda one, side: torch.cuda.current_stream().record_event().synchronize(),
    "waited for": wait_for_both,
    "item": lambda one, side: one.item(),
    "cpu": lambda one, side: one.cpu(),
    "to": lambda one, side: one.to("cpu"),
    "from the host": lambda one, side: torch.ones(1).to("cuda"),
    "cuda": lambda one, side: torch.ones(1).cuda(),
    "written": lambda one, side: one.copy_(torch.ones(1)),
    "tensor": lambda one, side: torch.tensor([1.0], device="cuda"),
    "shown": lambda one, side: f"{one} and {one!r}",
}


@pytest.mark.parametrize("how", WAITS)
def test_what_another_stream_used_is_free_when_the_program_has_waited_for_it(how: str, device: PredictedDevice) -> None:
    one, side = torch.zeros(1, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        held = four_mib()
    held.record_stream(torch.cuda.current_stream())
    del held
    assert (device.allocated_bytes, active()) == (512, 4 * MiB + 512)
    WAITS[how](one, side)
    four_mib()
    assert active() == 512
    assert [said for said in device.unseen() if said.startswith("Memory used by another stream")]


def test_what_nobody_waited_for_is_not_free(device: PredictedDevice) -> None:
    side, early = torch.cuda.Stream(), torch.cuda.Event()
    early.record()
    with torch.cuda.stream(side):
        held = four_mib()
    held.record_stream(torch.cuda.default_stream())
    del held
    # Neither is behind the other stream's work.
    early.synchronize()
    side.synchronize()
    torch.zeros(1, device="cuda").to("cpu", non_blocking=True)
    torch.zeros(1).to("cuda", non_blocking=True).to(torch.float64)
    four_mib()
    assert active() == 4 * MiB
    # To empty the cache waits for all.
    torch.cuda.empty_cache()
    assert (active(), device.reserved_bytes) == (0, 0)


@pytest.mark.slow
def test_a_stream_takes_a_thousand_kernels_before_the_first_of_them_is_done(device: PredictedDevice) -> None:
    one, side = torch.zeros(1, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        held = four_mib()
    held.record_stream(torch.cuda.current_stream())
    del held
    for _ in range(1024):
        one.add_(1)
        # No work for the GPU, then some on a stream that is never synchronized.
        one.view(1), torch.empty(0, device="cuda")
        with torch.cuda.stream(side):
            one.mul_(1)
    four_mib()
    assert active() == 4 * MiB + 512
    one.add_(1)
    four_mib()
    assert active() == 512


def test_a_free_that_waited_is_still_the_tensors_own(device: PredictedDevice) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        held = torch.empty(1000, device="cuda")
    held.record_stream(torch.cuda.default_stream())
    del held
    torch.cuda.synchronize()
    torch.empty(7000, device="cuda")
    events = device.finish().devices[0].events
    rows = [(action, size) for action, size in zip(events.action.tolist(), events.size.tolist(), strict=True)]
    # Segment, alloc, free requested; free completed, segment and alloc on the other stream, and its free.
    assert rows == [(3, 2 * MiB), (0, 4000), (1, 4000), (2, 4000), (3, 2 * MiB), (0, 28_000), (1, 28_000), (2, 28_000)]


def test_backward_runs_on_the_streams_of_forward(device: PredictedDevice) -> None:
    model = nn.Linear(256, 256, bias=False)
    model.cuda()
    side = torch.cuda.Stream()
    x = torch.zeros(512, 256, device="cuda", requires_grad=True)
    with torch.cuda.stream(side):
        loss = model(x).square().sum()
    loss.backward()
    events, streams = device.finish().devices[0].events, device.finish().streams
    at = [streams[number] for number in events.stream[events.action == 0].tolist()]
    sizes = events.size[events.action == 0].tolist()
    on_default = [size for size, stream in zip(sizes, at, strict=True) if stream == 0]
    # The weight, the input and the loss's own gradient; all else was made where forward ran, cuBLAS's workspaces too.
    assert on_default == [256 * 256 * 4, 512 * 256 * 4, 4]
    assert sizes.count(WORKSPACE) == 2 and {at[sizes.index(WORKSPACE)]} == {side.cuda_stream}


def test_times_between_events_are_unknown_and_said_so(device: PredictedDevice) -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        begin.elapsed_time(end)
    begin.record()
    end.record()
    torch.cuda.synchronize()
    assert f"{begin.elapsed_time(end):.2f} ms" == "unknown ms" and end.query()
    assert [said for said in device.unseen() if "time between two events is unknown" in said]
    assert f"{mean([begin.elapsed_time(end), 3.0])}" == "unknown"
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(end)
    assert isinstance(begin, torch.Event) and isinstance(torch.Event(), torch.Event)
    assert repr(torch.cuda.Event()) == "<torch.cuda.Event uninitialized>"


# CUDA graphs: memory at capture, none at replay.


def reserved_by_pool() -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = segment["segment_pool_id"]
        found[pool] = found.get(pool, 0) + segment["total_size"]
    return found


def test_a_graph_takes_memory_from_its_own_pool_when_it_is_captured(device: PredictedDevice) -> None:
    x = torch.zeros(MiB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = (x + 1) * 2
    assert not torch.cuda.is_current_stream_capturing()
    assert reserved_by_pool() == {(0, 0): 20 * MiB, graph.pool(): 20 * MiB}
    before = device.finish().event_count
    for _ in range(5):
        graph.replay()
    assert device.finish().event_count == before and device.allocated_bytes == 8 * MiB
    assert [said for said in device.unseen() if said.startswith("CUDA graphs are captured by running")]
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        z = x * 3
    assert reserved_by_pool()[graph.pool()] == 20 * MiB and second.pool() == graph.pool()
    pool = graph.pool()
    del y, z, graph
    gc.collect()
    torch.cuda.empty_cache()
    # The second graph still owns it.
    assert reserved_by_pool() == {(0, 0): 20 * MiB, pool: 20 * MiB}
    second.reset()
    torch.cuda.empty_cache()
    assert reserved_by_pool() == {(0, 0): 20 * MiB}


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="a newer torch has it")
def test_graphs_of_any_accelerator_are_the_same(device: PredictedDevice) -> None:
    x = torch.zeros(MiB, device="cuda")
    graph = torch.accelerator.Graph()
    with torch.Stream(), graph:
        y = x + 1
    graph.replay()
    assert reserved_by_pool() == {(0, 0): 20 * MiB, graph.pool(): 20 * MiB}
    assert device.allocated_bytes == 8 * MiB
    del y


def test_replays_make_values_unknown_and_need_a_capture(device: PredictedDevice) -> None:
    x = torch.zeros(8, device="cuda")
    assert (x + 1).tolist() == [1.0] * 8
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    x.fill_(5)
    graph.replay()
    assert x.tolist() == [5.0] * 8 and str(y[0].item()) == "unknown"
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()


def test_a_whole_step_as_a_graph(device: PredictedDevice) -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.zeros(64, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(x).sum().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert weights == 4 * 2 * (512 * 512 + 512)
    # The gradients are the graph's; capture runs on torch's own stream, with workspaces of its own there.
    held = device.allocated_bytes - x.nbytes - 4 * A100.cublas_workspace_bytes
    assert held == 2 * weights + 512
    before = device.memory_stats()
    graph.replay()
    assert device.memory_stats() == before


def test_graphed_callables_are_torchs_own(device: PredictedDevice) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    model.cuda()
    sample = torch.zeros(32, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    held = device.allocated_bytes
    for _ in range(3):
        graphed(torch.zeros(32, 256, device="cuda", requires_grad=True)).sum().backward()
    # The gradients are the graph's own buffers, and so is the output.
    assert device.allocated_bytes == held
