"""Spikes, pinned segments, private pools and frees that wait: what shows in reserved bytes."""

from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.lifetimes import lifetimes
from tests.analysis.findings.steps import Loop, MiB, of_kind
from tests.analysis.training import BUILD, FORWARD, LOSS, MOVE
from tests.facts import missing
from tests.traces import block, segment, trace_of

COPY = 900


def _spike(steps: int, spike_mib: int) -> Loop:
    """Weights are read twice over before the first step; and what that took serves the steps."""
    loop = Loop(has_weight=False)
    loop.ask("segment_alloc", 1, 100).make(1, 100, BUILD).ask("segment_alloc", COPY * MiB, spike_mib)
    loop.make(COPY * MiB, spike_mib, MOVE).end(COPY * MiB, spike_mib)
    for _ in range(steps):
        loop.whole()
    return loop


def test_a_spike_whose_memory_nothing_uses_later_is_told_with_what_is_unused():
    final = [segment(1, 100 * MiB, [block(1, 100 * MiB)]), segment(COPY * MiB, 500 * MiB, [])]
    trace = _spike(2, 500).trace(final)
    (finding,) = of_kind(trace, FindingKind.SPIKE)
    # Reserved are 600 MiB, and the steps have 240 MiB live at most.
    assert finding.bytes == 360 * MiB
    assert finding.event == 3
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [COPY * MiB]
    assert "360 MiB not used afterwards" in finding.sentence


def test_a_spike_at_the_end_and_steps_of_one_height_are_no_finding():
    loop = Loop().ask("segment_alloc", 1, 900).whole().whole().forward().make(COPY, 500, LOSS).end(COPY, 500).backward()
    assert of_kind(loop.trace(), FindingKind.SPIKE) == []
    assert of_kind(Loop().whole().whole().whole().trace(), FindingKind.SPIKE) == []


def _pinned(pin_lives: bool) -> Loop:
    """A large segment is left with one small block while another large one is used."""
    loop = Loop(has_weight=False)
    loop.ask("segment_alloc", 0, 100).make(0, 10, LOSS).make(10 * MiB, 90, FORWARD).end(10 * MiB, 90)
    if not pin_lives:
        loop.end(0, 10)
    return loop.ask("segment_alloc", 200 * MiB, 120).make(200 * MiB, 120, FORWARD)


def test_a_block_that_pins_a_segment_is_told_with_its_line():
    final = [segment(0, 100 * MiB, [block(0, 10 * MiB)]), segment(200 * MiB, 120 * MiB, [block(200 * MiB, 120 * MiB)])]
    trace = _pinned(True).trace(final)
    (finding,) = of_kind(trace, FindingKind.PINNED_SEGMENTS)
    assert finding.bytes == 90 * MiB
    assert finding.site == "train.py:30 loss"
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [0]
    assert missing(finding.sentence, "90.0 MiB", "1 segment") == []


def test_the_sizes_of_several_pins_are_told_as_their_sum():
    loop = Loop(has_weight=False)
    for place in (0, 200):
        loop.ask("segment_alloc", place * MiB, 100).make(place * MiB, 10, LOSS)
        loop.make((place + 10) * MiB, 90, FORWARD)
    loop.end(10 * MiB, 90).end(210 * MiB, 90)
    loop.ask("segment_alloc", 400 * MiB, 120).make(400 * MiB, 120, FORWARD)
    held = [(0, 100, 10), (200, 100, 10), (400, 120, 120)]
    final = [segment(at * MiB, size * MiB, [block(at * MiB, used * MiB)]) for at, size, used in held]
    (finding,) = of_kind(loop.trace(final), FindingKind.PINNED_SEGMENTS)
    assert missing(finding.sentence, "train.py:30", "2 blocks", "20.0 MiB") == []


def test_a_segment_that_is_free_altogether_is_pinned_by_nothing():
    final = [segment(0, 100 * MiB, []), segment(200 * MiB, 120 * MiB, [block(200 * MiB, 120 * MiB)])]
    assert of_kind(_pinned(False).trace(final), FindingKind.PINNED_SEGMENTS) == []


def test_private_pools_are_told_by_what_they_reserve_and_hold():
    final = [
        segment(0, 100 * MiB, [block(0, 100 * MiB)]),
        segment(200 * MiB, 50 * MiB, [block(200 * MiB, 20 * MiB)], segment_pool_id=(0, 1)),
    ]
    events = Loop(has_weight=False)
    events.make(0, 100, BUILD).make(200 * MiB, 20, FORWARD)
    (finding,) = of_kind(events.trace(final), FindingKind.PRIVATE_POOLS)
    assert finding.bytes == 50 * MiB
    assert "50.0 MiB" in finding.sentence
    assert "20.0 MiB" in finding.sentence
    assert of_kind(trace_of([], final[:1]), FindingKind.PRIVATE_POOLS) == []


def _waiting(waits: bool) -> Loop:
    loop = Loop(has_weight=False)
    loop.make(1, 50, LOSS, time_us=1).ask("free_requested", 1, 50, time_us=2)
    if not waits:
        loop.ask("free_completed", 1, 50, time_us=3)
    loop.ask("segment_alloc", 500 * MiB, 40, time_us=4).make(500 * MiB, 40, FORWARD, time_us=5)
    if waits:
        loop.ask("free_completed", 1, 50, time_us=3002)
    return loop


def test_frees_that_wait_are_told_with_how_long_and_what_was_taken_meanwhile():
    (finding,) = of_kind(_waiting(True).trace(), FindingKind.WAITING_FREES)
    assert finding.bytes == 50 * MiB
    facts = ("train.py:30 loss", "longest 3.00 ms", "50.0 MiB at once", "reserved 40.0 MiB more")
    assert missing(finding.sentence, *facts) == []


def test_frees_that_complete_at_once_wait_for_nothing():
    assert of_kind(_waiting(False).trace(), FindingKind.WAITING_FREES) == []


def test_frees_that_complete_at_once_are_no_part_of_what_waits():
    """A free is requested and completed in two events; in between it looks like a waiting free."""
    loop = Loop(has_weight=False)
    loop.make(1, 50, LOSS).make(2, 800, LOSS).ask("free_requested", 1, 50)
    loop.end(2, 800).ask("free_completed", 1, 50)
    (finding,) = of_kind(loop.trace(), FindingKind.WAITING_FREES)
    assert finding.bytes == 50 * MiB
    assert missing(finding.sentence, "3 events", "50.0 MiB") == []


def test_a_free_that_waits_at_the_end_says_for_how_long():
    loop = Loop(has_weight=False)
    loop.make(1, 50, LOSS).ask("free_requested", 1, 50)
    (finding,) = of_kind(loop.trace(), FindingKind.WAITING_FREES)
    assert missing(finding.sentence, "waited", "another") == []
    (finding,) = of_kind(loop.make(2, 1, LOSS).trace(), FindingKind.WAITING_FREES)
    assert "1 event" in finding.sentence
