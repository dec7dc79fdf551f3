"""What a step or a forward is called in every sentence: as the program noted it, else by the number that we counted."""

from __future__ import annotations

import re
from bisect import bisect_right

import numpy as np

from memviz.analysis.annotations import annotated
from memviz.analysis.cache import kept
from memviz.analysis.health import history
from memviz.analysis.purpose.phase_spans import PhaseSpan, phase_spans
from memviz.trace.model import DeviceTrace, Trace

_LONGEST = 40
_PROFILED = "ProfilerStep#"
_OPTIMIZERS = ("Optimizer.", "optimizer step")
"""What torch and our own recordings note of an optimizer's step, which is a part of a training's."""
_SAYS_STEP = re.compile(r"\b(step|iter|iteration|batch|warm-?up)(\b|_?\d)", re.IGNORECASE)


def step_name(trace: Trace, device: DeviceTrace, span: PhaseSpan) -> str:
    """'ProfilerStep#1', 'step 2', 'recorded step 2'; where nothing is trained 'forward 3', or 'the forward'."""
    phases = phase_spans(trace, device)
    # Counted by us, from where the recording begins.
    recorded = "recorded " if history(device) == "late" else ""
    if not phases.is_training:
        return f"{recorded}forward {span.step}" if len(phases.spans) > 1 else "the forward"
    return noted_step(trace, device, span.first) or f"{recorded}step {span.step}"


def phase_name(trace: Trace, device: DeviceTrace, span: PhaseSpan) -> str:
    """'backward of ProfilerStep#1', as briefly as above a timeline."""
    phases = phase_spans(trace, device)
    noted = noted_step(trace, device, span.first) if phases.is_training else ""
    return f"{span.kind} of {noted}" if noted else phases.name(span)


def noted_step(trace: Trace, device: DeviceTrace, event: int) -> str:
    """As the profiler, or the program itself, called the step around an event; empty where neither did."""
    begins, ends, names = kept(trace, (noted_step, device), lambda: _noted(trace, device))
    place = bisect_right(begins, event) - 1
    return names[place] if place >= 0 and event <= ends[place] else ""


def _noted(trace: Trace, device: DeviceTrace) -> tuple[list[int], list[int], list[str]]:
    """First and last event and the name of each, in order; none lies within another one."""
    intervals = annotated(device).intervals
    names = [trace.strings[code][:_LONGEST] for code in intervals.name.tolist()]
    places = [place for place, name in enumerate(names) if name.startswith(_PROFILED)]
    if not places:
        outermost = np.flatnonzero(intervals.depth == 0).tolist()
        own = (place for place in outermost if not names[place].startswith(_OPTIMIZERS))
        places = [place for place in own if _SAYS_STEP.search(names[place])]
    begins, ends = intervals.start_event[places].tolist(), intervals.end_event[places].tolist()
    return begins, ends, [names[place] for place in places]
