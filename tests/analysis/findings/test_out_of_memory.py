"""Every history that ends in a failed request names the shortage and the remedy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.trace.model import Action
from tests.analysis.findings.steps import HIDDEN, OTHER, Loop, MiB, of_kind
from tests.analysis.training import BUILD, FORWARD, LOSS
from tests.facts import missing
from tests.results.made import COUNT, made
from tests.traces import alloc, event, free, trace_of

ASKED = 60


def failed(reserved: int, device_free: int | None, loop: Loop | None = None) -> list:
    """100 MiB of weights and 40 MiB of a forward are live when 60 MiB are requested."""
    loop = Loop().forward() if loop is None else loop
    grown = event("segment_alloc", 0, reserved * MiB)
    more = {} if device_free is None else {"device_free": device_free * MiB}
    return [grown, *loop.events, event("oom", 0, ASKED * MiB, frames=LOSS, **more)]


def test_it_says_how_much_is_missing_and_what_most_is():
    (finding,) = of_kind(trace_of(failed(150, 20)), FindingKind.OUT_OF_MEMORY)
    assert finding.bytes == 30 * MiB
    asked = ("at event 4", "60.0 MiB requested by train.py:30 loss", "140 MiB live", "10.0 MiB reserved but unused")
    most = ("20.0 MiB free", "30.0 MiB less", "parameter, 100 MiB (71 % of live memory)", "train.py:50 main")
    assert missing(finding.sentence, *asked, *most) == []


@pytest.mark.parametrize(
    ("events", "words", "remedy"),
    [
        (failed(190, 20), "Enough memory is free, but not 60.0 MiB in one piece.", "Set expandable_segments:True"),
        (failed(150, None), "Up to 50.0 MiB less must be in use for this request to fit.", "Store the weights"),
        (
            [event("segment_alloc", 0, 2 * MiB), event("oom", 0, 90 * MiB, device_free=MiB)],
            "The request alone is 87.0 MiB larger than all memory the process can get.",
            "Use a smaller batch",
        ),
    ],
    ids=["fragmented", "driver unknown", "larger than the card"],
)
def test_the_missing_bytes_decide_sentence_and_remedy(events, words, remedy):
    (finding,) = of_kind(trace_of(events), FindingKind.OUT_OF_MEMORY)
    assert words in finding.sentence
    assert finding.remedy.startswith(remedy)


def test_activations_are_found_though_the_exception_lets_them_go():
    """The first forward fails, and unwinding it frees all activations."""
    events = [alloc(1, 10 * MiB, frames=BUILD), alloc(HIDDEN, 90 * MiB, frames=FORWARD, user_metadata="activation")]
    events += [alloc(OTHER, 90 * MiB, frames=FORWARD, user_metadata="activation"), event("oom", 0, 90 * MiB)]
    events += [*free(OTHER, 90 * MiB), *free(HIDDEN, 90 * MiB)]
    (finding,) = of_kind(trace_of(events), FindingKind.ACTIVATIONS)
    assert finding.bytes == 180 * MiB


@pytest.mark.parametrize("seed", range(0, COUNT, 4))
def test_every_made_history_with_a_failed_request_has_a_finding(seed):
    trace = made(seed)
    for device in trace.devices:
        kinds = [finding.kind for finding in findings(trace, device)]
        ran_out = bool((device.events.action == Action.OOM).any())
        assert (kinds[:1] == [FindingKind.OUT_OF_MEMORY]) == ran_out
        assert kinds.count(FindingKind.OUT_OF_MEMORY) == ran_out


SIZES = st.integers(1, 1 << 36)


@given(
    requests=st.lists(st.tuples(st.booleans(), SIZES, st.booleans()), max_size=12),
    asked=SIZES,
    device_free=st.none() | st.integers(0, 1 << 37),
    reserved=st.integers(0, 1 << 38),
)
def test_any_history_that_ends_in_a_failed_request_has_a_finding(requests, asked, device_free, reserved):
    events = [event("segment_alloc", 0, reserved)] if reserved else []
    for number, (has_stack, size, is_freed) in enumerate(requests):
        events.append(alloc(number + 1, size, frames=FORWARD if has_stack else []))
        events += free(number + 1, size) if is_freed else []
    more = {} if device_free is None else {"device_free": device_free}
    trace = trace_of([*events, event("oom", 0, asked, **more)])
    found = findings(trace, trace.devices[0])
    assert found[0].kind is FindingKind.OUT_OF_MEMORY
    assert found[0].bytes > 0
    assert found[0].sentence and found[0].remedy
