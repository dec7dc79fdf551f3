"""Forwards, backwards and optimizer steps one after the other, numbered from 1, as stacks show them.

A step of training ends with its optimizer step; where none shows, with its last backward before another forward.
Where nothing but forwards shows, each is one of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from memviz.analysis.annotations import annotated
from memviz.analysis.cache import kept
from memviz.analysis.callstacks.frames import path_of
from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.forward_passes import forward_passes
from memviz.analysis.purpose.phases import DOING, doing_of_allocs
from memviz.analysis.purpose.python_calls import python_stacks
from memviz.trace.distinct import distinct, is_among
from memviz.trace.model import Action, Bytes1, DeviceTrace, Ints4, Ints8, Spans, Trace

_WORK = (Doing.FORWARD, Doing.BACKWARD, Doing.STEP)
_NAMES = {Doing.FORWARD: "forward", Doing.BACKWARD: "backward", Doing.STEP: "optimizer step"}
_CRITERION = re.compile(r"(loss|losses|criterion)[^/]*\.py$", re.IGNORECASE)
"""Files of modules that compute a loss, as torch/nn/modules/loss.py."""
_BLIP = 2
"""So few allocations of another kind, with the same kind before and behind, are a hook's."""


@dataclass(frozen=True)
class PhaseSpan:
    doing: Doing
    step: int
    """From 1; of a trace that only has forwards, the number of the forward."""
    first: int
    """Event of its first alloc."""
    last: int
    """Event before the next span begins, or the last event of the trace."""

    @property
    def kind(self) -> str:
        return _NAMES[self.doing]


@dataclass(frozen=True)
class PhaseSpans:
    spans: tuple[PhaseSpan, ...]
    is_training: bool

    def name(self, span: PhaseSpan) -> str:
        """'backward of step 2'; of forwards alone 'forward 2', of a single one 'forward'."""
        if self.is_training:
            return f"{span.kind} of step {span.step}"
        return f"{span.kind} {span.step}" if len(self.spans) > 1 else span.kind

    def around(self, event: int) -> int:
        """Which one an event lies in, or -1."""
        place = int(np.searchsorted([span.first for span in self.spans], event, side="right")) - 1
        return place if place >= 0 and event <= self.spans[place].last else -1


def phase_spans(trace: Trace, device: DeviceTrace) -> PhaseSpans:
    return kept(trace, (phase_spans, device), lambda: _found(trace, device))


def _found(trace: Trace, device: DeviceTrace) -> PhaseSpans:
    if device.taken_over is not None:
        return _taken_over(device.taken_over.spans, len(device.events))
    at, doing = _runs(*_without_blips(*_work(trace, device)))
    is_training = bool(is_among(doing, (Doing.BACKWARD, Doing.STEP)).any())
    if not is_training:
        at = _of_models(trace, device, forward_passes(trace, device).first)
        doing = np.full(len(at), Doing.FORWARD, dtype=np.uint8)
    step = _numbers(doing) if is_training else np.arange(1, len(at) + 1)
    return _spans(doing, step, at, len(device.events))


def _of_models(trace: Trace, device: DeviceTrace, at: Ints8) -> Ints8:
    """Forwards of models: a criterion that is called by itself belongs to the forward before it."""
    paths = [
        path_of(trace.strings[code]) for code in python_stacks(trace).model_files(device.events.stack[at]).tolist()
    ]
    is_model = np.array([_CRITERION.search(path) is None for path in paths], dtype=np.bool_)
    return at[is_model] if is_model.any() else at


def _taken_over(spans: Spans, count: int) -> PhaseSpans:
    """Those of the recording, where they begin now."""
    return _spans(np.array(DOING, dtype=np.uint8)[spans.phase], spans.step, spans.first, count)


def _spans(doing: Bytes1, step: Ints4 | Ints8, at: Ints8, count: int) -> PhaseSpans:
    last = np.append(at[1:] - 1, count - 1)[: len(at)]
    columns = (column.tolist() for column in (doing, step, at, last))
    spans = tuple(PhaseSpan(Doing(kind), *rest) for kind, *rest in zip(*columns, strict=True))
    return PhaseSpans(spans, any(span.doing != Doing.FORWARD for span in spans))


def _work(trace: Trace, device: DeviceTrace) -> tuple[Ints4, Bytes1]:
    """Events that tell, and what: allocations, and optimizer steps that torch itself noted."""
    allocs = np.flatnonzero(device.events.action == Action.ALLOC).astype(np.int32)
    doing = doing_of_allocs(trace, device)[allocs]
    tells = is_among(doing, _WORK)
    intervals = annotated(device).intervals
    codes = [code for code in distinct(intervals.name) if trace.strings[code].startswith("Optimizer.step#")]
    # A fused optimizer allocates nothing.
    noted = intervals.start_event[is_among(intervals.name, codes)]
    noted = np.repeat(noted[noted < len(device.events)], _BLIP + 1)
    at = np.concatenate([allocs[tells], noted.astype(np.int32)])
    what = np.concatenate([doing[tells], np.full(len(noted), Doing.STEP, dtype=np.uint8)])
    order = np.argsort(at, kind="stable")
    return at[order], what[order]


def _without_blips(at: Ints4, doing: Bytes1) -> tuple[Ints4, Bytes1]:
    begins = np.flatnonzero(doing != np.append(Doing.NOTHING, doing[:-1]))
    length = np.diff(np.append(begins, len(doing)))
    kind = doing[begins]
    between = np.zeros(len(begins), dtype=np.bool_)
    between[1:-1] = (kind[:-2] == kind[2:]) & (length[1:-1] <= _BLIP) & (length[:-2] > _BLIP) & (length[2:] > _BLIP)
    stays = np.repeat(~between, length)
    return at[stays], doing[stays]


def _runs(at: Ints4, doing: Bytes1) -> tuple[Ints8, Bytes1]:
    begins = np.flatnonzero(doing != np.append(Doing.NOTHING, doing[:-1]))
    return at[begins].astype(np.int64), doing[begins]


def _numbers(doing: Bytes1) -> Ints8:
    """The step that each run belongs to."""
    before = np.append(Doing.NOTHING, doing[:-1])
    ended_by = Doing.STEP if (doing == Doing.STEP).any() else Doing.BACKWARD
    new = (before == ended_by) & (doing == Doing.FORWARD)
    return np.asarray(np.cumsum(new) + 1, dtype=np.int64)
