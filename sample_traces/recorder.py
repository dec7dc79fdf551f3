"""What `torch.cuda.memory._record_memory_history` would write, for tensors that exist as sizes only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from memviz.allocator.blocks import Block, PoolId
from memviz.allocator.caching import CachingAllocator
from memviz.allocator.device import Device, OutOfMemory
from memviz.trace.model import Action, Category, Phase

FrameKey = tuple[str, str, int]

_MODULE = "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
_MALLOC: tuple[FrameKey, ...] = (
    ("torch::unwind::unwind()", "??", 0),
    ("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
    ("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc()", "CUDACachingAllocator.cpp", 0),
)
_FREE: tuple[FrameKey, ...] = (
    *_MALLOC[:2],
    ("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::free()", "CUDACachingAllocator.cpp", 0),
    ("c10::StorageImpl::~StorageImpl()", "??", 0),
    ("c10::TensorImpl::~TensorImpl()", "??", 0),
)
_AUTOGRAD: tuple[FrameKey, ...] = (
    ("__clone", "??", 0),
    ("execute_native_thread_routine", "thread48.o", 0),
    ("torch::autograd::python::PythonEngine::thread_init()", "??", 0),
    ("torch::autograd::Engine::thread_main()", "??", 0),
    ("torch::autograd::Engine::evaluate_function()", "??", 0),
    ("torch::autograd::Node::operator()()", "??", 0),
)
_SYNC_US = (18_000, 24_000)
_NAMES = {action: action.name.lower() for action in Action}


@dataclass(frozen=True)
class Label:
    category: Category = Category.UNKNOWN
    module: str = ""
    phase: Phase = Phase.UNKNOWN


class Tensor:
    """Some bytes on the device, freed when Python lets go of it."""

    def __init__(self, recorder: Recorder, block: Block, size: int, label: Label) -> None:
        self.size = size
        self.block = block
        self.label = label
        self._recorder = recorder

    def __del__(self) -> None:
        self._recorder.free(self)


class Recorder:
    """Events, stacks and labels of one device, and where in the invented program we are."""

    def __init__(self, *, memory: int | None, seed: int, start_us: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.labels: list[Label] = []
        self.annotations: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] | None = None
        """At the end; None until then."""
        self.block_labels: list[Label] = []
        self._allocator = CachingAllocator(device=Device(memory), record=self._record)
        self._random = random.Random(seed)
        self._now = start_us
        self._frames: list[FrameKey] = []
        self._modules: list[str] = []
        self._phase = Phase.UNKNOWN
        self._live: dict[int, tuple[list[dict[str, Any]], Label]] = {}
        self._stack: list[dict[str, Any]] = []
        self._label = Label()
        self._frame_dicts: dict[FrameKey, dict[str, Any]] = {}
        self._stacks: dict[tuple[FrameKey, ...], list[dict[str, Any]]] = {}

    def tensor(self, size: int, op: str, category: Category) -> Tensor:
        """`op` is the operator that asks for memory; empty where the caller does so itself."""
        called = ((f"at::_ops::{op}::call(at::Tensor const&)", "??", 0),) if op else ()
        self._stack = self._interned((*_MALLOC, *called, *reversed(self._frames)))
        self._label = Label(category, ".".join(filter(None, self._modules)), self._phase)
        try:
            block = self._allocator.malloc(size)
        except OutOfMemory:
            self.finish()
            raise
        self._live[block.address] = (self._stack, self._label)
        return Tensor(self, block, size, self._label)

    def free(self, tensor: Tensor) -> None:
        if self.segments is not None:
            return
        self._stack, self._label = self._interned((*_FREE, *reversed(self._frames))), tensor.label
        del self._live[tensor.block.address]
        self._allocator.free(tensor.block)

    def finish(self) -> None:
        """The snapshot is taken now; whatever the program does afterwards is not in it."""
        self.segments = [self._segment(head) for _, head in sorted(self._allocator.segments.items())]

    def wait(self) -> None:
        """The host waits for the device, as it does to print a loss."""
        self._now += self._random.randrange(*_SYNC_US)

    def _record(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        self._now += self._random.randrange(3, 40)
        place = "device_free" if action is Action.OOM else "addr"
        self.events.append(
            {
                "action": _NAMES[action],
                place: address,
                "size": size,
                "stream": stream,
                "time_us": self._now,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": pool,
                "frames": self._stack,
            }
        )
        is_tensor = action in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM)
        self.labels.append(self._label if is_tensor else Label())

    def _interned(self, keys: tuple[FrameKey, ...]) -> list[dict[str, Any]]:
        """One list per stack and one dict per frame, as torch shares them; else files explode."""
        if keys not in self._stacks:
            self._stacks[keys] = [self._frame_dict(key) for key in keys]
        return self._stacks[keys]

    def _frame_dict(self, key: FrameKey) -> dict[str, Any]:
        name, filename, line = key
        return self._frame_dicts.setdefault(key, {"filename": filename, "line": line, "name": name})

    def _segment(self, head: Block) -> dict[str, Any]:
        blocks = list(_chain(head))
        live = [block for block in blocks if block.in_use]
        return {
            "device": 0,
            "address": head.address,
            "total_size": sum(block.size for block in blocks),
            "allocated_size": sum(block.size for block in live),
            "active_size": sum(block.size for block in live),
            "requested_size": sum(block.requested for block in live),
            "stream": head.stream,
            "segment_type": "small" if head.pool.is_small else "large",
            "segment_pool_id": head.pool.owner.id,
            "is_expandable": False,
            "frames": [],
            "blocks": [self._block(block) for block in blocks],
        }

    def _block(self, block: Block) -> dict[str, Any]:
        stack, label = self._live.get(block.address, ([], Label()))
        self.block_labels.append(label)
        return {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested if block.in_use else 0,
            "state": "active_allocated" if block.in_use else "inactive",
            "frames": stack,
        }

    @contextmanager
    def frame(self, name: str, filename: str, line: int) -> Iterator[None]:
        self._frames.append((name, filename, line))
        yield
        self._frames.pop()

    @contextmanager
    def nested(self, name: str, filename: str, lines: tuple[int, ...]) -> Iterator[None]:
        """A function that calls itself, one line number for each level."""
        with ExitStack() as stack:
            for line in lines:
                stack.enter_context(self.frame(name, filename, line))
            yield

    @contextmanager
    def call(self, module: str) -> Iterator[None]:
        """What torch puts between a module's caller and its `forward`."""
        with (
            self.module(module),
            self.frame("_wrapped_call_impl", _MODULE, 1775),
            self.frame("_call_impl", _MODULE, 1786),
        ):
            yield

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        self._modules.append(name)
        yield
        self._modules.pop()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        before, self._phase = self._phase, phase
        yield
        self._phase = before

    @contextmanager
    def autograd_thread(self) -> Iterator[None]:
        """A thread of its own: none of the script's frames are below it."""
        before, self._frames = self._frames, list(_AUTOGRAD)
        yield
        self._frames = before

    @contextmanager
    def node(self, name: str) -> Iterator[None]:
        with self.frame(f"torch::autograd::generated::{name}::apply(std::vector<at::Tensor>&&)", "??", 0):
            yield

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        self._annotate(name, "START")
        yield
        self._annotate(name, "END")

    def _annotate(self, name: str, stage: str) -> None:
        self._now += self._random.randrange(2, 9)
        self.annotations.append({"name": name, "stage": stage, "device": 0, "time_us": self._now})


def _chain(block: Block | None) -> Iterator[Block]:
    while block is not None:
        yield block
        block = block.next
