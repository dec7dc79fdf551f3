"""Replays of the open trace under other settings, or on another card.

The form is on the left, the answer on the right. Every change is replayed at once, beside the page's own threads;
a new question ends the one before. Recordings of millions of events are replayed when the button is pressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from memviz.allocator.settings import parse_settings
from memviz.errors import MemvizError
from memviz.text import Html
from memviz.trace.model import DeviceTrace
from memviz.ui.components.component import Panel, PlainForm, TabTurn, clicked, form_fields
from memviz.ui.components.plots import MemoryTimeline, ReservedPlot, SegmentPair
from memviz.ui.shell.background_jobs import BackgroundJob, BackgroundJobs, BackgroundStopped
from memviz.ui.shell.gradio_events import IN_PARTS, ends_without_change
from memviz.ui.shell.session import Context, Session, timeline_key
from memviz.ui.shell.visitors import visitor_of
from memviz.ui.what_if.answer import EMPTY, PARTS, WhatIfAnswers, first_question, terms_of
from memviz.ui.what_if.plots import moment_that_matters
from memviz.ui.what_if.question import WhatIfState, parse_question, question_in, question_of
from memviz.ui.what_if.replays import Replays
from memviz.ui.what_if.settings_form import form_value
from memviz.ui.what_if.verdict import Answer, refusal_html, waiting_html

ID = "what-if"
LABEL = "What if"
_LONG = 2_000_000
"""Events from which on nothing is replayed unasked: that takes ten seconds and more."""
_SEARCHED_UNASKED = 20_000
"""Up to so many events the search runs by itself: it takes less than a second."""
_SHOWN_AFTER_SECONDS = 0.25


@dataclass(frozen=True)
class FollowedTrace:
    """The part of the session that this tab shows."""

    key: str = ""
    is_turned_to: bool = False


class WhatIfTab:
    """The tab's components and event handlers. They cache replays, and of a visitor only the running job.

    Each answer begins with a part: Gradio empties the outputs of a generator that yields nothing.
    """

    def __init__(self, context: Context, tabs: gr.Tabs, turn: TabTurn, samples: Html) -> None:
        """`samples` are shown while no trace is open."""
        replays = Replays(context)
        parts: dict[str, Any] = {"state": gr.State(WhatIfState())}

        def add_panels(**elements: str) -> None:
            for name, element in elements.items():
                parts[name] = Panel(elem_id=f"what-if-{element}")

        add_panels(waiting="waits", verdict="verdict", offer="offer")
        with gr.Row(elem_classes="mv-what-if"):
            with gr.Column(elem_classes="mv-what-if-form", scale=0, min_width=264):
                parts["form"] = PlainForm(elem_id="what-if-form")
            with gr.Column(elem_classes="mv-what-if-answer", min_width=320):
                parts["plot"] = ReservedPlot(elem_id="what-if-plot")
                add_panels(blocks="blocks")
                for side in ("recorded", "replayed"):
                    parts[side] = MemoryTimeline(replays.find, elem_id=f"what-if-{side}")
                add_panels(head="segments")
                parts["maps"] = SegmentPair(replays.find, elem_id="what-if-maps")
                add_panels(table="table")
                with gr.Row(elem_classes="mv-what-if-leave"):
                    add_panels(keep="keep")
        self.parts = parts
        """Components by the names of `PARTS`. The page hears clicks of `offer` (samples) and `keep` (a trace)."""
        self.trace = gr.State(FollowedTrace())
        """A change of it answers anew, if the tab is being looked at."""
        looked_at = gr.State(False)
        self.context = context
        self.answers = WhatIfAnswers(context, replays, samples)
        self.jobs = BackgroundJobs()
        self.outputs = [looked_at, self.trace]
        state, answer = parts["state"], [parts[name] for name in PARTS]
        self.trace.change(self._follow, [self.trace, state, looked_at], [looked_at, *answer], **IN_PARTS)
        for turned in (tabs, turn):
            turned.select(self._turn, [self.trace, state], [looked_at, *answer], **IN_PARTS)
        parts["form"].input(self._changed, state, answer, **IN_PARTS)
        parts["form"].click(self._pressed, state, answer, **IN_PARTS)
        parts["table"].click(self._used, state, answer, **IN_PARTS)
        parts["waiting"].click(self._cancel, None, parts["waiting"], **IN_PARTS)
        parts["plot"].select(self._moved, state, [parts["head"], parts["maps"]], **IN_PARTS)
        parts["blocks"].click(self._blocks, state, answer, **IN_PARTS)

    def open_replay(self, session: Session, state: WhatIfState, event: gr.EventData) -> tuple[Session, str | None]:
        """The session with the displayed replay as one more open trace, and the tab that shows it, if there is one."""
        tab = "compare" if clicked(event).get("act") == "compare" else "explore"
        after = self.answers.with_replay(state, session, compared=tab == "compare")
        return after, tab if after != session else None

    @ends_without_change
    def _follow(
        self, trace: FollowedTrace, state: WhatIfState, is_active: bool, request: gr.Request
    ) -> Iterator[list[Any]]:
        """Not looked at it is emptied: nobody who comes to the tab shall see another trace's answer.

        The page may have turned to it while the visitor's own turn to another tab was still on its way.
        """
        if is_active or trace.is_turned_to:
            yield [True, *_updates()]
            yield from ([gr.skip(), *values] for values in self._opened(trace.key, state, request))
        elif trace.key == state.key:
            yield [gr.skip(), *_updates()]
        else:
            yield from ([gr.skip(), *values] for values in self._emptied(state, request))

    @ends_without_change
    def _turn(
        self, trace: FollowedTrace, state: WhatIfState, event: gr.SelectData, request: gr.Request
    ) -> Iterator[list[Any]]:
        is_active = event.value == LABEL
        yield [is_active, *_updates()]
        if is_active:
            for values in self._opened(trace.key, state, request):
                yield [gr.skip(), *values]

    def _opened(self, key: str, state: WhatIfState, request: gr.Request) -> Iterator[list[Any]]:
        """A trace begins with the question that most people have, and stays as it was left."""
        if not key:
            yield from self._emptied(state, request, offer=self.answers.offer_html())
        elif state.key != key:
            next_state, is_first = state.turned_to(key)
            yield from self._answer(next_state, request, is_first=is_first, is_other_trace=True)

    def _emptied(self, state: WhatIfState, request: gr.Request, offer: str = "") -> Iterator[list[Any]]:
        # An answer about the trace before, still on its way, must not come after this.
        with self.jobs.answering(_visitor(request)):
            yield _updates(state=state.turned_to("")[0], form=None, **{**EMPTY, "offer": offer})

    @ends_without_change
    def _changed(self, state: WhatIfState, event: gr.EventData, request: gr.Request) -> Iterator[list[Any]]:
        question = question_of(form_fields(event))
        is_redrawn = question.card != state.question.card or question.overhead != state.question.overhead
        turned = replace(state, question=question, turn=state.turn + (is_redrawn and question.card.isdigit()))
        yield from self._answer(turned, request)

    @ends_without_change
    def _pressed(self, state: WhatIfState, event: gr.EventData, request: gr.Request) -> Iterator[list[Any]]:
        form = form_fields(event)
        turned, finds_best = replace(state, question=question_of(form)), form.get("act") == "best"
        yield from self._answer(turned, request, is_pressed=True, searches=finds_best)
        if finds_best:
            yield from self._advised(turned, request)

    def _advised(self, state: WhatIfState, request: gr.Request) -> Iterator[list[Any]]:
        """Fill the form with the best settings that a search found."""
        parsed = parse_question(state.question)
        searched = self.answers.replays.known_search(state.key, terms_of(parsed))
        if searched is not None and searched.advised.settings != parsed.settings:
            question = state.question.with_settings(searched.advised.settings)
            yield from self._answer(replace(state, question=question, turn=state.turn + 1), request, is_pressed=True)

    @ends_without_change
    def _used(self, state: WhatIfState, event: gr.EventData, request: gr.Request) -> Iterator[list[Any]]:
        yield _updates()
        try:
            settings = parse_settings(clicked(event).get("settings", ""))
        except MemvizError:
            return
        turned = replace(state, question=state.question.with_settings(settings), turn=state.turn + 1)
        yield from self._answer(turned, request, is_pressed=True)

    def _cancel(self, request: gr.Request) -> str:
        with self.jobs.answering(_visitor(request)):
            return ""

    @ends_without_change
    def _blocks(self, state: WhatIfState, request: gr.Request) -> Iterator[list[Any]]:
        yield from self._answer(replace(state, with_blocks=not state.with_blocks), request, is_pressed=True)

    def _moved(self, state: WhatIfState, event: gr.EventData) -> list[Any]:
        moved = self.answers.values_at(state, str(form_fields(event).get("at", "")))
        return [moved.get(name, gr.skip()) for name in ("head", "maps")]

    # -- answering

    def _answer(
        self,
        state: WhatIfState,
        request: gr.Request,
        *,
        is_first: bool = False,
        is_other_trace: bool = False,
        is_pressed: bool = False,
        searches: bool = False,
    ) -> Iterator[list[Any]]:
        pair = self.context.find(state.key)
        if pair is None:
            # The trace was closed; the one that is open now gets an event of its own.
            yield _updates()
            return
        device = pair[1]
        if is_first:
            state = replace(state, question=first_question(*pair, self.answers.recorded_memory(state.key)))
        parsed = parse_question(state.question)
        form = form_value(
            state.question, parsed, self.answers.recorded_memory(state.key), version=f"{state.key} {state.turn}"
        )
        # What was asked before is answered no more, also where this is refused: it would take the words away again.
        with self.jobs.answering(_visitor(request)) as is_newest:
            yield _updates(**{"waiting": "", **(EMPTY if is_other_trace else {}), "state": state, "form": form})
            if parsed.settings is None or not is_newest():
                return
            if len(device.events) > _LONG and not is_pressed:
                message = refusal_html("Press Replay. This recording is long, so the replay takes a while.")
                yield _updates(form=form, verdict=message)
                return
            searches = searches or len(device.events) <= _SEARCHED_UNASKED
            job = self.jobs.begin(
                _visitor(request),
                lambda progress: self.answers.find(state.key, parsed, searches, progress),
                visitor_of(getattr(request.request, "scope", {})),
            )
            # Gradio sends what changed from part to part, and takes a value that is missing in the next one back.
            for part in self._work(job, state, device, is_newest):
                yield _updates(form=form, **part)
            self.jobs.ended(_visitor(request), job)

    def _work(
        self, job: BackgroundJob, state: WhatIfState, device: DeviceTrace, is_newest: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        while not job.is_done(_SHOWN_AFTER_SECONDS):
            if job.is_stopped or not is_newest():
                job.stop()
                return
            yield {"waiting": waiting_html(job.share, events=len(device.events))}
        try:
            outcome, searched = job.result()
        except BackgroundStopped:
            return
        except MemvizError as error:
            yield {**EMPTY, "verdict": refusal_html(str(error))}
            return
        answer = Answer(device, outcome, searched, moment_that_matters(device, outcome))
        values = self.answers.answer_values(state, answer)
        if is_newest():
            yield values


def show(session: Session, tab: str | None) -> list[Any]:
    """The values of `WhatIfTab.outputs`: all that the tab needs to know to answer when it is looked at.

    `tab` is the one that the page selects itself, for which Gradio sends no event.
    """
    key = timeline_key(session.current)
    return [tab == ID if tab else gr.skip(), FollowedTrace(key, tab == ID)]


def state_from_link(session: Session, query: Mapping[str, str]) -> WhatIfState:
    """Return a state that holds a link's question as an earlier question about the open trace."""
    assert session.current is not None
    return WhatIfState(left=((timeline_key(session.current), question_in(query)),))


def _updates(**values: Any) -> list[Any]:
    """One for each of `PARTS`; what is not given stays as it is."""
    return [values.get(name, gr.skip()) for name in PARTS]


def _visitor(request: gr.Request) -> str:
    return str(request.session_hash)
