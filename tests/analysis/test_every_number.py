"""Every number in a sentence of a finding, counted a second time in plain Python from the raw events.

The bytes that a finding names are its rows'; that those rows are what the sentence calls them is tested beside it.
"""

import gzip
import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.analysis.lifetimes import lifetimes
from memviz.units import bytes_text, count_text, percent_text
from tests.real import read_once, real_files, slow_if_large

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "sample_traces").glob("*.pickle.gz"))
NUMBER = re.compile(r"\d[\d,.]*(?: (?:B|KiB|MiB|GiB|%))?")
NAMES_WITH_NUMBERS = re.compile(r"[\w<>\[\]]+(?:\.[\w<>\[\]]+)*:\d+|\w*[A-Za-z#]\d+\b|step \d+")
"""Lines of code, names of operators and of steps."""
NEARLY_ALL = 0.9
UNSPLIT = 1 << 20
"""A large block keeps a rest of up to this size."""


@dataclass
class Block:
    """One allocation of the raw file; `end` is the event that frees it, or the number of events."""

    address: int
    size: int
    start: int
    end: int
    requested_free: int

    def is_live_after(self, event: int) -> bool:
        return self.start <= event < self.end


@dataclass
class Raw:
    """A device's events and last segments as the file has them."""

    events: list[dict[str, Any]]
    segments: list[dict[str, Any]]
    blocks: dict[tuple[int, int], Block] = field(default_factory=dict)
    """Keys are address and event of the alloc, -1 where that was before the first event."""

    def __post_init__(self) -> None:
        last = len(self.events)
        open_until: dict[int, Block] = {}
        for segment in self.segments:
            for block in _blocks_of(segment):
                open_until[block.address] = block
                block.end = block.requested_free = last
        for number in range(last - 1, -1, -1):
            event = self.events[number]
            action, address = event["action"], event.get("addr")
            if action == "free_completed":
                open_until[address] = Block(address, event["size"], -1, number, number)
            elif action == "free_requested" and address in open_until:
                open_until[address].requested_free = min(number, open_until[address].requested_free)
            elif action == "alloc":
                block = open_until.pop(address)
                block.start, block.size = number, event["size"]
                self.blocks[address, number] = block
        self.blocks |= {(block.address, -1): block for block in open_until.values()}

    def live(self, blocks: Iterator[Block] | None = None) -> list[int]:
        """Bytes live after each event, before the first one last: `live[-1]`."""
        change = [0] * (len(self.events) + 2)
        for block in self.blocks.values() if blocks is None else blocks:
            change[block.start] += block.size
            change[block.end] -= block.size
        total, line = change[-1], []
        for number in range(len(self.events)):
            total += change[number]
            line.append(total)
        return [*line, change[-1]]

    def reserved_after(self, event: int) -> int:
        total = sum(segment["total_size"] for segment in self.segments)
        for later in self.events[event + 1 :]:
            total -= later["size"] * (later["action"] in ("segment_alloc", "segment_map"))
            total += later["size"] * (later["action"] in ("segment_free", "segment_unmap"))
        return total

    def segment_around(self, address: int, event: int) -> tuple[int, int]:
        """Address and size of the segment in which an address lies after an event."""
        there = {segment["address"]: segment["total_size"] for segment in self.segments}
        for later in reversed(self.events[event + 1 :]):
            if later["action"] == "segment_alloc":
                there.pop(later["addr"])
            elif later["action"] == "segment_free":
                there[later["addr"]] = later["size"]
        return next((start, size) for start, size in there.items() if start <= address < start + size)


def _blocks_of(segment: dict[str, Any]) -> Iterator[Block]:
    address = segment["address"]
    for block in segment["blocks"]:
        begin = block.get("address", address)
        if block["state"] != "inactive":
            size = block.get("requested_size", block["size"])
            if block.get("history"):
                size = block["history"][0]["real_size"]
            yield Block(begin, size, -1, -1, -1)
        address = begin + block["size"]


@cache
def raw(path: Path, device: int) -> Raw:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = pickle.load(file)
    segments = [segment for segment in content["segments"] if segment.get("device", 0) == device]
    return Raw(content["device_traces"][device], segments)


def of_activations(finding: Finding, file: Raw, blocks: list[Block]) -> list[str]:
    live = file.live()
    assert all(block.is_live_after(finding.event) for block in blocks)
    size, peak = sum(block.size for block in blocks), max(live)
    assert live[finding.event] == peak
    expected = [bytes_text(size), percent_text(size, peak)]
    if "layers" in finding.sentence:
        layers, in_layers = layers_of(sorted(blocks, key=lambda block: block.start), file)
        expected += [bytes_text(in_layers), count_text(layers)]
    return expected


def layers_of(blocks: list[Block], file: Raw) -> tuple[int, int]:
    """The largest number of which nearly all repeated sizes (each with its stack) come a multiple of times, and the
    bytes from the first to the last of them."""
    kinds: dict[Any, list[Block]] = defaultdict(list)
    for block in blocks:
        kinds[block.size, str(file.events[block.start].get("frames"))].append(block)
    bytes_in: dict[int, int] = defaultdict(int)
    for same in kinds.values():
        for divisor in range(2, len(same) + 1):
            bytes_in[divisor] += sum(block.size for block in same) * (len(same) % divisor == 0)
    layers = max(divisor for divisor, size in bytes_in.items() if size >= NEARLY_ALL * max(bytes_in.values()))
    starts = [block.start for same in kinds.values() if len(same) % layers == 0 for block in same]
    return layers, sum(block.size for block in blocks if min(starts) <= block.start <= max(starts))


def of_temporary(finding: Finding, file: Raw, blocks: list[Block]) -> list[str]:
    own = file.live(iter(blocks))
    without = [all_ - of_these for all_, of_these in zip(file.live(), own, strict=True)]
    there = [block for block in blocks if block.is_live_after(finding.event)]
    count = [count_text(len(there))] if len(there) > 1 else []
    return [*count, bytes_text(max(block.size for block in there)), bytes_text(max(file.live()) - max(without))]


def of_pools(finding: Finding, file: Raw, blocks: list[Block]) -> list[str]:
    private = [segment for segment in file.segments if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)]
    pools = {tuple(segment["segment_pool_id"]) for segment in private}
    live = sum(block.size for segment in private for block in _blocks_of(segment))
    return [
        bytes_text(sum(segment["total_size"] for segment in private)),
        *([count_text(len(pools))] if len(pools) > 1 else []),
        bytes_text(live),
    ]


def of_pins(finding: Finding, file: Raw, blocks: list[Block]) -> list[str]:
    idle = unsplit = 0
    segments = {file.segment_around(block.address, finding.event) for block in blocks}
    for start, size in segments:
        inside = [
            block
            for block in file.blocks.values()
            if block.is_live_after(finding.event) and start <= block.address < start + size
        ]
        idle += size - sum(-(-block.size // 512) * 512 for block in inside)
        unsplit += UNSPLIT * len(inside)
    assert idle - unsplit <= finding.bytes <= idle
    together = [bytes_text(sum(block.size for block in blocks))]
    return [
        bytes_text(finding.bytes),
        count_text(len(segments)),
        bytes_text(file.reserved_after(finding.event)),
        *([count_text(len(blocks))] if len(blocks) > 1 else []),
        *together,
    ]


def of_kept(finding: Finding, file: Raw, blocks: list[Block]) -> list[str]:
    """The largest group whose frees no alloc lies between."""
    groups: dict[tuple[int, int], int] = defaultdict(int)
    steps = [number for number, event in enumerate(file.events) if event["action"] == "alloc"]
    for block in blocks:
        groups[sum(number < block.requested_free for number in steps), block.start // max(len(file.events), 1)] += (
            block.size
        )
    places = re.findall(r"at (\d+) places", finding.sentence)
    return [bytes_text(max(groups.values())), *places]


def of_copies(finding: Finding, file: Raw, blocks: list[Block]) -> list[str]:
    wide = [
        block
        for block in blocks
        if any(2 * other.size == block.size and other.is_live_after(block.start) for other in blocks)
    ]
    return [bytes_text(max(file.live(iter(wide))))]


def of_failure(finding: Finding, file: Raw, blocks: list[Block]) -> list[str]:
    failed = [number for number, event in enumerate(file.events) if event["action"] == "oom"]
    event = file.events[failed[-1]]
    live, reserved = file.live()[failed[-1]], file.reserved_after(failed[-1])
    requested, free = event["size"], event["device_free"] if "device_free" in event else event["addr"]
    missing = requested - (reserved - live) - free
    largest = sum(block.size for block in blocks)
    return [
        count_text(failed[-1]),
        *([count_text(len(failed))] if len(failed) > 1 else []),
        *map(bytes_text, (requested, live, reserved - live, free)),
        bytes_text(missing if missing > 0 else requested),
        *((bytes_text(largest), percent_text(largest, live)) if "Largest category" in finding.sentence else ()),
    ]


COUNTED: dict[FindingKind, Callable[[Finding, Raw, list[Block]], list[str]]] = {
    FindingKind.ACTIVATIONS: of_activations,
    FindingKind.LARGE_TEMPORARY: of_temporary,
    FindingKind.PRIVATE_POOLS: of_pools,
    FindingKind.PINNED_SEGMENTS: of_pins,
    FindingKind.KEPT_TOO_LONG: of_kept,
    FindingKind.WIDER_COPIES: of_copies,
    FindingKind.OUT_OF_MEMORY: of_failure,
}


@pytest.mark.parametrize("path", slow_if_large([*SAMPLES, *real_files()], "name"))
def test_every_number_in_a_sentence_is_counted_again(path):
    trace = read_once(path)
    for device in trace.devices:
        for finding in findings(trace, device):
            file = raw(path, device.device)
            rows = lifetimes(device)
            chosen = zip(rows.address[finding.rows].tolist(), rows.start[finding.rows].tolist(), strict=True)
            blocks = [file.blocks[address, start] for address, start in chosen]
            said = [text.rstrip(",.") for text in NUMBER.findall(NAMES_WITH_NUMBERS.sub("", finding.sentence))]
            assert said == COUNTED[finding.kind](finding, file, blocks), finding.sentence
