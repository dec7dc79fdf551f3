"""The answers of the What if tab: the replays of a question, the parts of the page that show them, and their files."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from memviz.allocator.event_replay import Progress, part_of, rest_of
from memviz.allocator.replayer import WhatIf
from memviz.allocator.settings import settings_of
from memviz.results.headline import trace_name
from memviz.results.replay import replay_of
from memviz.results.replay_headline import replay_headline
from memviz.text import Html, joined, tag
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.ui.payloads.segment_view import map_value
from memviz.ui.payloads.timelines import LinkedTrace, linked_values
from memviz.ui.shell.session import Context, Session, open_derived_trace
from memviz.ui.shell.temporary_files import (
    SharedFiles,
    file_stem,
    json_writer,
    snapshot_writer,
    table_writer,
    text_writer,
)
from memviz.ui.what_if.plots import map_sides, moment_that_matters, plot_label, plot_value
from memviz.ui.what_if.question import ParsedQuestion, Question, WhatIfState, parse_question
from memviz.ui.what_if.replays import UNASKED_SECONDS, Replays, Terms, TooLong, most_seconds, within
from memviz.ui.what_if.saved_page import what_if_page
from memviz.ui.what_if.settings_form import KnownMemory
from memviz.ui.what_if.verdict import Answer, blocks_html, keep_html, search_html, segments_head_html, what_if_html
from memviz.units import bytes_text

_LONGEST_UNASKED = 200_000
_SEARCH_PARTS = 6
"""How many times as long as an answer a search takes, about."""


_TEXTS = ("waiting", "verdict", "offer", "head", "table", "blocks", "keep")
_VALUES = ("plot", "maps", "recorded", "replayed")
PARTS = ("state", "form", *_TEXTS, *_VALUES)
"""Names of what an answer sets: panels of text, and components with a value."""
EMPTY: dict[str, Any] = dict.fromkeys(_TEXTS, "") | dict.fromkeys(_VALUES, {})


def terms_of(parsed: ParsedQuestion) -> Terms:
    return Terms(parsed.card, parsed.release, parsed.overhead_bytes)


class WhatIfAnswers:
    def __init__(self, context: Context, replays: Replays, samples: str = "") -> None:
        self.context = context
        self.replays = replays
        self.samples = samples

    def offer_html(self) -> Html:
        """Return the page shown while no trace is open."""
        text = "Drop a snapshot on the left. Its requests are replayed with other settings, or on another card."
        head = tag("h1", "Open a trace to try other allocator settings.", class_="mv-verdict")
        return joined(tag("header", head, tag("p", text, class_="mv-lead")), Html(self.samples))

    def find(self, key: str, parsed: ParsedQuestion, searches: bool, progress: Progress) -> tuple[WhatIf, Any]:
        assert parsed.settings is not None
        parts = 1 + _SEARCH_PARTS if searches else 1
        pair = self.context.find(key)
        if pair is not None:
            progress = within(most_seconds(pair[1]), progress)
        outcome = self.replays.what_if(key, parsed.settings, terms_of(parsed), part_of(progress, 0, parts))
        if searches:
            return outcome, self.replays.search(key, parsed.settings, terms_of(parsed), rest_of(progress, parts))
        return outcome, self.replays.known_search(key, terms_of(parsed))

    def answer_values(self, state: WhatIfState, answer: Answer) -> dict[str, Any]:
        """Return the values by the names of `PARTS`."""
        if not answer.has_history:
            return {**EMPTY, "verdict": what_if_html(answer)}
        device, outcome = answer.device, answer.what_if
        label = plot_label(outcome, str(replay_headline(outcome, answer.searched)))
        return {
            **EMPTY,
            "verdict": what_if_html(answer),
            "plot": plot_value(device, outcome, at=answer.at, label=label),
            "head": segments_head_html(answer.at, matters=True),
            "maps": self._maps(state.key, answer),
            "table": search_html(answer, answer.searched),
            "blocks": blocks_html(state.with_blocks),
            "keep": keep_html(),
            **self._timelines(state, outcome),
        }

    def recorded_memory(self, key: str) -> KnownMemory:
        """Return the memory that the process could use, if the recording shows it by an OOM or by freed segments."""
        pair = self.context.find(key)
        if pair is None or self.replays.is_slow(key):
            return KnownMemory(None)
        events = pair[1].events
        gives_back = np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP, Action.OOM))
        # Long recordings are left out, since a replay takes too long.
        if pair[1].kind != "gpu" or len(events) > _LONGEST_UNASKED or not gives_back.any():
            return KnownMemory(None)
        try:
            replayer = self.replays.replayer(key)
            replayer.as_recorded(within(UNASKED_SECONDS))
        except TooLong:
            self.replays.know_slow(key)
            return KnownMemory(None)
        memory = replayer.releases.memory
        return KnownMemory(None) if memory is None else KnownMemory(memory.least, is_exact=memory.least == memory.most)

    def displayed_answer(self, state: WhatIfState) -> tuple[Trace, DeviceTrace, WhatIf] | None:
        """Return the displayed answer, or None if the trace was closed or there was no answer."""
        pair, parsed = self.context.find(state.key), parse_question(state.question)
        if pair is None or parsed.settings is None:
            return None
        try:
            again = within(most_seconds(pair[1]))
            return *pair, self.replays.what_if(state.key, parsed.settings, terms_of(parsed), again)
        except TooLong:
            return None

    def shared_files(self, state: WhatIfState, session: Session) -> SharedFiles:
        """Return the displayed answer as files."""
        displayed = self.displayed_answer(state)
        if displayed is None:
            return {}
        trace, device, outcome = displayed
        searched = self.replays.known_search(state.key, terms_of(parse_question(state.question)))
        name = f"{file_stem(_name(state, session, trace))}-replayed"
        result = replay_of(trace, device, outcome, searched)
        return {
            "page": ("what-if.html", text_writer(lambda: what_if_page(trace, device, outcome, searched))),
            "csv": (f"{name}.csv", table_writer(lambda: [asdict(row) for row in result.rows])),
            "json": (f"{name}.json", json_writer(result.as_json)),
            "snapshot": (f"{name}.pickle", snapshot_writer(lambda: outcome.replayed.trace)),
        }

    def with_replay(self, state: WhatIfState, session: Session, *, compared: bool) -> Session:
        """Return the session with the replay as one more open trace, whose name differs from its recording's."""
        displayed = self.displayed_answer(state)
        if displayed is None:
            return session
        replayed = displayed[2].replayed
        limit = "" if replayed.memory is None else f" in {bytes_text(replayed.memory)}"
        about, name = replayed.trace.about, _name(state, session, displayed[0])
        renamed = replace(replayed.trace, about=replace(about, source=f"replay of {name}{limit}"))
        recording = state.key.partition("/")[0]
        return open_derived_trace(self.context.store, session, recording, renamed, compared=compared)

    def values_at(self, state: WhatIfState, at: str) -> dict[str, Any]:
        """Head and maps at an event that was chosen on the plot."""
        displayed = self.displayed_answer(state)
        if displayed is None or not at.lstrip("-").isdigit():
            return {}
        _, device, outcome = displayed
        event_number = min(max(int(at), -1), len(device.events) - 1)
        answer = Answer(device, outcome, None, event_number)
        matters = event_number == moment_that_matters(device, outcome)
        return {"head": segments_head_html(event_number, matters=matters), "maps": self._maps(state.key, answer)}

    def _maps(self, key: str, answer: Answer) -> dict[str, Any]:
        maps = []
        for side in map_sides(answer):
            name = key if side.is_recording else self.replays.key_of(side.replayed)
            maps.append({"caption": side.caption, "map": map_value(side.device, name, at=side.at)})
        return {"maps": maps}

    def _timelines(self, state: WhatIfState, outcome: WhatIf) -> dict[str, Any]:
        pair = self.context.find(state.key)
        if not state.with_blocks or pair is None or outcome.replayed is outcome.recorded:
            return {"recorded": {}, "replayed": {}}
        trace = outcome.replayed.trace
        before = LinkedTrace("A", state.key, "as recorded", *pair)
        key = self.replays.key_of(outcome.replayed)
        after = LinkedTrace("B", key, trace.about.label, trace, trace.devices[0])
        return dict(zip(("recorded", "replayed"), linked_values((before, after)), strict=True))


def _name(state: WhatIfState, session: Session, trace: Trace) -> str:
    opened = session.of(state.key.partition("/")[0])
    return opened.name if opened is not None else trace_name(trace.about.source)


def first_question(trace: Trace, device: DeviceTrace, known_memory: KnownMemory) -> Question:
    """Segments that expand, in the memory that the process had where that is known."""
    recorded, _ = settings_of(trace, device)
    memory = known_memory.memory
    question = Question(memory=f"{memory >> 20:,} MiB" if memory else "")
    return question.with_settings(replace(recorded, expandable_segments=True))
