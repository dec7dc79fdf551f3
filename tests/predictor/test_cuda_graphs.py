"""CUDA graphs: memory at capture, none at replay."""

import gc

import pytest
import torch
from torch import nn

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100

MiB = 1 << 20


def reserved_by_pool() -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = segment["segment_pool_id"]
        found[pool] = found.get(pool, 0) + segment["total_size"]
    return found


def test_a_graph_takes_memory_from_its_own_pool_when_it_is_captured() -> None:
    with PredictedDevice(A100) as device:
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
def test_graphs_of_any_accelerator_are_the_same() -> None:
    with PredictedDevice(A100) as device:
        x = torch.zeros(MiB, device="cuda")
        graph = torch.accelerator.Graph()
        with torch.Stream(), graph:
            y = x + 1
        graph.replay()
        assert reserved_by_pool() == {(0, 0): 20 * MiB, graph.pool(): 20 * MiB}
        assert device.allocated_bytes == 8 * MiB
        del y


def test_what_a_graph_made_is_not_known_for_what_it_was_at_capture() -> None:
    with PredictedDevice(A100):
        x = torch.zeros(8, device="cuda")
        assert (x + 1).tolist() == [1.0] * 8
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        x.fill_(5)
        graph.replay()
        assert x.tolist() == [5.0] * 8 and str(y[0].item()) == "unknown"


def test_what_torch_refuses_is_refused() -> None:
    with PredictedDevice(A100):
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()
        with pytest.raises(RuntimeError, match="non-default stream"):
            graph.capture_begin()


def test_a_whole_step_as_a_graph() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    with PredictedDevice(A100) as device:
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


def test_graphed_callables_are_torchs_own() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    with PredictedDevice(A100) as device:
        model.cuda()
        sample = torch.zeros(32, 256, device="cuda", requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(model, (sample,))
        held = device.allocated_bytes
        for _ in range(3):
            graphed(torch.zeros(32, 256, device="cuda", requires_grad=True)).sum().backward()
        # The gradients are the graph's own buffers, and so is the output.
        assert device.allocated_bytes == held
