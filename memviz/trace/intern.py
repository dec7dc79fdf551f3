"""Every text, frame and stack once. Readers fill one Interner per file and freeze it at the end."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memviz.errors import TraceError
from memviz.trace.budget import Budget
from memviz.trace.limits import Limits
from memviz.trace.model import DEFAULT_POOL, NO_STACK, Action, Frames, Stacks

_INT4_MAX = 2**31 - 1


@dataclass(frozen=True)
class StackNumber:
    """In place of a list of frames: a stack that is interned already."""

    number: int


class Interner:
    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget or Budget(Limits())
        self.strings: dict[str, int] = {"": 0}
        self.streams: dict[int, int] = {0: 0}
        self.pools: dict[tuple[int, int], int] = {DEFAULT_POOL: 0}
        self.other_actions: dict[str, int] = {}
        self.dropped_frame_keys: set[str] = set()
        self._seen_frames: dict[int, tuple[Any, int]] = {}
        self._seen_lists: dict[int, tuple[Any, int]] = {}
        """By identity, with the object so that its id stays its own: torch shares frames among all stacks, and
        one list of them among an alloc, its frees and its block."""
        self._texts: list[str] = [""]
        self._frames: dict[tuple[int, int, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def string(self, text: Any) -> int:
        if type(text) is not str:
            raise TraceError(f"A text was expected, found {type(text).__name__}.")
        number = self.strings.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
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

    def other_action(self, name: Any) -> int:
        self.string(name)
        number = self.other_actions.setdefault(name, len(self.other_actions))
        if Action.OTHER + number > 255:
            raise TraceError("The events name more than 191 unknown actions.", remedy=_NOT_A_SNAPSHOT)
        return Action.OTHER + number

    def frame(self, frame: Any) -> int:
        """One `{filename, line, name}`; a bare text, as in `forward_frames`, is a name alone."""
        if type(frame) is str:
            return self._frame(frame, "", 0)
        if type(frame) is not dict:
            raise TraceError(f"A frame was expected, found {type(frame).__name__}.", remedy=_NOT_A_SNAPSHOT)
        if len(frame) > 3:
            self.dropped_frame_keys.update(str(key) for key in frame.keys() - _FRAME_KEYS)
        number = self._frame(frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0))
        self._seen_frames[id(frame)] = frame, number
        return number

    def _frame(self, name: Any, filename: Any, line: Any) -> int:
        number = _integer(line, "line")
        if not -_INT4_MAX <= number <= _INT4_MAX:
            raise TraceError(f"A frame's line is {number}.", remedy=_NOT_A_SNAPSHOT)
        key = (self.string(name), self.string(filename), number)
        return self._frames.setdefault(key, len(self._frames))

    def stack(self, frames: Any) -> int:
        """NO_STACK for an empty one: torch writes `[]` where it kept none."""
        if frames is None:
            return NO_STACK
        if type(frames) is StackNumber:
            return frames.number
        if type(frames) not in (list, tuple):
            raise TraceError(f"A stack was expected, found {type(frames).__name__}.", remedy=_NOT_A_SNAPSHOT)
        known = self._seen_lists.get(id(frames))
        if known is not None:
            return known[1]
        seen = self._seen_frames
        number = self.stack_of([seen[id(each)][1] if id(each) in seen else self.frame(each) for each in frames])
        self._seen_lists[id(frames)] = frames, number
        return number

    def stack_of(self, frame_numbers: Sequence[int]) -> int:
        if not frame_numbers:
            return NO_STACK
        return self._stacks.setdefault(tuple(frame_numbers), len(self._stacks))

    def frozen_stacks(self) -> Stacks:
        columns = np.array(list(self._frames), dtype=np.int32).reshape(-1, 3)
        lengths = np.fromiter(map(len, self._stacks), dtype=np.int64, count=len(self._stacks))
        indices = array("i")
        for stack in self._stacks:
            indices.extend(stack)
        return Stacks(
            frames=Frames(*(np.ascontiguousarray(columns[:, i]) for i in range(3))),
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
            indices=np.array(indices, dtype=np.int32),
        )


_FRAME_KEYS = {"name", "filename", "line"}
_NOT_A_SNAPSHOT = "This does not look like what torch.cuda.memory._dump_snapshot writes."


def _integer(value: Any, what: str) -> int:
    if type(value) is not int:
        raise TraceError(f"A number was expected as {what}, found {type(value).__name__}.", remedy=_NOT_A_SNAPSHOT)
    return value
