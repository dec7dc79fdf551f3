"""CUDA graphs and memory pools: captured code runs once and allocates from the graph's own pool, replays do nothing.

A card does the same: its allocator hands out memory at capture, and none when the graph is replayed.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, Self

import torch

from memviz.allocator.blocks import PoolId, PoolPair
from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.compat import Patches, without_functions, without_modes
from memviz.runner.predict.cuda_streams import Lane, StreamOrder
from memviz.runner.predict.known_values import KnownValues
from memviz.runner.predict.ledger import Ledger

_REPLAYED = (
    "CUDA graphs are captured by running what they capture once, into the graph's own pool; their replays compute "
    "nothing and take no memory, as on a card."
)


class GraphPools:
    """Private memory pools, of graphs and of the program."""

    def __init__(self, ledger: Ledger, order: StreamOrder, known: KnownValues) -> None:
        self.order = order
        self._ledger = ledger
        self._known = known
        self._numbers = {False: itertools.count(1), True: itertools.count(1)}

    def new(self, *, by_user: bool = False) -> PoolId:
        number = next(self._numbers[by_user])
        return (0, number) if by_user else (number, 0)

    def hold(self, pool: PoolId) -> None:
        pools = self._ledger.allocator.private_pools
        if pool in pools:
            pools[pool].use_count += 1
        else:
            pools[pool] = PoolPair(pool)

    def forget_values(self, pool: PoolId) -> None:
        """Forget the known values of a graph's tensors: each replay computes them anew from its current inputs."""
        taken = [held for held in self._ledger.live.values() if held.block.pool.owner.id == pool]
        with without_functions(), without_modes():
            for allocation in taken:
                storage = None if allocation.storage is None else allocation.storage()
                if storage is not None:
                    self._known.forget(torch.empty(0, dtype=torch.uint8, device="meta").set_(storage))

    def enter(self, device: int, pool: PoolId) -> None:
        self.order.pools.append((pool[0], pool[1]))

    def leave(self, device: int, pool: PoolId) -> None:
        self.order.pools.remove((pool[0], pool[1]))

    def release(self, pool: PoolId) -> None:
        """Release the pool; its cached memory is freed when the cache is emptied."""
        pair = self._ledger.allocator.private_pools.get(pool)
        if pair is not None and pair.use_count:
            pair.use_count -= 1


class FakeGraph:
    """`torch.cuda.CUDAGraph`."""

    pools: ClassVar[GraphPools]
    assumptions: ClassVar[Assumptions]

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: PoolId | None = None
        self._lane: Lane | None = None

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global", **options: Any) -> None:
        lane = self.pools.order.current
        if lane is self.pools.order.default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self.assumptions.say(_REPLAYED)
        chosen = self.pools.new() if pool is None else (pool[0], pool[1])
        self._pool, self._lane, lane.capture = chosen, lane, chosen
        self.pools.hold(chosen)

    def capture_end(self) -> None:
        if self._lane is None:
            raise RuntimeError("CUDA error: no capture is under way")
        self._lane.capture = None
        self._lane = None
        if self._pool is not None:
            self.pools.forget_values(self._pool)

    def replay(self) -> None:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")

    def reset(self) -> None:
        if self._pool is not None:
            self.pools.release(self._pool)
            self._pool = None

    def pool(self) -> PoolId:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def _do_nothing(self, *args: Any, **options: Any) -> None:
        pass

    instantiate = register_generator_state = enable_debug_mode = debug_dump = _do_nothing

    def __del__(self) -> None:
        self.reset()


class FakeAcceleratorGraph(FakeGraph):
    """`torch.accelerator.Graph`, which is entered to capture."""

    def __init__(self, keep_graph: bool = False, *, pool: PoolId | None = None, **options: Any) -> None:
        super().__init__(keep_graph)
        self.graph_pool = pool

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global", **options: Any) -> None:
        super().capture_begin(pool or self.graph_pool)

    def __enter__(self) -> Self:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.capture_begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.capture_end()


class FakePool:
    """`torch.cuda.MemPool`."""

    pools: ClassVar[GraphPools]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.id = self.pools.new(by_user=True)
        self.pools.hold(self.id)

    def use_count(self) -> int:
        return 1

    def snapshot(self, *args: Any, **kwargs: Any) -> Any:
        whole: Any = torch.cuda.memory_snapshot
        return whole(self.id)

    def __del__(self) -> None:
        self.pools.release(self.id)


def follow_graphs(patches: Patches, pools: GraphPools, assumptions: Assumptions) -> None:
    attributes = {"pools": pools, "assumptions": assumptions}
    graph, pool = type("CUDAGraph", (FakeGraph,), attributes), type("MemPool", (FakePool,), {"pools": pools})
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.put(owner, "CUDAGraph", graph)
    patches.replace(torch.accelerator, "Graph", type("Graph", (FakeAcceleratorGraph,), attributes))
    for owner in (torch.cuda, torch.cuda.memory):
        patches.put(owner, "MemPool", pool)
        # Until torch 2.7 one was entered too.
        patches.replace(owner, "MemPoolContext", lambda pool: None)
