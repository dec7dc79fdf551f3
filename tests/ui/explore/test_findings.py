"""Findings in Explore, their offered actions, and the estimate that a click opens next to the recording."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memviz.analysis.comparing.changes import summarize_comparison
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.analysis.overview import overview
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.results.comparison import comparison_headline
from memviz.results.summary import trace_headline
from memviz.ui.explore.findings import findings_html, offers, with_estimate
from memviz.ui.payloads.timelines import lit_rows
from memviz.ui.shell.session import Session
from tests.analysis.test_actions import LAYERS, WEIGHTS, network, network_events
from tests.analysis.training import BUILD, FORWARD, LOSS, MOVE, Loop
from tests.facts import missing
from tests.traces import MiB, alloc, block, frame, segment, trace_of
from tests.ui.opened import opened
from tests.ui.page import elements, words


def _seven_leaks():
    loop = Loop()
    for step in range(3):
        loop.forward()
        for line in range(7):
            loop.make(100 + 10 * line + step, 5 + line, [frame("keep", "/p/list.py", line + 1)])
        loop.backward().step().without_gradient()
    return loop.trace()


def test_two_are_seen_the_others_folded_and_in_a_saved_page_none_leads_anywhere():
    trace = _seven_leaks()
    html = findings_html(trace, trace.devices[0], "key/0")
    seen, folded = html.split('<li class="mv-fold">')
    assert [len(elements(part, "li", data_light_by="finding")) for part in (seen, folded)] == [2, 5]
    assert words(folded).startswith("5 more findings 18.0 MiB growth from step to step")
    chip = seen.partition("</button>")[0]
    assert words(chip) == "Findings 22.0 MiB growth from step to step", "the rest shows after a click"
    assert missing(words(seen), "list.py:7", "11.0 MiB") == []
    trace = _seven_leaks()
    html = findings_html(trace, trace.devices[0])
    assert not elements(html, "button")
    assert "data-light-by" not in html
    assert len(elements(html, "li")) == 7
    trace = trace_of([alloc(0, MiB, frames=BUILD)])
    assert findings_html(trace, trace.devices[0], "key/0") == ""


def test_every_kind_of_finding_has_a_few_words_for_its_chip():
    assert max(len(kind.title_text.split()) for kind in FindingKind) <= 5


def test_a_finding_lights_its_allocations_in_the_timeline():
    trace = _seven_leaks()
    device = trace.devices[0]
    first = elements(findings_html(trace, device, "key/0"), "li")[0]
    assert first["data-light-by"] == "finding"
    rows = lit_rows(trace, device, "finding", first["data-light-group"])
    assert rows.tolist() == findings(trace, device)[0].rows.tolist()
    with pytest.raises(UsageError, match="no finding 'leak-9'"):
        lit_rows(trace, device, "finding", "leak-9")


SAVED = LAYERS * 58 + 21 - LAYERS * 8 - 50
"""MiB, where all layers of `network` are checkpointed."""


def test_what_an_action_saves_stands_on_a_button_and_says_what_it_assumes():
    trace = network(steps=2)
    device = trace.devices[0]
    offered = offers(trace, device)
    html = findings_html(trace, device, "key/0", offered)
    first = elements(html, "button", data_act="estimate")[0]
    assert (first["data-finding"], first["data-kind"]) == ("activations-1", "checkpoint")
    assert f"estimate, checkpoint 4 layers: −{SAVED} MiB" in words(html)
    assert "about 30 % more compute" in first["title"]
    assert missing(words(html), "Estimates", "replayed") == []


def test_a_click_opens_the_estimate_beside_its_recording_and_the_headline_calls_it_one():
    context, session = opened(network(steps=2))
    recording = session.current
    data = {"finding": "activations-1", "kind": "checkpoint"}
    after = with_estimate(context, session, data)
    assert [each.key for each in after.opened] == list(after.compared)
    assert after.compared[0] == recording.key
    made = context.store.get(after.compared[1])
    assert timeline(made.devices[0]).peak_bytes == (50 + LAYERS * 8 + 50) * MiB
    assert missing(made.about.label, "replayed", "checkpoint 4 layers", "estimate") == []
    assert missing(made.notes[0].text, "estimate from the trace", "not a recording", "It assumes: ") == []
    assert with_estimate(context, after.choosing(recording.key), data).opened == after.opened
    assert offers(made, made.devices[0]) == {}, "of an estimate nothing is estimated"
    recorded = context.store.get(after.compared[0])
    assert not str(trace_headline(overview(recorded, recorded.devices[0]))).startswith("Estimate")
    alone = trace_headline(overview(made, made.devices[0]))
    both = comparison_headline(summarize_comparison([(recorded, recorded.devices[0]), (made, made.devices[0])]))
    assert alone.answer.startswith("Estimate: ")
    assert both.answer.startswith("Estimate: ")
    assert "Recording started" not in f"{alone} {both}"


def test_an_estimate_of_a_late_recording_says_what_it_leaves_as_it_was():
    """Its weights have no alloc in it."""
    late = trace_of(network_events(2)[1:], [segment(WEIGHTS, 50 * MiB, [block(WEIGHTS, 50 * MiB)])])
    context, session = opened(late)
    limit = "Recording started with 50.0 MiB allocated, which the estimate does not change."
    assert limit in words(findings_html(late, late.devices[0], "key/0", offers(late, late.devices[0])))
    after = with_estimate(context, session, {"finding": "activations-1", "kind": "checkpoint"})
    made = context.store.get(after.compared[1])
    assert trace_headline(overview(made, made.devices[0])).reason.endswith(limit)
    assert comparison_headline(
        summarize_comparison([(late, late.devices[0]), (made, made.devices[0])])
    ).reason.endswith(limit)
    assert limit in made.notes[0].text


def test_what_no_longer_fits_the_open_trace_changes_nothing():
    context, session = opened(Loop().trace())
    for data in ({}, {"finding": "activations-1", "kind": "checkpoint"}, {"finding": "x", "kind": "magic"}):
        assert with_estimate(context, session, data) == session
    assert with_estimate(context, Session(), {"finding": "activations-1", "kind": "checkpoint"}) == Session()


def test_what_is_of_the_whole_trace_is_offered_once():
    loop = Loop()
    loop.events = []
    second, third = 1000 * MiB, 2000 * MiB
    loop.ask("segment_alloc", 0, 100).make(0, 100, FORWARD).ask("segment_alloc", second, 200).make(second, 200, FORWARD)
    loop.end(0, 100).end(second, 200).make(0, 10, LOSS).make(second, 95, MOVE)
    trace = (
        loop.ask("segment_alloc", third, 150)
        .make(third, 150, FORWARD)
        .trace(
            [
                segment(0, 100 * MiB, [block(0, 10 * MiB)]),
                segment(second, 200 * MiB, [block(second, 95 * MiB)]),
                segment(third, 150 * MiB, [block(third, 150 * MiB)]),
            ]
        )
    )
    pinned = [finding.key for finding in findings(trace, trace.devices[0]) if finding.kind == "pinned_segments"]
    assert pinned == ["pinned_segments-1", "pinned_segments-2"]
    offered = offers(trace, trace.devices[0])
    assert [[str(offer.kind) for offer in offered[key]] for key in pinned] == [["expandable_segments"], []]


def test_what_saves_nothing_or_has_another_allocator_is_not_offered():
    loop = Loop().make(900, 2000, []).end(900, 2000)
    for step in range(3):
        loop.forward().make(50 + step, 30, [])
        if step:
            loop.end(50 + step - 1, 30)
        loop.backward().step().without_gradient()
    trace = loop.trace()
    assert findings(trace, trace.devices[0])
    assert not any(offers(trace, trace.devices[0]).values())
    trace = network(steps=2)
    assert offers(trace, replace(trace.devices[0], kind="host")) == {}
