"""Generated traces of every kind, by seed: several devices, failures, late starts, no history, pools, equal peaks."""

from random import Random
from typing import Any

from memviz.trace.intern import Interner
from memviz.trace.model import About, Trace
from memviz.trace.snapshot import read_snapshot
from tests.traces import alloc, block, event, frame, free, segment

COUNT = 120
_PLACES = [[frame("forward", f"/home/x/model_{i}.py", 10 + i), frame("main", "/home/x/train.py", 5)] for i in range(5)]
_OPERATORS = [frame(f"at::_ops::{name}::call(at::Tensor const&)", "??", 0) for name in ("mm", "_to_copy", "empty")]
_STEP = frame("step", "/usr/site-packages/torch/optim/adamw.py", 100)
_CALLED = frame("_call_impl", "/usr/site-packages/torch/nn/modules/module.py", 1500)
_BACKWARD = frame("backward", "/usr/site-packages/torch/_tensor.py", 500)


def made(seed: int) -> Trace:
    random = Random(seed)
    count = random.choice((1, 1, 1, 2, 3, 5))
    devices = [_device(random, number) for number in range(count)]
    if not any(events or segments for events, segments in devices):
        devices[0] = ([alloc(0, 7)], [])
    root: dict[str, Any] = {
        "device_traces": [events for events, _ in devices],
        "segments": [each for _, segments in devices for each in segments],
        "external_annotations": _steps(random, devices) if random.random() < 0.4 else [],
    }
    if random.random() < 0.1:
        root["host_traces"] = [[alloc(1 << 40, 1 << random.randint(0, 45), time_us=1)]]
    about = About(random.choice(("measured", "predicted")), source=f"made-{seed % 7}.pickle", format="pickle")
    return read_snapshot(root, about, Interner())


def _steps(random: Random, devices: list[Any]) -> list[dict[str, Any]]:
    return [
        {"stage": stage, "name": "Optimizer.step#AdamW.step", "device": number, "time_us": time}
        for number in range(len(devices))
        for start in sorted(random.sample(range(2, 60, 3), 3))
        for stage, time in (("START", start), ("END", start + 1))
    ]


def _size(random: Random) -> int:
    return random.choice((1, 512, 1023, 1024, 10 << 20, random.randint(1, 4096), 1 << random.randint(0, 44)))


def _frames(random: Random) -> list[dict[str, Any]]:
    if random.random() < 0.15:
        return []
    frames = list(random.choice(_PLACES))
    if random.random() < 0.5:
        frames.insert(1, random.choice((_STEP, _CALLED, _BACKWARD)))
    return [random.choice(_OPERATORS), *frames] if random.random() < 0.6 else frames


def _device(random: Random, number: int) -> tuple[list[Any], list[dict[str, Any]]]:
    if random.random() < 0.15:
        return [], []
    held, before = _before(random, number)
    events: list[Any] = []
    if random.random() < 0.85:
        live = dict(before)
        for turn in range(random.choice((1, 2, 5, 20, 60))):
            events += _happened(random, live, base=(number + 1) << 50, turn=turn)
        held = _at_the_end(random, live, number)
    for time, each in enumerate(events):
        each["time_us"] = time + 1
    return events, held


def _before(random: Random, number: int) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return the blocks that were live before the first event."""
    if random.random() < 0.6:
        return [], {}
    base = ((number + 1) << 50) + (1 << 49)
    live = {base + (i << 46): _size(random) for i in range(random.randint(1, 3))}
    return _at_the_end(random, live, number), live


def _happened(random: Random, live: dict[int, int], *, base: int, turn: int) -> list[dict[str, Any]]:
    chance = random.random()
    if live and chance < 0.4:
        address = random.choice(sorted(live))
        return free(address, live.pop(address), frames=_frames(random))
    if chance < 0.47:
        oom = event("oom", 0, _size(random), frames=_frames(random), device_free=random.randint(0, 1 << 30))
        oom.pop("addr")
        return [oom]
    address, size = base + (turn << 41), min(_size(random), 1 << 40)
    live[address] = size
    more = {"frames": frames} if (frames := _frames(random)) else {}
    return [alloc(address, size, **more)]


def _at_the_end(random: Random, live: dict[int, int], number: int) -> list[dict[str, Any]]:
    """A segment per block, some in a private pool, and now and then none at all, as old releases leave them."""
    if random.random() < 0.2:
        return []
    return [
        segment(
            address,
            -(-size // 512) * 512 + random.choice((0, 2 << 20)),
            [block(address, -(-size // 512) * 512, size)],
            device=number,
            segment_pool_id=random.choice(((0, 0), (0, 0), (0, 3))),
        )
        for address, size in live.items()
    ]
