"""Every text, frame and stack once, in valid Unicode.

A reader fills one Interner per file and freezes it at the end. Columns of numbers have their distinct values.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.errors import TraceError
from memviz.trace.limits import Budget, Limits
from memviz.trace.model import ACTION_NAMES, DEFAULT_POOL, NO_STACK, Action, Frames, Ints4, Stacks

MOST_TEXT = 4096
"""Characters. Paths end there on Linux, and demangled C++ names stay below it but for a few."""
_TAIL = 1024
_FEW = 1 << 12
"""Codes up to here are counted, which reads a column once and moves nothing."""
_TABLE = 1 << 20
"""Bytes of a table with one flag per code."""
_EACH = 8
"""Up to so many values are searched one by one."""


def valid_unicode(text: str) -> str:
    """JSON can name halves of characters, which no file and no terminal takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def bounded(text: str, most: int = MOST_TEXT) -> str:
    """Shorten a long text to its begin and end. Different texts stay different, and equal texts equal."""
    if len(text) <= most:
        return text
    # Few files have such a text, and OpenSSL takes its time to load.
    from hashlib import blake2b

    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    cut = f" … [cut from {len(text):,} characters, {digest}] … "
    return text[: most - _TAIL - len(cut)] + cut + text[-_TAIL:]


MOST_FRAMES = 2000
"""Limit per stack. Python stops at 1,000 calls, and C++ adds a few hundred frames to them."""
_INT4_MAX = 2**31 - 1
_NUMBER_BYTES = 4
_TEXT_BYTES, _FRAME_BYTES, _STACK_BYTES, _PLACE_BYTES = 150, 300, 300, 100
"""In memory, with what is computed from them later."""


@dataclass(frozen=True)
class StackNumber:
    """In place of a list of frames: a stack that is interned already."""

    number: int


class Interner:
    def __init__(self, budget: Budget | None = None, lock: AbstractContextManager[Any] | None = None) -> None:
        """`lock` is held while anything new gets its number, for threads that share the interner."""
        self.budget = budget or Budget(Limits())
        self.lock = lock or nullcontext()
        self.strings: dict[str, int] = {"": 0}
        self.streams: dict[int, int] = {0: 0}
        self.pools: dict[tuple[int, int], int] = {DEFAULT_POOL: 0}
        self.other_actions: dict[str, int] = {}
        self.dropped_frame_keys: set[str] = set()
        self._seen_frames: dict[int, int] = {}
        self._seen_lists: dict[int, int] = {}
        """Keyed by identity: torch shares frames among all stacks, and one list of them among an alloc, its frees and
        its block."""
        self._seen: list[Any] = []
        """References to the objects in both tables, so that their ids are not reused."""
        self.has_cut_texts = False
        self.has_cut_stacks = False
        self._texts: list[str] = [""]
        self._mended: dict[str, int] = {}
        """Texts that are not kept as they stand in the file."""
        self._frame_costs = array("q")
        """In a stack."""
        self._frames: dict[tuple[int, int, int], int] = {}
        self._stacks: dict[bytes, int] = {}
        """Keyed by the numbers of the frames, four bytes each."""

    def string(self, text: Any) -> int:
        if type(text) is not str:
            raise TraceError(f"A text was expected, found {type(text).__name__}.")
        number = self.strings.get(text)
        if number is None:
            number = self._mended.get(text)
        if number is not None:
            return number
        fit = bounded(valid_unicode(text))
        with self.lock:
            self.has_cut_texts |= len(text) > MOST_TEXT
            self.budget.charge(_TEXT_BYTES + 2 * len(fit))
            number = self.strings.setdefault(fit, len(self._texts))
            if number == len(self._texts):
                self._texts.append(fit)
            if fit != text:
                self._mended[text] = number
        return number

    def text(self, number: int) -> str:
        return self._texts[number]

    def pool_pair(self, number: int) -> tuple[int, int]:
        return list(self.pools)[number]

    def stream(self, handle: Any) -> int:
        return self.streams.setdefault(_integer(handle, "stream"), len(self.streams))

    def pool(self, pair: Any) -> int:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TraceError("A pool's id was expected as two numbers.")
        key = (_integer(pair[0], "pool id"), _integer(pair[1], "pool id"))
        return self.pools.setdefault(key, len(self.pools))

    def action(self, name: str) -> int:
        if name in ACTION_NAMES:
            return ACTION_NAMES[name]
        number = self.other_actions.setdefault(self.text(self.string(name)), len(self.other_actions))
        if Action.OTHER + number > 255:
            raise TraceError("The events name more than 191 unknown actions.", remedy=NOT_A_SNAPSHOT)
        return Action.OTHER + number

    def frame(self, frame: Any) -> int:
        """One `{filename, line, name}`; a bare text, as in `forward_frames`, is a name alone."""
        if type(frame) is str:
            return self._frame(frame, "", 0)
        if type(frame) is not dict:
            raise TraceError(f"A frame was expected, found {type(frame).__name__}.", remedy=NOT_A_SNAPSHOT)
        if len(frame) > 3:
            self.dropped_frame_keys.update(str(key) for key in frame.keys() - _FRAME_KEYS)
        number = self._frame(frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0))
        self._seen_frames[id(frame)] = number
        self._seen.append(frame)
        return number

    def _frame(self, name: Any, filename: Any, line: Any) -> int:
        line = _integer(line, "line")
        # For none torch writes -1, also unsigned, or what a symbolizer returned without an answer.
        key = (self.string(name), self.string(filename), line if 0 <= line <= _INT4_MAX else 0)
        with self.lock:
            number = self._frames.setdefault(key, len(self._frames))
            if number == len(self._frame_costs):
                length = len(self._texts[key[0]]) + len(self._texts[key[1]])
                self._frame_costs.append(_PLACE_BYTES + length // 4)
                # Many frames can share one long text, and what is shown of them does not share it.
                self.budget.charge(_FRAME_BYTES + 3 * length)
        return number

    def stack(self, frames: Any) -> int:
        """NO_STACK for an empty one: torch writes `[]` where it kept none."""
        if frames is None:
            return NO_STACK
        if type(frames) is StackNumber:
            return frames.number
        if type(frames) not in (list, tuple):
            raise TraceError(f"A stack was expected, found {type(frames).__name__}.", remedy=NOT_A_SNAPSHOT)
        known = self._seen_lists.get(id(frames))
        if known is not None:
            return known
        kept = self.shortened(frames)
        numbers: list[Any] = list(map(self._seen_frames.get, map(id, kept)))
        if None in numbers:
            numbers = [self.frame(frame) if seen is None else seen for frame, seen in zip(kept, numbers, strict=True)]
        known = self._seen_lists[id(frames)] = self.stack_of(numbers)
        self._seen.append(frames)
        return known

    def shortened(self, frames: Sequence[Any]) -> Sequence[Any]:
        """Both ends of a stack that is too deep, and between them a frame that says so."""
        if len(frames) <= MOST_FRAMES:
            return frames
        self.has_cut_stacks = True
        left_out = f"… {len(frames) - MOST_FRAMES + 1:,} frames left out …"
        return [*frames[: MOST_FRAMES // 2], left_out, *frames[-(MOST_FRAMES // 2) + 1 :]]

    def stack_of(self, frame_numbers: Sequence[int] | Ints4) -> int:
        if not len(frame_numbers):
            return NO_STACK
        # A short list becomes bytes in half the time that numpy takes, and a prediction has one for each operator.
        if isinstance(frame_numbers, np.ndarray):
            key = frame_numbers.astype(np.int32).tobytes()
        else:
            key = array("i", frame_numbers).tobytes()
        number = self._stacks.get(key)
        if number is not None:
            return number
        with self.lock:
            number = self._stacks.setdefault(key, len(self._stacks))
            if number == len(self._stacks) - 1:
                costs = np.frombuffer(self._frame_costs, np.int64)[np.frombuffer(key, np.int32)]
                self.budget.charge(_STACK_BYTES + int(costs.sum()))
        return number

    def frozen_stacks(self) -> Stacks:
        columns = np.array(list(self._frames), dtype=np.int32).reshape(-1, 3)
        sizes = np.fromiter(map(len, self._stacks), dtype=np.int64, count=len(self._stacks))
        return Stacks(
            frames=Frames(*(np.ascontiguousarray(columns[:, i]) for i in range(3))),
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes // _NUMBER_BYTES)]),
            indices=np.frombuffer(b"".join(self._stacks), dtype=np.int32),
        )


_FRAME_KEYS = {"name", "filename", "line"}
NOT_A_SNAPSHOT = "This does not look like what torch.cuda.memory._dump_snapshot writes."


def _integer(value: Any, what: str) -> int:
    if type(value) is not int:
        raise TraceError(f"A number was expected as {what}, found {type(value).__name__}.", remedy=NOT_A_SNAPSHOT)
    if not -(2**63) <= value < 2**64:
        raise TraceError(f"A value of {what!r} has more than 64 bits.", remedy=NOT_A_SNAPSHOT)
    return value


def distinct(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sorted unique values, as `np.unique` does, of integers or booleans.

    `np.unique` imports all of numpy.ma on its first call: a seventh of the import time of numpy itself.
    """
    if not numbers.size:
        return numbers.ravel()
    if numbers.dtype.kind != "b" and numbers.min() >= 0 and numbers.max() < _FEW:
        return np.flatnonzero(np.bincount(numbers.ravel())).astype(numbers.dtype)
    ordered: npt.NDArray[Any] = np.sort(numbers, axis=None)
    different: npt.NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return different


def first_of_each(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """For each the first row that has the same.

    By a table of their highest bits; those that share a place there with others are sorted.
    """
    rows, bits = np.arange(len(hashes)), (4 * len(hashes)).bit_length()
    place = (hashes >> np.uint64(64 - bits)).astype(np.int64) if bits else rows
    table = np.empty(1 << bits, dtype=np.int64)
    # The last to be written stays, so the first comes last.
    table[place[::-1]] = rows[::-1]
    first: npt.NDArray[np.int64] = table[place]
    others = np.flatnonzero(hashes[first] != hashes)
    if len(others):
        _, firsts, group = np.unique(hashes[others], return_index=True, return_inverse=True)
        first[others] = others[firsts[group]]
    return first


def is_among(numbers: npt.NDArray[Any], wanted: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Like `np.isin` for integers, without `np.unique`, which `np.isin` calls for few values or wide ranges."""
    known = distinct(np.asarray(wanted))
    if len(known) <= _EACH:
        found = np.zeros(numbers.shape, dtype=np.bool_)
        for number in known.tolist():
            found |= numbers == number
        return found
    if known[0] >= 0 and known[-1] < _TABLE and (not numbers.size or numbers.min() >= 0):
        table = np.zeros(int(known[-1]) + 2, dtype=np.bool_)
        table[known] = True
        return np.asarray(table[np.minimum(numbers, np.int64(len(table) - 1))])
    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.asarray(known[place] == numbers)
