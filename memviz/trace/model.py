"""The columnar model of recordings: a Trace is one recording, with a DeviceTrace for each device.

Everything is frozen and every array is read-only. A Trace is made only by a reader (later also by a
recorder, a predictor or a replay), checked there once, and trusted afterwards. What it *means* is
computed in `memviz.analysis`; nothing here is filled in later.

Bytes and addresses are int64, times are µs since the epoch. Addresses of 2**63 and above (Intel GPUs
hand them out) are kept in two's complement, so that arithmetic stays in one integer type;
`address_text` undoes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Bytes1 = npt.NDArray[np.uint8]
Ints4 = npt.NDArray[np.int32]
Ints8 = npt.NDArray[np.int64]

NO_STACK = -1
FREE_UNKNOWN = -1
"""Value for an OOM event without the driver's free memory."""
EMPTY_TEXT = 0
DEFAULT_POOL = (0, 0)


class Action(IntEnum):
    """Kind of an event. Values from OTHER on are unknown actions, named in `Trace.other_actions`."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    ANNOTATE = 9
    OTHER = 64


ACTION_NAMES: dict[str, Action] = {a.name.lower(): a for a in Action if a is not Action.OTHER}
_NAMES = tuple(ACTION_NAMES)
"""Names by value: an `Action` made of each event would take most of the time of writing a file."""


class State(IntEnum):
    """State of a block at the end. The two pending spellings are PyTorch's own (code and docstring)."""

    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_PENDING_FREE = 2
    ACTIVE_AWAITING_FREE = 3


class Stage(IntEnum):
    START = 0
    END = 1


class Category(IntEnum):
    """Purpose of a tensor. UNKNOWN is an answer, not a failure."""

    UNKNOWN = 0
    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4
    TEMPORARY = 5
    INPUT = 6
    OUTPUT = 7
    WORKSPACE = 8
    KV_CACHE = 9
    """Keys and values of tokens that came before."""
    COLLECTIVE = 10
    """A buffer through which GPUs exchange tensors."""
    GRAPH_POOL = 11
    """Kept by a CUDA graph for its replays."""
    HOST_COPY = 12
    """Pinned memory of the host, from which and into which a GPU copies."""
    AUTOCAST_WEIGHT_COPIES = 13
    """Weights in half precision, which autocast keeps until its region ends and autograd until the backward."""
    WEIGHT_COPIES = 14
    """A second copy of the weights that no backward trains: an average, a teacher, a reference model."""

    @property
    def label(self) -> str:
        return "KV cache" if self is Category.KV_CACHE else self.name.lower().replace("_", " ")


class Phase(IntEnum):
    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    STEP = 3


GRAPH_SUFFIX = " (autograd graph)"
"""End of the name of a holder whose graph keeps a tensor."""


class HolderKind(IntEnum):
    """Kinds of references that keep the storage of a tensor alive."""

    VARIABLE = 0
    ATTRIBUTE = 1
    CONTAINER = 2
    CLOSURE = 3
    HOOK = 4
    AUTOGRAD_GRAPH = 5
    EXCEPTION = 6
    NOTEBOOK_OUTPUT = 7
    UNCOLLECTED_CYCLE = 8
    OUTSIDE_PYTHON = 9

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


_TYPES = {"Bools": np.bool_, "Bytes1": np.uint8, "Ints4": np.int32, "Ints8": np.int64}


@dataclass(frozen=True, eq=False)
class Columns:
    """Parallel arrays of one length. Compared by value, because tests compare whole results."""

    def __post_init__(self) -> None:
        lengths = set()
        for name, column in self.columns():
            column.setflags(write=False)
            lengths.add((name, len(column)))
        if len({length for _, length in lengths}) > 1:
            raise ValueError(f"columns of {type(self).__name__} differ in length: {sorted(lengths)}")

    @classmethod
    def typed(cls, *columns: npt.ArrayLike) -> Self:
        """Return the columns in the order of the fields, each in its field's type."""
        types = [_TYPES[str(column.type)] for column in fields(cls)]
        return cls(*(np.asarray(column).astype(kind, copy=False) for column, kind in zip(columns, types, strict=True)))

    @classmethod
    def empty(cls) -> Self:
        return cls.typed(*[()] * len(fields(cls)))

    @classmethod
    def concatenated(cls, parts: Sequence[Self]) -> Self:
        names = [column.name for column in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def columns(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        for column in fields(self):
            yield column.name, getattr(self, column.name)

    def select(self, rows: slice | npt.NDArray[Any]) -> Self:
        """Return these rows: indices that are not negative, or a mask."""
        return type(self)(**{name: column[rows] for name, column in self.columns()})

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Columns):
            return NotImplemented
        pairs = zip(self.columns(), other.columns(), strict=True)
        return all(np.array_equal(mine, theirs) for (_, mine), (_, theirs) in pairs)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Events(Columns):
    """In the order recorded."""

    action: Bytes1
    address: Ints8
    """Address of the block or segment; for OOM the driver's free bytes, as in PyTorch: see `driver_free`."""
    size: Ints8
    """Requested bytes for alloc and free, the segment's or mapping's for segment_*, rounded bytes for OOM."""
    stream: Ints4
    """Index into `Trace.streams`."""
    time_us: Ints8
    """0 where the file has no times (torch before 2.2)."""
    stack: Ints4
    """Index into `Trace.stacks`, or NO_STACK."""
    forward_stack: Ints4
    """Stack of the forward operator that a backward allocation belongs to, or NO_STACK."""
    context: Ints4
    """Text of `compile_context`."""
    metadata: Ints4
    """Text that the user attached."""
    pool: Ints4
    """Index into `Trace.pools`."""


@dataclass(frozen=True, eq=False)
class Segments(Columns):
    """Reserved at the end, by address. An expandable segment has one row per mapped range."""

    address: Ints8
    size: Ints8
    stream: Ints4
    pool: Ints4
    is_large: Bools
    is_expandable: Bools
    stack: Ints4


@dataclass(frozen=True, eq=False)
class Blocks(Columns):
    """Blocks of all segments at the end, without gaps, ordered by segment, then address."""

    segment: Ints4
    address: Ints8
    size: Ints8
    requested: Ints8
    """0 for an inactive block: what the file says there is stale."""
    state: Bytes1
    stack: Ints4


@dataclass(frozen=True, eq=False)
class Annotations(Columns):
    """`record_function` ranges, as recorded: not every START has its END."""

    name: Ints4
    stage: Bytes1
    time_us: Ints8


@dataclass(frozen=True, eq=False)
class BlockRows(Columns):
    """Blocks of one segment as a reader decoded them, in the order of the file. No trace holds them."""

    address: Ints8
    size: Ints8
    requested: Ints8
    state: Ints4
    """Its name, as a text."""
    stack: Ints4


@dataclass(frozen=True, eq=False)
class AnnotationRows(Columns):
    """Annotations as a reader decoded them, of all devices. No trace holds them."""

    name: Ints4
    stage: Ints4
    """Its name, as a text."""
    device: Ints8
    time_us: Ints8


@dataclass(frozen=True, eq=False)
class Labels(Columns):
    """Labels that memviz's own runs record for each event's tensor, or each final block's. See Category and Phase."""

    category: Bytes1
    module: Ints4
    """Text of the module's path."""
    phase: Bytes1


@dataclass(frozen=True, eq=False)
class Holders(Columns):
    """Holders of allocations at marked moments, in order of moments; a row for each new or changed holder."""

    event: Ints8
    """How many events came before the moment."""
    address: Ints8
    kind: Bytes1
    """A HolderKind."""
    owner: Ints4
    """Text by which holders are grouped: a variable of the program, such as `losses`."""
    chain: Ints4
    """Text of the path from the variable to the tensor."""
    place: Ints4
    """Text of the line that stores it, such as `train.py:41`; empty where none is known."""


@dataclass(frozen=True, eq=False)
class HostBytes(Columns):
    """Host memory of the process over the events of a device, in order; each row holds until the next one."""

    event: Ints8
    """How many events came before."""
    total: Ints8
    """Bytes of CPU tensors in a prediction, pinned ones included; resident size of the process in a recording."""
    pinned: Ints8
    """Blocks of torch's pinned allocator."""
    requested: Ints8
    """Bytes of the tensors in those blocks; 0 where unknown."""
    loaded: Ints8
    """Bytes of CPU tensors that `torch.load` or safetensors made; 0 where unknown."""

    def thinned(self, stretch: Ints8) -> Self:
        """Keep the highest and the last row of each stretch of rows, given by its number."""
        last = np.append(stretch[1:] != stretch[:-1], True)[: len(stretch)]
        highest = np.lexsort((self.total, stretch))[last]
        return self.select(np.unique(np.concatenate([highest, np.flatnonzero(last)])))

    def moved(self, source: Ints8) -> Self:
        """Return it over other events, of which each comes from one of these."""
        return replace(self, event=np.searchsorted(np.maximum.accumulate(source), self.event))


@dataclass(frozen=True, eq=False)
class Purposes(Columns):
    """Inferred purpose of each event's tensor, or of each final block's."""

    category: Bytes1
    certainty: Bytes1
    """How sure that is: a Certainty of `analysis.purpose`."""
    phase: Bytes1
    is_known: Bools
    """False where it had no tensor to look at, as of a request that failed."""


@dataclass(frozen=True, eq=False)
class Spans(Columns):
    phase: Bytes1
    step: Ints4
    first: Ints8
    """Event."""

    def moved(self, source: Ints8) -> Self:
        """Return them over other events, of which each comes from one of these, without those that begin behind all."""
        first = np.searchsorted(np.maximum.accumulate(source), self.first)
        return replace(self, first=first).select(first < len(source))


@dataclass(frozen=True)
class TakenOver:
    """Purposes and phases of the original recording, kept for its edited requests, whose stacks would mislead."""

    events: Purposes
    blocks: Purposes
    spans: Spans


@dataclass(frozen=True)
class DeviceTrace:
    """One device's history and its state at the end."""

    device: int
    kind: Literal["gpu", "host"]
    """`host` is pinned memory, which torch records apart from 2.14 on."""
    events: Events
    segments: Segments
    blocks: Blocks
    annotations: Annotations
    event_labels: Labels | None = None
    block_labels: Labels | None = None
    taken_over: TakenOver | None = None
    holders: Holders | None = None
    host: HostBytes | None = None
    is_timed: bool = True
    """False where no clock ran: the times of a prediction count its events, and say nothing but their order."""

    def __hash__(self) -> int:
        return id(self)

    @property
    def name(self) -> str:
        return f"{self.device}" if self.kind == "gpu" else f"host{self.device}"

    @property
    def labels(self) -> list[Labels]:
        return [labels for labels in (self.event_labels, self.block_labels) if labels is not None]


@dataclass(frozen=True, eq=False)
class Frames(Columns):
    name: Ints4
    filename: Ints4
    line: Ints4
    """0 for none."""


@dataclass(frozen=True, eq=False)
class Stacks:
    """Interned call stacks: stack `i` is `indices[offsets[i]:offsets[i + 1]]`, innermost frame first."""

    frames: Frames
    offsets: Ints8
    indices: Ints4
    """Into `frames`."""

    def __post_init__(self) -> None:
        self.offsets.setflags(write=False)
        self.indices.setflags(write=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stacks):
            return NotImplemented
        same = np.array_equal(self.offsets, other.offsets) and np.array_equal(self.indices, other.indices)
        return same and self.frames == other.frames

    __hash__ = None  # type: ignore[assignment]

    def of(self, stack: int) -> Ints4:
        """Frame numbers of one stack; empty for NO_STACK."""
        if stack < 0:
            return self.indices[:0]
        return self.indices[self.offsets[stack] : self.offsets[stack + 1]]


@dataclass(frozen=True)
class About:
    """Origin of a Trace; every view shows it."""

    origin: Literal["measured", "predicted", "replayed"]
    on: str = ""
    """The device or the settings: 'NVIDIA H200', 'expandable_segments:True'. Foreign files do not say."""
    source: str = ""
    """The file's own name, never its folder."""
    format: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Other facts written by memviz's own runs: model, command, versions."""

    @property
    def label(self) -> str:
        """'measured', 'predicted for NVIDIA H200', 'replayed with expandable_segments:True'."""
        joint = {"measured": "on", "predicted": "for", "replayed": "with"}[self.origin]
        return f"{self.origin} {joint} {self.on}" if self.on else self.origin


ESTIMATE_CODE = "estimate"
"""Code of the note that marks a trace as an estimate."""


@dataclass(frozen=True)
class Note:
    """Something the reader must know about this Trace, in plain words, with what to do."""

    code: str
    text: str
    remedy: str = ""
    level: Literal["info", "warning"] = "info"
    device: str = ""
    """Which one it is about; empty where it is about the whole trace."""


@dataclass(frozen=True, eq=False)
class Trace:
    devices: tuple[DeviceTrace, ...]
    stacks: Stacks
    strings: tuple[str, ...]
    """Every text once; 0 is the empty one."""
    streams: tuple[int, ...]
    """Stream handles; 0 is the default stream."""
    pools: tuple[tuple[int, int], ...]
    other_actions: tuple[str, ...]
    settings: Mapping[str, Any]
    """`allocator_settings` as the file has them; empty where it has none."""
    about: About
    notes: tuple[Note, ...] = ()
    """Notes of the reader; those of the analysis are in `analysis.health`."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return all(getattr(self, column.name) == getattr(other, column.name) for column in fields(self))

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def event_count(self) -> int:
        return sum(len(device.events) for device in self.devices)

    @property
    def is_estimate(self) -> bool:
        """The requests of a recording, edited and replayed."""
        return any(note.code == ESTIMATE_CODE for note in self.notes)

    def action_name(self, code: int) -> str:
        if code >= Action.OTHER:
            return self.other_actions[code - Action.OTHER]
        return _NAMES[code]


def driver_free(events: Events, event: int) -> int | None:
    """Return the driver's free bytes at an OOM event, for all programs together, or None if the file omits them."""
    free = int(events.address[event])
    return None if free == FREE_UNKNOWN else free


def address_text(address: int) -> str:
    return f"0x{address & 0xFFFFFFFFFFFFFFFF:x}"


Rows = TypeVar("Rows", bound=Columns)


def take_rows(columns: Rows, rows: Ints8) -> Rows:
    """Rows below zero are none."""
    known = rows >= 0
    made = {name: np.zeros(len(rows), dtype=column.dtype) for name, column in columns.columns()}
    for name, column in columns.columns():
        made[name][known] = column[rows[known]]
    return type(columns)(**made)


def first_or_second(is_first: Bools, first: Rows, second: Rows) -> Rows:
    pairs = zip(first.columns(), second.columns(), strict=True)
    return type(first)(**{name: np.where(is_first, mine, theirs) for (name, mine), (_, theirs) in pairs})


def reserved_after(device: DeviceTrace) -> Ints8:
    """Row 0 is before the first event."""
    action, size = device.events.action, device.events.size
    after = np.zeros(len(action) + 1, dtype=np.int64)
    grows = np.flatnonzero((action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP))
    after[grows + 1] = size[grows]
    shrinks = np.flatnonzero((action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP))
    after[shrinks + 1] = -size[shrinks]
    np.cumsum(after, out=after)
    # Never less than nothing, even where a file has events but no final segments, or contradicts itself.
    after += max(int(device.segments.size.sum() - after[-1]), -int(after.min()))
    return after


def is_reserved_known(live_bytes: int, reserved_bytes: int) -> bool:
    """Return True unless live bytes exist without reserved ones: such a file records no reserved memory."""
    return bool(reserved_bytes) or not live_bytes


class HasTrace(Protocol):
    """A result that carries the trace that it was made from, or of."""

    @property
    def trace(self) -> Trace | None: ...
