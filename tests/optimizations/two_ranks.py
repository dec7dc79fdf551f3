"""One of two processes that train together over gloo: `two_ranks.py RANK FOLDER` writes its results to FOLDER.

Every check is a function here; `test_gradients.py` starts both processes once and reads the results
by the names of function and case.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from optimizations.flat_gradients import FlatGradients, flat_gradient

RANKS = 2
MICRO_BATCHES = 3
WAYS = ("flat", "list_then_cat", "plain")
WRAPPED = {
    "as it comes": {},
    "one bucket a parameter": {"bucket_cap_mb": 1e-5},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "all": {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 1e-5},
}


class Net(nn.Module):
    """Two layers and one that takes part on the first rank alone, with batch norm for its buffers."""

    def __init__(self, *, partly: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.extra = nn.Linear(4, 4) if partly else None

    def forward(self, x: Tensor, rank: int) -> Tensor:
        x = self.second(torch.relu(self.norm(self.first(x))))
        return x if self.extra is None or rank else self.extra(x)


def batches(rank: int, dtype: torch.dtype, step: int = 0) -> list[Tensor]:
    torch.manual_seed(100 * step + rank + 1)
    return [torch.randn(5, 8).to(dtype) for _ in range(MICRO_BATCHES)]


def plain_sum(rank: int, dtype: torch.dtype, *, partly: bool) -> Tensor:
    """Return the fp32 sum of each micro-batch's gradients, in one process without hooks."""
    model = Net(partly=partly).to(dtype)
    total = None
    for x in batches(rank, dtype):
        model.zero_grad()
        model(x, rank).square().mean().backward()
        flat = [
            (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()
            for parameter in model.parameters()
        ]
        joined = torch.cat(flat).float()
        total = joined if total is None else total + joined
    assert total is not None
    return total


def wrapped(dtype: torch.dtype, knobs: dict[str, Any], *, partly: bool = False) -> DistributedDataParallel:
    return DistributedDataParallel(Net(partly=partly).to(dtype), **knobs)


def take_step(model: Any, rank: int, dtype: torch.dtype, *, quiet: bool, step: int = 0) -> None:
    """Take a step; with `quiet`, all micro-batches but the last are under no_sync."""
    inputs = batches(rank, dtype, step)
    for number, x in enumerate(inputs):
        with model.no_sync() if quiet and number + 1 < len(inputs) else contextlib.nullcontext():
            model(x, rank).square().mean().backward()


def is_the_mean_of_plain_sums(rank: int) -> Iterator[tuple[str, Any]]:
    for name, knobs in WRAPPED.items():
        partly = bool(knobs.get("find_unused_parameters"))
        for dtype in (torch.float32, torch.bfloat16):
            expected = sum(plain_sum(each, dtype, partly=partly) * (1 / RANKS) for each in range(RANKS))
            for how in WAYS:
                for quiet in (False, True):
                    model = wrapped(dtype, knobs, partly=partly)
                    undo = FlatGradients(how, micro_batches=MICRO_BATCHES).apply(model)
                    for _ in range(2):
                        take_step(model, rank, dtype, quiet=quiet)
                    found = flat_gradient(model)
                    grads = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
                    same = torch.equal(found, expected) and torch.equal(grads, expected.to(dtype))
                    yield f"{name}, {dtype}, {how}, {'no_sync' if quiet else 'sync'}", same
                    undo()


def trains_as_the_wrapper_alone(rank: int) -> Iterator[tuple[str, Any]]:
    """Three steps in fp32: the same weights and buffers, to the bit, with the wrapper's own sums and with these."""
    for name, knobs in WRAPPED.items():
        if knobs.get("find_unused_parameters"):
            continue
        models = []
        for flat in (True, False):
            model = wrapped(torch.float32, knobs)
            if flat:
                FlatGradients(micro_batches=MICRO_BATCHES).apply(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(3):
                take_step(model, rank, torch.float32, quiet=True, step=step)
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():  # the wrapper sends buffers around with the next forward pass
                model(batches(rank, torch.float32)[0], rank)
            models.append(model)
        ours, theirs = (model.state_dict() for model in models)
        yield name, [key for key in ours if not torch.equal(ours[key], theirs[key])]


def undone_the_wrapper_reduces_as_ever(rank: int) -> Iterator[tuple[str, Any]]:
    for name, knobs in WRAPPED.items():
        model = wrapped(torch.float32, knobs)
        undo = FlatGradients(micro_batches=MICRO_BATCHES).apply(model)
        take_step(model, rank, torch.float32, quiet=False)
        undo()
        fresh = wrapped(torch.float32, knobs)
        for each in (model, fresh):
            each.module.load_state_dict(Net(partly=False).state_dict())
            each.zero_grad()
            take_step(each, rank, torch.float32, quiet=False)
        pairs = zip(model.parameters(), fresh.parameters(), strict=True)
        yield name, all(torch.equal(one.grad, other.grad) for one, other in pairs)


def words_of(act: Callable[[], object]) -> str:
    try:
        act()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def refused(rank: int) -> Iterator[tuple[str, Any]]:
    x = batches(rank, torch.float32)[0]
    inside = Net(partly=False)
    FlatGradients(micro_batches=1).apply(inside)
    outer = DistributedDataParallel(inside)
    yield "inside the wrapper", words_of(lambda: outer(x, rank))
    yield "around the wrapper", words_of(lambda: FlatGradients().apply(nn.Sequential(outer)))

    hooked = wrapped(torch.float32, {})
    hooked.register_comm_hook(None, lambda state, bucket: bucket.buffer())
    yield "a hook", words_of(lambda: FlatGradients().apply(hooked))
    built_in = wrapped(torch.float32, {})
    built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    yield "a built-in hook", words_of(lambda: FlatGradients().apply(built_in))

    alone = wrapped(torch.float32, {})
    FlatGradients(micro_batches=1).apply(alone)
    with alone.no_sync():
        yield "the last under no_sync", words_of(lambda: alone(x, rank).sum().backward())
    alone(x, rank).sum().backward()
    yield "and then goes on", flat_gradient(alone).numel() == sum(parameter.numel() for parameter in alone.parameters())

    static = wrapped(torch.float32, {"static_graph": True})
    yield "static_graph", words_of(lambda: FlatGradients().apply(static))
    late = wrapped(torch.float32, {})
    FlatGradients(micro_batches=1).apply(late)
    late._set_static_graph()
    yield "a graph that becomes static", words_of(lambda: late(x, rank))

    joined = wrapped(torch.float32, {})
    FlatGradients(micro_batches=1).apply(joined)
    with joined.join(enable=True):
        yield "join", words_of(lambda: joined(x, rank))


def refused_under_fsdp(rank: int) -> Iterator[tuple[str, Any]]:
    from torch.distributed._composable.replicate import replicate
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, x = init_device_mesh("cpu", (RANKS,)), torch.ones(5, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    fully_shard(model, mesh=mesh)
    yield "fully_shard", words_of(lambda: FlatGradients().apply(model))
    yield "a shard", words_of(lambda: FlatGradients().apply(model[0]))
    for place in ("the model", "a part"):
        late = nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 8))
        FlatGradients(micro_batches=1).apply(late if place == "the model" else late[0])
        fully_shard(late, mesh=mesh)
        yield f"fully_shard afterwards, {place}", words_of(lambda late=late: late(x).sum().backward())
    replicated = replicate(nn.Sequential(nn.Linear(8, 8)))
    yield "replicate", words_of(lambda: FlatGradients().apply(replicated))
    late = nn.Sequential(nn.Linear(8, 8))
    FlatGradients(micro_batches=1).apply(late)
    replicate(late)
    yield "replicate afterwards", words_of(lambda: late(x).sum().backward())


CHECKS = (
    is_the_mean_of_plain_sums,
    trains_as_the_wrapper_alone,
    undone_the_wrapper_reduces_as_ever,
    refused,
    refused_under_fsdp,
)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=10))
    found = {}
    for check in CHECKS:
        found[check.__name__] = dict(check(rank))
        (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
