"""A CUDA build of torch on a machine with cards: device names, properties, types, profilers, random generators."""

from __future__ import annotations

import importlib
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, Self
from uuid import NAMESPACE_URL, UUID, uuid5

import torch
from torch import Tensor

from memviz.predictor.assumptions import no_such_device, not_predicted, wrong_device_for_rank
from memviz.predictor.cards import KnownCard
from memviz.predictor.compat import Patches, StandIn, without_functions, without_modes
from memviz.predictor.group.ranks import GroupRank
from memviz.predictor.position import first_of_library

META = torch.device("meta")
"""Device of the meta tensors that represent those on the card. A program's own "meta" tensors are on no device."""
CUDA_0 = torch.device("cuda", 0)
"""Device of these tensors for the program."""


class _InThread(threading.local):
    chosen = 0
    """The current card."""
    used = 0
    """That of the last operator."""


class NamedDevices:
    """Cards of the machine: all of them are the process's own, but in a group each rank has one to itself."""

    def __init__(self, card: str, rank: GroupRank | None = None, cards: int = 1) -> None:
        self._card = card
        self._rank = rank
        self.count = cards if rank is None else rank.cards
        self.several = cards > 1
        self._own = tuple(torch.device("cuda", number) for number in (range(cards) if rank is None else (rank.card,)))
        self.here = _InThread()

    @property
    def own(self) -> torch.device:
        """The current card of this thread."""
        return self._own[self.here.chosen]

    def device(self, card: int) -> torch.device:
        """Return the device of one of the process's own cards, as the program knows it."""
        return self._own[card]

    def own_number(self, index: int) -> int:
        """Return the number of a machine's card among the process's own; those of other ranks are like its own."""
        return index if self.several else 0

    def card(self, value: Any = None) -> int:
        """Return the number of the named card among the process's own; None and 'cuda' are the current one."""
        self.check(value)
        if not self.several or value is None or value == "cuda":
            return self.here.chosen
        index = torch.device(value).index if type(value) is not int else value
        return self.here.chosen if index is None or index < 0 else index

    def meta(self, value: Any = None) -> torch.device:
        """Return the device of tensors on the named card; torch forgets its number when it makes one."""
        return torch.device("meta", self.card(value)) if self.several else META

    def choose(self, value: Any) -> int:
        """Let a card be the current one of this thread, and return the one that was."""
        before, self.here.chosen = self.own.index, self.card(value)
        return int(before)

    def is_own(self, value: Any, *, numbers: bool = False) -> bool:
        """Return whether a value names the card: 'cuda', 'cuda:0' or its number; another card is an error."""
        if isinstance(value, str):
            if not value.startswith("cuda"):
                return False
            number = value[5:]
            return value == "cuda" or value[4] == ":" and self._is_there(int(number) if number.isdigit() else 0)
        if type(value) is torch.device:
            return value.type == "cuda" and self._is_there(value.index or 0)
        return numbers and type(value) is int and self._is_there(value)

    @staticmethod
    def is_meta_device(value: Any) -> bool:
        """Return whether a value is `meta`, on which programs build what gets its memory later."""
        return type(value) is torch.device and value == META or isinstance(value, str) and value == "meta"

    def check(self, value: Any) -> None:
        """Check the device argument of a function; None is the current device."""
        self.is_own(value, numbers=True)

    def exists(self, index: int) -> bool:
        """Raise unless the machine has so many cards."""
        if index >= self.count:
            raise no_such_device(index, self._card, self.count)
        return True

    def _is_there(self, index: int) -> bool:
        if self.exists(index) and self._rank is not None and index != self._rank.card and index > 0:
            raise wrong_device_for_rank(index, self._rank.number, self._rank.card)
        return True


def on_card(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on the pretended card, without the answer that the program gets."""
    with without_functions():
        return tensor.is_meta


_RealGenerator: Any = torch._C.Generator
_FIRST_SEED = 67280421310721
"""Seed of a generator that was never seeded."""
_SEED_BITS = 64
IN_ORDER = "data shuffled with a generator of the card keep their order"


class CardGenerator(_RealGenerator):  # type: ignore[misc]
    """To torch a generator of the host; its attributes are those of the card's."""

    device = CUDA_0

    def __new__(cls, device: torch.device = CUDA_0) -> Self:
        made: Self = _RealGenerator.__new__(cls)
        return made

    def __init__(self, device: torch.device = CUDA_0) -> None:
        self._seed, self._offset, self.device = _FIRST_SEED, 0, device

    def manual_seed(self, seed: int) -> Self:
        self._seed, self._offset = int(seed) % (1 << _SEED_BITS), 0
        return self

    def seed(self) -> int:
        self.manual_seed(secrets.randbits(_SEED_BITS - 11))
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> Self:
        if offset % 4:
            raise RuntimeError("offset must be a multiple of 4")
        self._offset = int(offset)
        return self

    def get_state(self) -> Tensor:
        """Seed and offset, eight bytes each, on the host."""
        whole = self._seed.to_bytes(8, "little") + self._offset.to_bytes(8, "little")
        with without_functions():
            # Checkpoints call this each time.
            return torch.frombuffer(bytearray(whole), dtype=torch.uint8)

    def set_state(self, new_state: Tensor) -> Self:
        if new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() != 16:
            raise RuntimeError("RNG state is wrong size")
        whole = bytes(new_state.tolist())
        self._seed, self._offset = (int.from_bytes(part, "little") for part in (whole[:8], whole[8:]))
        return self

    def clone_state(self) -> CardGenerator:
        twin = type(self)(self.device)
        twin._seed, twin._offset = self._seed, self._offset
        return twin

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, new_state: CardGenerator) -> Self:
        self._seed, self._offset = new_state._seed, new_state._offset
        return self

    def __reduce__(self) -> Any:
        return _rebuild_generator, (self._seed, self._offset, self.device)


def _rebuild_generator(seed: int, offset: int, device: torch.device = CUDA_0) -> CardGenerator:
    return CardGenerator(device).manual_seed(seed).set_offset(offset)


class AnyGenerator(metaclass=StandIn):
    """In place of `torch.Generator`."""

    real = _RealGenerator
    named: ClassVar[NamedDevices]

    def __new__(cls, device: Any = "cpu") -> Any:
        named = cls.named
        is_own = named.is_own(device, numbers=True)
        return CardGenerator(named.device(named.card(device))) if is_own else _RealGenerator(device)


def follow_generators(patches: Patches, named: NamedDevices) -> Callable[[], None]:
    """Return the function that makes the card's generators; torch does so when CUDA is first used."""
    kind = type("Generator", (AnyGenerator,), {"named": named, "__module__": "torch"})
    patches.put(torch, "Generator", kind)
    patches.put(torch.cuda, "default_generators", ())

    def begin() -> None:
        card: Any = torch.cuda
        card.default_generators = tuple(CardGenerator(torch.device("cuda", card)) for card in range(named.count))

    return begin


def is_for_a_sampler() -> bool:
    """Return whether one of torch's samplers draws the order of its data."""
    frame = first_of_library()
    return frame is not None and Path(frame.f_code.co_filename).as_posix().endswith("torch/utils/data/sampler.py")


def check_generator(generator: Any, out_is_ours: bool) -> None:
    """Raise torch's error unless the generator is on the device of the result."""
    is_ours = isinstance(generator, CardGenerator)
    if is_ours != out_is_ours:
        wanted, given = ("cuda", "cpu") if out_is_ours else ("cpu", "cuda")
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{given}'")


_KiB, _MiB = 1 << 10, 1 << 20
_SHARED_MEMORY = {(7, 0): 96, (7, 5): 64, (8, 0): 164, (8, 6): 100, (8, 9): 100, (12, 0): 100}
"""KiB of a multiprocessor; later ones of data centres have 228."""
_L2 = {
    "NVIDIA L40S": 96,
    "NVIDIA GeForce RTX 5090": 96,
    "NVIDIA GeForce RTX 4090": 72,
    "NVIDIA RTX PRO 6000 Blackwell": 128,
}
"""MiB of second-level cache, where it is not that of most cards of its capability."""
_L2_OF_CAPABILITY = {(7, 0): 6, (7, 5): 4, (8, 0): 40, (8, 6): 6, (8, 9): 48, (9, 0): 50, (9, 4): 4, (10, 0): 126}
"""Later ones have 64."""


@dataclass(frozen=True)
class CardProperties:
    """Result of `torch.cuda.get_device_properties`, with torch's names."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    uuid: UUID
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    L2_cache_size: int
    max_threads_per_block: int = 1024
    warp_size: int = 32
    regs_per_multiprocessor: int = 65_536
    shared_memory_per_block: int = 48 * _KiB
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 1
    pci_device_id: int = 0
    pci_domain_id: int = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // _MiB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // _MiB}MB)"
        )


def properties_of(card: KnownCard) -> CardProperties:
    """Return the same properties for all cards of a kind; even the UUID is made from the name."""
    major, minor = card.capability
    shared = _SHARED_MEMORY.get(card.capability, 228) * _KiB
    return CardProperties(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.memory_bytes,
        multi_processor_count=card.multiprocessors,
        uuid=uuid5(NAMESPACE_URL, card.name),
        max_threads_per_multi_processor=card.threads_per_multiprocessor,
        shared_memory_per_multiprocessor=shared,
        shared_memory_per_block_optin=shared if major == 7 else shared - _KiB,
        L2_cache_size=_L2.get(card.name, _L2_OF_CAPABILITY.get(card.capability, 64)) * _MiB,
    )


_CUDA_VERSIONS = {6: "12.4", 7: "12.6", 8: "12.8", 9: "12.8", 10: "12.8"}
"""CUDA versions in pip's wheels, by the minor version of torch 2.x; later ones have 13.0."""
_CUDNN = {"12.4": 90100, "12.6": 90501, "12.8": 91002, "13.0": 91501}
_ARCHITECTURES = {"12": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", "13": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"}


class FakeMachine:
    """A machine with one card or several, unless the program hides them; in a group, with one card per process."""

    def __init__(self, card: KnownCard, named: NamedDevices) -> None:
        self.named = named
        self.sync_debug_mode = 0
        self.properties = properties_of(card)
        self.version = _CUDA_VERSIONS.get(int(str(torch.__version__).split(".")[1]), "13.0")
        self._process = os.getpid()

    @property
    def has_peers(self) -> bool:
        """True if cards reach the memory of one another; GeForce cards do not."""
        return self.named.several and "GeForce" not in self.properties.name

    @property
    def architectures(self) -> str:
        return _ARCHITECTURES[self.version.partition(".")[0]]

    def count(self) -> int:
        # Any other choice among the program's own cards is the pretended one.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = visible is not None and (not visible.strip() or visible.strip().startswith("-"))
        shown = len(visible.split(",")) if visible and self.named.several else self.named.count
        return 0 if hidden else min(shown, self.named.count)

    def begin(self) -> None:
        if not self.count():
            raise RuntimeError(
                "No CUDA GPUs are available: CUDA_VISIBLE_DEVICES hides the simulated one. Unset it, or set it to 0."
            )

    def is_in_fork(self) -> bool:
        """A child process cannot use the CUDA that its parent began."""
        return os.getpid() != self._process

    def exchange(self, device: int) -> int:
        """Make a card the current one, unless its number is negative, and return the one that was."""
        return self.named.choose(device) if device >= 0 else self.current()

    def current(self) -> int:
        index: int = self.named.own.index
        return index

    def get_properties(self, device: int) -> CardProperties:
        self.named.exists(device)
        return (
            self.properties
            if device <= 0
            else replace(
                self.properties, uuid=uuid5(NAMESPACE_URL, f"{self.properties.name} {device}"), pci_bus_id=1 + device
            )
        )

    def capability(self, device: int) -> dict[str, Any]:
        self.named.exists(device)
        return {"supported_dtypes": {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}}


class _CudaRuntime(SimpleNamespace):
    """Functions of `torch.cuda.cudart()`; the others take or share memory that PyTorch's allocator does not see."""

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        raise not_predicted(f"cudart.{name}", "memory outside PyTorch's allocator, managed or shared, is not counted")


def follow_machine(patches: Patches, machine: FakeMachine, mem_get_info: Callable[[int], tuple[int, int]]) -> None:
    # We use it; a build for CUDA would complain of what it misses, and a profile with stacks of its being imported.
    importlib.import_module("torch.utils.flop_counter")
    cuda: Any = torch.cuda
    without_effect = (
        *("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister"),
        *("cudaStreamCreate", "cudaStreamDestroy", "cudaDeviceSynchronize"),
    )
    runtime = _CudaRuntime(
        cudaError=IntEnum("cudaError", {"success": 0}),
        cudaGetErrorString=lambda code: "no error",
        cudaMemGetInfo=lambda device: mem_get_info(machine.named.card(device)),
        **dict.fromkeys(without_effect, lambda *args: 0),
    )
    patches.put_all(
        cuda,
        {
            "_initialized": False,
            "_queued_calls": list(cuda._queued_calls),
            "_cached_device_count": None,
            "_cudart": runtime,
            "_is_in_bad_fork": machine.is_in_fork,
            "_exchange_device": machine.exchange,
            "_maybe_exchange_device": machine.exchange,
            "_get_device_properties": machine.get_properties,
            "_device_count_nvml": lambda: -1,
            "has_magma": True,
        },
    )
    patches.put(torch.version, "cuda", machine.version)
    cudnn: Any = getattr(torch.backends.cudnn, "m", torch.backends.cudnn)
    patches.put(cudnn, "version", lambda: _CUDNN[machine.version])
    patches.put(cudnn, "is_acceptable", _cudnn_takes)
    patches.put(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    patches.put(torch.backends.cudnn.rnn, "get_cudnn_mode", lambda mode: mode)
    patches.put(torch, "_cudnn_rnn_flatten_weight", _flatten_weights)
    patches.put_all(torch.backends.cuda.cuFFTPlanCache, {"size": 0, "max_size": 4096})
    patches.put(torch, "_cufft_clear_plan_cache", lambda *args: None)


def _cudnn_takes(tensor: Tensor) -> bool:
    return torch.backends.cudnn.enabled and tensor.is_cuda and tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES


def _flatten_weights(weights: list[Tensor], *_: Any) -> Tensor:
    """Copy the weights of recurrent layers into one buffer, of which they are parts from then on."""
    flat = torch.zeros(sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device=weights[0].device)
    at = 0
    for weight in weights:
        part = flat[at : at + weight.numel()].view_as(weight)
        part.copy_(weight)
        weight.set_(part)  # type: ignore[call-overload]
        at += weight.numel()
    return flat


_TENSOR_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _CardType(type):
    dtype: torch.dtype
    layout: torch.layout

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor) and value.is_cuda and (value.dtype, value.layout) == (cls.dtype, cls.layout)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


class CardType(metaclass=_CardType):
    """A kind of tensors on the card; to call it makes one."""

    dtype: ClassVar[torch.dtype]
    layout: ClassVar[torch.layout] = torch.strided

    def __new__(cls, *args: Any, device: Any = None) -> Any:
        return _tensor_on_card(cls.dtype, args)


class SparseCardType(CardType):
    """Made of indices, values and a size, or of a size alone."""

    layout: ClassVar[torch.layout] = torch.sparse_coo

    def __new__(cls, *args: Any, device: Any = None) -> Any:
        parts = args if args and isinstance(args[0], Tensor) else (args,)
        return torch.sparse_coo_tensor(*parts, dtype=cls.dtype, device="cuda", check_invariants=False)


def _tensor_on_card(dtype: torch.dtype, args: Any) -> Tensor:
    """Make a tensor as torch's legacy constructors do: of sizes, of data, or with another's memory."""
    if not args or isinstance(args[0], int | torch.Size):
        size = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(size, dtype=dtype, device="cuda")
    if isinstance(args[0], Tensor) and args[0].is_cuda and args[0].dtype == dtype:
        return args[0].detach()
    return torch.tensor(args[0], dtype=dtype, device="cuda")


def cast_to_type(tensor: Tensor, kind: Any) -> Any:
    """`tensor.type(kind)`; NotImplemented where torch's own is right."""
    name = kind.__name__ if isinstance(kind, _CardType) else kind
    if isinstance(name, str) and name.removeprefix("torch.") in (f"cuda.{type_name}" for type_name in _TENSOR_TYPES):
        return tensor.to(META, _TENSOR_TYPES[name.rpartition(".")[2]])
    if isinstance(kind, _CardType):
        return tensor.to(META, kind.dtype)
    if isinstance(kind, str) and kind.startswith("torch.") and tensor.is_meta:
        return tensor.to("cpu", _TENSOR_TYPES[kind.rpartition(".")[2]])
    return NotImplemented


def follow_types(patches: Patches, named: NamedDevices) -> None:
    for module, base in ((torch.cuda, CardType), (torch.cuda.sparse, SparseCardType)):
        for name, dtype in _TENSOR_TYPES.items():
            kind = _CardType(name, (base,), {"dtype": dtype, "__module__": module.__name__})
            patches.put(module, name, kind)
    set_type: Any = torch.set_default_tensor_type
    card_types: list[bool] = []

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is Tensor:
            if card_types and not kwargs:
                return _tensor_on_card(torch.get_default_dtype(), args)
            return torch._C.TensorBase.__new__(cls, *args, **kwargs)
        # Within a mode torch makes a plain tensor first, which it cannot convert to the subclass.
        with without_modes():
            return torch._C.TensorBase.__new__(cls, *args, **kwargs)

    patches.put(Tensor, "__new__", staticmethod(new))

    def set_default_tensor_type(kind: Any) -> None:
        name = kind.__name__ if isinstance(kind, _CardType) else str(kind)
        if isinstance(kind, _CardType) or name.startswith("torch.cuda."):
            torch.set_default_dtype(_TENSOR_TYPES[name.rpartition(".")[2]])
            torch.set_default_device("cuda")
            card_types[:] = [True]
        else:
            card_types.clear()
            torch.set_default_device(None)
            set_type(kind)

    before = torch.get_default_dtype()
    patches.callback(torch.set_default_dtype, before)
    patches.put(torch, "set_default_tensor_type", set_default_tensor_type)
    _follow_default_device(patches, named)


def _follow_default_device(patches: Patches, named: NamedDevices) -> None:
    """torch keeps the default device below every mode, where the function mode does not see it."""
    set_device: Callable[[Any], None] = torch.set_default_device
    get_device: Callable[[], torch.device] = torch.get_default_device
    chosen: list[torch.device] = []

    def set_default_device(device: Any) -> None:
        ours = named.is_own(device, numbers=True)
        chosen[:] = [named.device(named.card(device))] if ours else []
        set_device(named.meta(device) if ours else device)

    def get_default_device() -> torch.device:
        return chosen[0] if chosen else get_device()

    patches.put(torch, "set_default_device", set_default_device)
    patches.put(torch, "get_default_device", get_default_device)
    patches.callback(lambda: set_device(None) if chosen else None)


def follow_profilers(patches: Patches) -> None:
    """Record host events only; ranges and markers go nowhere."""
    depth: list[None] = []

    def push(message: str, *rest: Any) -> int:
        depth.append(None)
        return len(depth) - 1

    def pop(*rest: Any) -> int:
        if depth:
            depth.pop()
        return len(depth)

    markers = ("rangeStartA", "rangeEnd", "markA", "deviceRangeStart", "deviceRangeEnd")
    ranges = SimpleNamespace(rangePushA=push, rangePop=pop, **dict.fromkeys(markers, lambda *args: 0))
    patches.put(torch.cuda.nvtx, "_nvtx", ranges)
    emits: Any = torch.autograd.profiler.emit_nvtx
    patches.put(emits, "__enter__", lambda self: self)
    patches.put(emits, "__exit__", lambda self, *error: False)
    begin: Any = torch.autograd.profiler.profile.__init__

    def init(self: Any, *args: Any, use_cuda: bool = False, use_device: str | None = None, **options: Any) -> None:
        if not use_cuda and use_device != "cuda":
            begin(self, *args, use_device=use_device, **options)
            return
        begin(self, *args, **{**options, "use_cpu": True})
        # Its tables have the card's columns then.
        self.use_device = "cuda"

    patches.put(torch.autograd.profiler.profile, "__init__", init)
