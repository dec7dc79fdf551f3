"""Properties of findings and actions for any history, however odd."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.actions.proposals import kinds_of, proposal
from memviz.analysis.findings.ranking import finding_by_key, findings
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import Trace
from tests.analysis.replays import sound_traces
from tests.analysis.training import ACCUMULATE, BACKWARD, BUILD, FORWARD, LOSS, OTHER_FORWARD, RECOMPUTE, STEP
from tests.traces import MiB, alloc, event, free, trace_of

STACKS = [ACCUMULATE, BACKWARD, BUILD, FORWARD, LOSS, OTHER_FORWARD, RECOMPUTE, STEP, []]
PLACES, MOST = 12, 120


def program(seed: int) -> Trace:
    """Allocs and frees of a dozen places under the stacks of a training loop, in any order."""
    random = Random(seed)
    events: list[Any] = []
    live: dict[int, int] = {}
    for _ in range(random.randint(1, MOST)):
        place, stack = random.randint(1, PLACES), random.choice(STACKS)
        if place in live:
            size = live.pop(place)
            waits = random.random() < 0.25
            events += [event("free_requested", place * MiB, size)] if waits else free(place * MiB, size, frames=stack)
        else:
            live[place] = random.choice([1, 2, 4, 512]) * 1024
            events.append(alloc(place * MiB, live[place], frames=stack))
    return trace_of(events)


programs = st.integers(0, 2**32).map(program)


@given(st.one_of(programs, sound_traces()))
def test_findings_name_allocations_that_are_there_and_stand_by_their_bytes(trace):
    device = trace.devices[0]
    ranked = findings(trace, device)
    count = len(lifetimes(device))
    assert [finding.bytes for finding in ranked] == sorted((finding.bytes for finding in ranked), reverse=True)
    assert len({finding.key for finding in ranked}) == len(ranked)
    for finding in ranked:
        assert finding.bytes > 0
        assert len(finding.rows) == len(np.unique(finding.rows))
        assert ((finding.rows >= 0) & (finding.rows < count)).all()
        assert -1 <= finding.event < max(len(device.events), 1)
        assert finding_by_key(trace, device, finding.key) is finding


@given(programs)
def test_every_action_leaves_a_history_in_which_nothing_is_freed_twice(trace):
    device = trace.devices[0]
    for finding in findings(trace, device):
        for kind in kinds_of(finding):
            made = proposal(trace, device, finding, kind)
            if made is None or made.trace is None:
                continue
            edited = made.trace.devices[0]
            assert timeline(edited).live.min() >= 0
            rows = lifetimes(edited)
            assert (rows.end >= rows.start).all()


def test_a_name_that_is_none_is_refused_in_words():
    trace = trace_of([alloc(MiB, 1)])
    with pytest.raises(UsageError, match="This trace has no finding 'leak-1'."):
        finding_by_key(trace, trace.devices[0], "leak-1")
