"""Bills of a process: what nvidia-smi would show on its card, line by line, and its host memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from memviz.allocator.context import (
    HOPPER,
    LINALG_AND_FFT_BYTES,
    MATH_LIBRARIES,
    NCCL_SOURCE,
    OUTSIDE_FACT,
    Communicator,
    communicators_of,
    context_on,
    libraries_of,
    nccl_bytes,
)
from memviz.analysis.timeline import has_reserved, timeline
from memviz.results.headline import Headline, and_list
from memviz.results.result import Result, Table, TableRow, named_fields
from memviz.trace.memviz_labels import CARD_FACT, WORLD_FACT, ChildMemory
from memviz.trace.model import DeviceTrace, Trace
from memviz.units import bytes_text, bytes_texts, whole_number

Basis = Literal["measured", "predicted", "replayed", "read", "estimated", "unknown"]
"""Origin of a line's bytes; `read` is in a file that memviz did not write."""

_WORKSPACES = "Reserved memory includes the workspaces of cuBLAS and cuDNN."
_OTHERS = (
    f"cuSOLVER and cuFFT where used ({bytes_text(LINALG_AND_FFT_BYTES)} on an H200) and libraries that allocate on "
    "their own, such as CuPy, DALI and RAPIDS"
)
_MATH_SOURCE = "handles and kernels, measured on an H200 with CUDA 13.0 and driver 580"
_OUTSIDE_NAME = "outside PyTorch"
_OUTSIDE = re.compile(r"(\d{1,4}): (\d{1,15}) to (\d{1,15}) bytes, ([^;]{1,200})")


@dataclass(frozen=True)
class BillLine:
    name: str
    least_bytes: int | None
    """None where it is unknown; the total does not have it then."""
    most_bytes: int | None
    basis: Basis
    source: str = ""

    @property
    def size_text(self) -> str:
        return interval_text(self.least_bytes, self.most_bytes)

    @property
    def text(self) -> str:
        return f"{self.size_text} {self.name} ({self.basis})"


@dataclass(frozen=True, repr=False)
class Bill(Result):
    """Lines that add up; those of unknown size are left out of the sum."""

    rows: tuple[BillLine, ...]

    @property
    def least_bytes(self) -> int:
        return sum(line.least_bytes or 0 for line in self.rows)

    @property
    def most_bytes(self) -> int:
        return sum(line.most_bytes or 0 for line in self.rows)

    @property
    def size_text(self) -> str:
        """The total, which leaves out unknown lines."""
        return interval_text(self.least_bytes, self.most_bytes)

    @property
    def unknown(self) -> str:
        """Sentence on the lines without a size; empty where there are none."""
        missing = [line.source or line.name for line in self.rows if line.most_bytes is None]
        return f" Not counted (unknown): {and_list(missing)}." if missing else ""

    @property
    def parts(self) -> str:
        return " + ".join(line.text for line in self.rows if line.most_bytes is not None)

    def as_json(self) -> dict[str, Any]:
        lines = [named_fields(line, "name", "least_bytes", "most_bytes", "basis", "source") for line in self.rows]
        return {**named_fields(self, "least_bytes", "most_bytes"), "lines": lines}

    def columns(self) -> Mapping[str, list[Any]]:
        names = ("name", "least_bytes", "most_bytes", "basis", "source")
        return {name: [getattr(line, name) for line in self.rows] for name in names}

    def table(self, most: int | None = None) -> Table:
        rows = (TableRow((line.size_text, line.basis), line.name) for line in self.rows[:most])
        return Table(("bytes", "basis", "memory"), tuple(rows))


@dataclass(frozen=True, repr=False)
class DeviceBill(Bill):
    """Memory of one process on a card at its peak."""

    card: str
    """Empty where no file says it; then the interval is that of all cards."""

    @property
    def headline(self) -> Headline:
        answer = f"nvidia-smi would show {self.size_text}{f' on {self.card}' if self.card else ''}."
        return Headline(answer, f"{self.parts}. {_WORKSPACES}{self.unknown}")

    @property
    def is_measured(self) -> bool:
        """True if the driver reported the memory of the process."""
        return any(line.basis == "measured" and line.name == _OUTSIDE_NAME for line in self.rows)

    @property
    def line(self) -> str:
        """For a list of figures in a terminal."""
        return f"{self.size_text} in nvidia-smi: {self.parts}"

    def as_json(self) -> dict[str, Any]:
        """Return `device_bill` of `summary --json` and `predict --json`."""
        return {"card": self.card, **super().as_json()}


@dataclass(frozen=True, repr=False)
class HostBill(Bill):
    """Host memory of one process at its peak, its child processes included."""

    @property
    def headline(self) -> Headline:
        return Headline(f"Host memory: {self.size_text} at the peak.", f"{self.parts}.{self.unknown}")


def interval_text(least: int | None, most: int | None) -> str:
    if least is None or most is None:
        return "unknown"
    return bytes_text(most) if least == most else " to ".join(bytes_texts(least, most))


def estimated_bill(
    reserved_bytes: int, basis: Basis, card: str, communicators: Counter[Communicator] | None = None
) -> DeviceBill:
    """Return the bill of a process that no driver measured."""
    return DeviceBill(
        (_reserved_line(reserved_bytes, basis), *_outside_lines(card, {}, communicators or Counter())), card
    )


def _reserved_line(size: int | None, basis: Basis) -> BillLine:
    return BillLine("reserved by PyTorch", size, size, "unknown" if size is None else basis)


def _outside_lines(
    card: str, facts: Mapping[str, str], communicators: Counter[Communicator], *, exchanges: bool = False
) -> tuple[BillLine, ...]:
    """`exchanges` says that the program calls NCCL, of whose communicators nothing may be known."""
    context, (least, most) = context_on(card, facts), MATH_LIBRARIES
    # The readings of contexts include both libraries; the lines add up to what was read. The two were measured on one
    # Hopper card; on others they may take less.
    least *= context is HOPPER
    alone = context.least_bytes - least, context.most_bytes - most
    source = f"{context.text}, cuBLAS and cuDNN included"
    lines = [
        BillLine("CUDA context", *alone, "estimated", source),
        BillLine("cuBLAS and cuDNN", least, most, "estimated", _MATH_SOURCE),
    ]
    if communicators:
        lines.append(_nccl_line(card, communicators))
    elif exchanges:
        lines.append(BillLine("NCCL", None, None, "unknown", "the file does not say how many ranks there are"))
    for name, size in libraries_of(facts).items():
        lines.append(BillLine(name, size, size, "unknown" if size is None else "read"))
    return (*lines, BillLine("other libraries", None, None, "unknown", _OTHERS))


def _nccl_line(card: str, communicators: Counter[Communicator]) -> BillLine:
    name = f"NCCL, {communicators.total()} communicator{'s' * (communicators.total() > 1)}"
    return BillLine(name, *nccl_bytes(communicators, card), "estimated", NCCL_SOURCE)


_DISTRIBUTED = "torch/distributed/distributed_c10d.py"


def _communicators(trace: Trace) -> tuple[Counter[Communicator], bool]:
    """Return the known communicators, and True if the program exchanges tensors between ranks.

    A recording without a list of them has at least that of all ranks; a prediction lists all.
    """
    facts, strings = trace.about.facts, trace.strings
    known, ranks = communicators_of(facts), whole_number(facts.get(WORLD_FACT, ""), _MOST_DIGITS) or 1
    # np.unique would load numpy.ma, which takes 18 ms.
    files = np.flatnonzero(np.bincount(trace.stacks.frames.filename)).tolist()
    exchanges = trace.about.origin != "predicted" and any(
        strings[code].replace("\\", "/").endswith(_DISTRIBUTED) for code in files
    )
    if not known and ranks > 1 and trace.about.origin == "measured":
        known[Communicator(ranks)] = 1
    return known, exchanges


_MOST_DIGITS = 6


def device_bill(trace: Trace, device: DeviceTrace, reserved: int | None = None) -> DeviceBill | None:
    """Return the bill of a device of a trace; None for memory of the host. `reserved` is its peak, where known."""
    if device.kind != "gpu":
        return None
    about, card = trace.about, card_of(trace)
    if reserved is None and has_reserved(device):
        reserved = timeline(device).reserved_peak_bytes
    basis: Basis = about.origin
    if basis == "measured" and not about.on:
        basis = "read"
    communicators, exchanges = _communicators(trace)
    rows = _OUTSIDE.finditer(about.facts.get(OUTSIDE_FACT, ""))
    outside = next((row for row in rows if int(row[1]) == device.device), None)
    if outside is None:
        beside = _outside_lines(card, about.facts, communicators, exchanges=exchanges)
    else:
        source = f"what the driver counts, less what PyTorch reserves then; {outside[4]}"
        known = [_nccl_line(card, communicators).text] if communicators else []
        known += [
            name if size is None else f"{bytes_text(size)} {name}" for name, size in libraries_of(about.facts).items()
        ]
        if known:
            source += f"; in it {and_list(known)}"
        beside = (BillLine(_OUTSIDE_NAME, int(outside[2]), int(outside[3]), "measured", source),)
    return DeviceBill((_reserved_line(reserved, basis), *beside), card)


def card_of(trace: Trace) -> str:
    """Return the card that a trace was recorded on or predicted for; empty where its file does not say it."""
    about = trace.about
    return about.facts.get(CARD_FACT, "") if about.origin == "replayed" else about.on


def host_bill(trace: Trace, device: DeviceTrace) -> HostBill | None:
    """Return the bill of host memory over the events of a device; None where nothing is known of it."""
    host = device.host
    if host is None:
        return None
    at = int(host.total.argmax())
    total, pinned = int(host.total[at]), int(host.pinned[at])
    # A replay keeps the host's memory as it was.
    basis: Basis = "measured" if device.is_timed else "predicted"
    children = children_line(ChildMemory.of(trace.about.facts), basis)
    if device.is_timed:
        rows = (BillLine("resident size of the process", total, total, basis, "sampled 20 times per second"),)
        return HostBill((*rows, *children))
    rest = BillLine("Python objects and libraries", None, None, "unknown")
    tensors = (
        BillLine("pageable CPU tensors", total - pinned, total - pinned, basis),
        BillLine("pinned CPU tensors", pinned, pinned, basis, "blocks of PyTorch's pinned allocator"),
    )
    return HostBill((*tensors, *children, rest))


def children_line(children: ChildMemory, basis: Basis) -> tuple[BillLine, ...]:
    """Return a line on the child processes, if there are any."""
    if not children.count:
        return ()
    size, count = children.bytes, children.count
    if basis == "measured":
        name = f"for {count} child process{'es' * (count > 1)}, data loader workers included"
        source = "unshared pages, sampled at most once per second"
        return (BillLine(name, size, size, "unknown" if size is None else "measured", source),)
    name = f"for {count} data loader worker{'s' * (count > 1)}"
    if size is None:
        return (BillLine(name, None, None, "unknown", "data loader workers, whose memory this system does not report"),)
    batches = bytes_text(children.batch_bytes)
    source = f"measured in the prediction's own workers, plus {batches} of prefetched batches"
    return (BillLine(name, size, size, "estimated", source),)
