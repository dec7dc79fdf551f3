"""The allocator's settings: `PYTORCH_CUDA_ALLOC_CONF`, read and refused as PyTorch does, as one frozen value.

There are two readers. Up to 2.8 each colon and comma is demanded; from 2.9 on text is split at commas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from memviz.errors import UsageError
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.trace.reserved import LARGE_SEGMENT, MIN_LARGE_ALLOC, SLOTS, MiB

Release = tuple[int, int]
OLDEST: Release = (2, 0)
NEWEST: Release = (2, 15)
_SECOND_READER: Release = (2, 9)

_NAMED = re.compile(r"""\s*(?:export\s+)?(PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF)\s*=\s*(['"]?)(.*)\2\s*""", re.DOTALL)
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|inf|nan)", re.IGNORECASE)
_MOST_MIB = (2**64 - 1) // MiB
_MOST_REGISTER_THREADS = 128

SINCE: dict[str, Release] = {
    "max_split_size_mb": (1, 10),
    "garbage_collection_threshold": (1, 12),
    "roundup_power2_divisions": (1, 13),
    "backend": (2, 0),
    "expandable_segments": (2, 1),
    "release_lock_on_cudamalloc": (2, 1),
    "release_lock_on_hipmalloc": (2, 1),
    "pinned_use_cuda_host_register": (2, 1),
    "pinned_use_hip_host_register": (2, 1),
    "pinned_num_register_threads": (2, 1),
    "max_non_split_rounding_mb": (2, 6),
    "pinned_use_background_threads": (2, 6),
    "graph_capture_record_stream_reuse": (2, 9),
    "per_process_memory_fraction": (2, 10),
    "pinned_reserve_segment_size_mb": (2, 10),
    "large_segment_size_mb": (2, 11),
    "pinned_free_catch_all": (2, 12),
    "throw_on_cudamalloc_oom": (2, 12),
    "pinned_max_round_threshold_mb": (2, 13),
    "pinned_max_cached_size_mb": (2, 13),
    "expandable_segments_reserve": (2, 15),
    "expandable_segments_reserve_by_class": (2, 15),
}
"""The release in which each key first appears."""

_FRACTIONS: dict[str, tuple[Callable[[float], bool], str]] = {
    "garbage_collection_threshold": (
        lambda threshold: 0 < threshold < 1,
        "garbage_collect_threshold is invalid, set it in (0.0, 1.0)",
    ),
    "per_process_memory_fraction": (
        lambda fraction: 0 <= fraction <= 1,
        "per_process_memory_fraction is invalid, set it in [0.0, 1.0]",
    ),
}
_FLAGS = {"expandable_segments", "throw_on_cudamalloc_oom", "graph_capture_record_stream_reuse"}
_OTHER_FLAGS = {
    *("release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register"),
    *("pinned_use_hip_host_register", "pinned_use_background_threads", "pinned_free_catch_all"),
}
_OTHER_SIZES = {"pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"}


class _Reader:
    """Parser of the tokens, which returns the fields of `Settings`; `at` is the token read last, as in PyTorch."""

    def __init__(self, text: str, release: Release) -> None:
        self.tokens: list[str] = _TOKEN.findall(re.sub(r"\s+", "", text))
        self.release = release
        self.strict = release < _SECOND_READER
        self.at = -1
        self.values: dict[str, Any] = {}
        self.others: dict[str, str] = {}

    def read(self) -> dict[str, Any]:
        for place, token in enumerate(self.tokens):
            if token == "large_segment_size_mb" and self._exists(token):
                self.at = place
                self._expect_separator(":")
                size = self._read_whole_number()
                if size <= MIN_LARGE_ALLOC // MiB:
                    raise UsageError("CachingAllocator option large_segment_size_mb must be > 10 MB")
                self.values["large_segment_size"] = min(size, _MOST_MIB) * MiB
        if "large_segment_size" in self.values:
            self.values["max_non_split_rounding_size"] = self.values["large_segment_size"]
        self.at = -1
        while self.at + 1 < len(self.tokens):
            self._read_pair(self._next())
            if self.at + 1 < len(self.tokens):
                self._expect_separator(",")
        if self.others:
            self.values["others"] = tuple(self.others.items())
        return self.values

    def _read_pair(self, key: str) -> None:
        if not self._exists(key):
            if self.strict:
                raise UsageError(f"Unrecognized CachingAllocator option: {key}")
            raise UsageError(f"Unrecognized key '{key}' in CUDA allocator config.")
        self._expect_separator(":")
        match key:
            case "large_segment_size_mb":
                # It was read first.
                self._read_whole_number()
            case "max_split_size_mb":
                size = self._mib_of_at_least_a_segment(key)
                self.values["max_split_size"] = None if size >= _MOST_MIB else size * MiB
            case "max_non_split_rounding_mb":
                size = self._mib_of_at_least_a_segment(key)
                self.values["max_non_split_rounding_size"] = min(size, _MOST_MIB) * MiB
            case "backend":
                self.values[key] = name = self._next()
                if name not in ("native", "cudaMallocAsync", "hipMallocAsync"):
                    raise UsageError("Unknown allocator backend, options are native and cudaMallocAsync")
            case "expandable_segments_reserve":
                self.values[key] = self._next()
            case "roundup_power2_divisions":
                self.values[key] = self._read_divisions()
            case _ if key in _FRACTIONS:
                self.values[key] = self._read_fraction(*_FRACTIONS[key])
            case _ if key in _FLAGS:
                self.values[key] = self._read_flag(key)
            case _:
                self._read_other(key)

    def _exists(self, key: str) -> bool:
        return SINCE.get(key, (99, 0)) <= self.release

    def _read_other(self, key: str) -> None:
        first = self.at + 1
        if key in _OTHER_FLAGS:
            self._read_flag(key)
        elif key in _OTHER_SIZES:
            self._read_whole_number()
        elif key == "pinned_num_register_threads":
            threads = self._read_whole_number()
            got = "" if self.strict else f", got {threads}"
            if not _is_power_of_two(threads):
                raise UsageError(f"Number of register threads has to be power of 2{got}")
            if threads > _MOST_REGISTER_THREADS:
                limit = f"less than or equal to {_MOST_REGISTER_THREADS}"
                raise UsageError(f"Number of register threads should be {limit}{got}")
        elif key == "pinned_reserve_segment_size_mb":
            if self._read_whole_number() == 0:
                raise UsageError("Pinned reserve segment size has to be greater than 0")
        elif self._next() == "[":
            while self._next() != "]":
                pass
        self.others[key] = "".join(self.tokens[first : self.at + 1])

    def _mib_of_at_least_a_segment(self, key: str) -> int:
        least = self.values.get("large_segment_size", LARGE_SEGMENT) // MiB
        size = self._read_whole_number()
        if size < least:
            raise UsageError(f"CachingAllocator option {key} too small, must be >= {least}")
        return size

    def _read_divisions(self) -> tuple[int, ...]:
        if self._next() == "[":
            slots = [0] * SLOTS
            self._read_division_list(slots)
            return tuple(slots)
        self.at -= 1
        divisions = self._read_whole_number()
        if not _is_power_of_two(divisions):
            raise UsageError("For roundups, the divisions has to be power of 2 ")
        return (divisions,) * SLOTS

    def _read_division_list(self, slots: list[int]) -> None:
        last, first = 0, True
        while (key := self._next()) != "]":
            self._expect_separator(":")
            divisions = self._read_whole_number()
            if divisions and not _is_power_of_two(divisions):
                raise UsageError("For roundups, the divisions has to be power of 2 or 0 to disable roundup ")
            if key == ">":
                begin = last if self.strict else last + 1
                slots[begin:] = [divisions] * (SLOTS - begin)
            else:
                mebibytes = self._as_whole(key)
                if not _is_power_of_two(mebibytes):
                    raise UsageError("For roundups, the intervals have to be power of 2 ")
                last = min(mebibytes.bit_length() - 1, SLOTS - 1)
                # The first pair speaks for everything smaller too.
                slots[0 if first else last : last + 1] = [divisions] * (last + 1 if first else 1)
                first = False
            if self._peek() != "]":
                self._expect_separator(",")

    def _peek(self) -> str:
        if self.at + 1 >= len(self.tokens):
            after = f"after {self.tokens[-1]!r}" if self.tokens else "at the start"
            raise UsageError(f"The settings end {after}, where PyTorch expects more.")
        return self.tokens[self.at + 1]

    def _next(self) -> str:
        token = self._peek()
        self.at += 1
        return token

    def _expect_separator(self, expected: str) -> None:
        if self.at + 1 >= len(self.tokens) and not self.strict:
            self.at += 1
            return
        if self._next() != expected and self.strict:
            raise UsageError(f"Error parsing CachingAllocator settings, expected {expected}")

    def _read_flag(self, key: str) -> bool:
        token = self._next()
        if token not in ("True", "False"):
            if self.strict:
                raise UsageError(f"Expected a single True/False argument for {key}")
            raise UsageError(f"Expected 'True' or 'False' at index {self.at} in ConfigTokenizer but got '{token}'")
        return token == "True"

    def _read_whole_number(self) -> int:
        return self._as_whole(self._next())

    def _as_whole(self, token: str) -> int:
        """Parse as C++ does: leading digits only, and a negative number wraps around."""
        match = _WHOLE.match(token)
        function, largest = ("stoi", 2**31 - 1) if self.strict else ("stoull", 2**64 - 1)
        if not match:
            raise UsageError(f"{token!r} is not a whole number (PyTorch stops with {function!r}).")
        if abs(int(match[0])) > largest:
            raise UsageError(f"{token!r} is too large a number (PyTorch stops with {function!r}).")
        return int(match[0]) % 2**64

    def _read_fraction(self, is_valid: Callable[[float], bool], message: str) -> float:
        token = self._next()
        match = _REAL.match(token)
        if not match:
            raise UsageError(f"{token!r} is not a number (PyTorch stops with 'stod').")
        if not is_valid(float(match[0])):
            raise UsageError(message)
        return float(match[0])


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


_RELEASE = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")


def parse_release(text: str, oldest: tuple[int, int], newest: tuple[int, int]) -> tuple[int, int]:
    """Parse '2.6' as (2, 6); UsageError outside of these releases."""
    if not _RELEASE.fullmatch(text):
        raise UsageError(f"{text!r} is not a release; write for example 2.8.")
    major, _, minor = text.partition(".")
    release = int(major), int(minor)
    if not oldest <= release <= newest:
        first, last = (".".join(map(str, one)) for one in (oldest, newest))
        raise UsageError(f"torch {text} is not supported: use a release from {first} to {last}.")
    return release


_RESERVE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(g?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """Sizes are bytes. The defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    """Blocks of at least this are never split; None is PyTorch's "unlimited"."""
    large_segment_size: int = LARGE_SEGMENT
    max_non_split_rounding_size: int = LARGE_SEGMENT
    """Bytes by which a block of at least `max_split_size` may exceed the request it serves."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * SLOTS
    garbage_collection_threshold: float = 0.0
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    graph_capture_record_stream_reuse: bool = False
    expandable_segments_reserve: str = ""
    """Address space per expandable segment: a fraction of the card, or GiB as in '40G'. Empty: 9/8 of the card."""
    backend: str = "native"
    others: tuple[tuple[str, str], ...] = field(default=())
    """Settings that do not change the layout of device memory (pinned memory, locks), in the order written."""

    def to_text(self) -> str:
        """Return the value of the environment variable; empty where everything is PyTorch's default."""
        parts = [f"{key}:{value}" for key, value in self._written() if value != ""]
        return ",".join([*parts, *(f"{key}:{value}" for key, value in self.others)])

    def to_snapshot(self) -> dict[str, Any]:
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.to_text(),
            "max_split_size": -1 if self.max_split_size is None else self.max_split_size,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "roundup_power2_divisions": {str(1 << at): by for at, by in enumerate(self.roundup_power2_divisions)},
            "graph_capture_record_stream_reuse": self.graph_capture_record_stream_reuse,
        }

    def _written(self) -> list[tuple[str, str]]:
        return [
            ("backend", self.backend if self.backend != "native" else ""),
            ("expandable_segments", "True" if self.expandable_segments else ""),
            # PyTorch checks the two below against this one in any order; it is first for readers.
            ("large_segment_size_mb", _mib(self.large_segment_size, LARGE_SEGMENT)),
            ("max_split_size_mb", _mib(self.max_split_size, None)),
            ("max_non_split_rounding_mb", _mib(self.max_non_split_rounding_size, self.large_segment_size)),
            ("roundup_power2_divisions", _divisions_text(self.roundup_power2_divisions)),
            ("garbage_collection_threshold", _number_text(self.garbage_collection_threshold, 0.0)),
            ("per_process_memory_fraction", _number_text(self.per_process_memory_fraction, 1.0)),
            ("throw_on_cudamalloc_oom", "True" if self.throw_on_cudamalloc_oom else ""),
            ("graph_capture_record_stream_reuse", "True" if self.graph_capture_record_stream_reuse else ""),
            ("expandable_segments_reserve", self.expandable_segments_reserve),
        ]

    def address_space(self, card_bytes: int) -> int:
        """Address space of one expandable segment on a card of this size, before whole pages."""
        full = card_bytes + card_bytes // 8
        match = _RESERVE.fullmatch(self.expandable_segments_reserve)
        if not match or float(match[1]) <= 0:
            # PyTorch warns and keeps its default too, rather than stop a job for it.
            return full
        return int(min(float(match[1]) * (1 << 30 if match[2] else card_bytes), full))


def parse_settings(text: str, release: Release = NEWEST) -> Settings:
    """Parse the text as PyTorch of this release does, with its own refusal as a UsageError.

    The text may begin with the variable's name, as in a shell.
    """
    named = _NAMED.fullmatch(text)
    return Settings(**_Reader(named[3] if named else text, release).read())


def settings_from_environment(environment: Mapping[str, str]) -> Settings:
    """Return the settings of the variable that the newest PyTorch reads: of several names the oldest."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return parse_settings(next((environment[name] for name in names if name in environment), ""))


def settings_from_snapshot(recorded: Mapping[str, Any]) -> Settings:
    """Return a snapshot's `allocator_settings`; values that it leaves out are parsed from its raw text."""
    raw = recorded.get("PYTORCH_CUDA_ALLOC_CONF")
    try:
        settings = parse_settings(raw) if type(raw) is str else Settings()
    except UsageError:
        # It ran, so the release that wrote it could read it; the values below hold without the text.
        settings = Settings()
    known = {name: value for name, value in _in_force(recorded, settings).items() if value is not None}
    # No limit: the pickler of C++ casts to a signed number, the Python binding does not.
    if recorded.get("max_split_size") in (-1, 2**64 - 1):
        known["max_split_size"] = None
    return replace(settings, **known)


def _in_force(recorded: Mapping[str, Any], written: Settings) -> dict[str, Any]:
    size = recorded.get("max_split_size")
    threshold: Any = recorded.get("garbage_collection_threshold")
    divisions = recorded.get("roundup_power2_divisions")
    flags = ("expandable_segments", "graph_capture_record_stream_reuse")
    return {
        **{name: value for name in flags if type(value := recorded.get(name)) is bool},
        "max_split_size": size if type(size) is int and size > 0 else None,
        "garbage_collection_threshold": float(threshold) if type(threshold) in (int, float) else None,
        "roundup_power2_divisions": _snapshot_divisions(divisions, written) if type(divisions) is dict else None,
    }


def _snapshot_divisions(table: Mapping[Any, Any], written: Settings) -> tuple[int, ...]:
    """{'1': n, '2': n, ..., '32768': n}: keyed by the MiB at which each slot begins."""
    slots = list(written.roundup_power2_divisions)
    for number in range(SLOTS):
        value = table.get(str(1 << number))
        if type(value) is int and value >= 0:
            slots[number] = value
    return tuple(slots)


def environment_text(settings: str) -> str:
    """Return settings as a shell assignment, quoted where they hold brackets or >."""
    quoted = f'"{settings}"' if any(letter in settings for letter in "[]>") else settings
    return f"PYTORCH_CUDA_ALLOC_CONF={quoted}"


def changes_layout(one: Settings, other: Settings) -> bool:
    """Return whether the two would place the same requests differently, given enough memory."""
    names = {known.name for known in fields(Settings)} - {
        "garbage_collection_threshold",
        "per_process_memory_fraction",
        "throw_on_cudamalloc_oom",
        "others",
    }
    return any(getattr(one, name) != getattr(other, name) for name in names)


def _mib(size: int | None, default: int | None) -> str:
    return "" if size is None or size == default else str(size // MiB)


def _number_text(value: float, default: float) -> str:
    return "" if value == default else repr(value)


def _divisions_text(slots: tuple[int, ...]) -> str:
    if not any(slots):
        return ""
    if len(set(slots)) == 1:
        return str(slots[0])
    # Every slot by name: the shorter forms mean different things to different releases.
    return "[" + ",".join(f"{1 << number}:{value}" for number, value in enumerate(slots)) + "]"


def settings_of(trace: Trace, device: DeviceTrace) -> tuple[Settings, bool]:
    """Return the settings, and whether they are inferred: pages are mapped only for expandable segments.

    Releases before 2.3 write no settings at all, and `_set_allocator_settings` can change them while a program runs.
    """
    named = settings_from_snapshot(trace.settings)
    if named.expandable_segments or not _has_expandable_segments(device):
        return named, False
    return replace(named, expandable_segments=True), True


def _has_expandable_segments(device: DeviceTrace) -> bool:
    """Return whether all segments allocated in this history are expandable, or without such, all that are live."""
    action = device.events.action
    mapped, whole = bool((action == Action.SEGMENT_MAP).any()), bool((action == Action.SEGMENT_ALLOC).any())
    if mapped or whole:
        return mapped and not whole
    return bool(len(device.segments) and device.segments.is_expandable.all())
