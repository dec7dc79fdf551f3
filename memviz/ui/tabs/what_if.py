"""What if: the open trace under other settings, or on another card.

The form is on the left, the answer on the right. Every change is replayed at once, beside the page's own threads;
a new question ends the one before. Recordings of millions of events are replayed when the button is pressed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.allocator.recorded_settings import settings_of
from memviz.allocator.replayer import Progress, Replayed, part_of
from memviz.allocator.settings import parse_settings
from memviz.allocator.verdict import verdict
from memviz.allocator.what_if import WhatIf
from memviz.analysis.timeline import timeline
from memviz.errors import MemvizError
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.ui.asked import Asked, Understood, asked_of, understood
from memviz.ui.compared import CompareView, Side
from memviz.ui.components.memory_timeline import MemoryTimeline
from memviz.ui.components.panel import Panel, clicked
from memviz.ui.components.reserved_plot import ReservedPlot
from memviz.ui.components.segment_pair import SegmentPair
from memviz.ui.components.settings_form import SettingsForm, said
from memviz.ui.context import Context, timeline_key
from memviz.ui.replays import Replays
from memviz.ui.session import Opened, Session
from memviz.ui.tabs.segments import map_value
from memviz.ui.views.linked_timelines import linked_values
from memviz.ui.views.reserved_plot import event_in, moment_that_matters, plot_label, plot_value
from memviz.ui.views.settings_form import Had, form_value
from memviz.ui.views.what_if import (
    Found,
    blocks_html,
    caption,
    refusal_html,
    save_html,
    search_html,
    segments_head_html,
    waiting_html,
    what_if_html,
)
from memviz.ui.what_if_page import what_if_page
from memviz.ui.work import Stopped, Work, Workshop

ID = "what-if"
LABEL = "What if"
_LONG = 2_000_000
"""Events from which on nothing is replayed unasked: that takes ten seconds and more."""
_SEARCHED_UNASKED = 20_000
"""Up to so many events all settings that matter are replayed within a second, so nobody has to ask."""
_SEARCH_PARTS = 6
"""How many times as long as an answer a search takes, about."""
_SHOWN_AFTER_SECONDS = 0.25
_SAVE = "() => document.querySelector('#what-if-saved a, a#what-if-saved, #what-if-saved')?.click()"
_EVENTS: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "concurrency_limit": None,
    "trigger_mode": "multiple",
}
"""Through the queue, for answers that come in parts; a new question is sent while an old one runs, and ends it."""


@dataclass(frozen=True)
class Shown:
    """What a visitor sees on this tab. Plain and frozen: every change is a new one."""

    key: str = ""
    asked: Asked = Asked()
    turn: int = 0
    """Grows where the page itself fills the form in."""
    with_blocks: bool = False


@dataclass(frozen=True)
class Open:
    """What of the session this tab shows."""

    key: str = ""
    is_turned_to: bool = False


@dataclass(frozen=True)
class WhatIfTab:
    waiting: Panel
    verdict: Panel
    form: SettingsForm
    plot: ReservedPlot
    head: Panel
    maps: SegmentPair
    table: Panel
    blocks: Panel
    save: Panel
    saved: gr.DownloadButton
    timelines: tuple[MemoryTimeline, MemoryTimeline]
    trace: gr.State
    """An `Open`. A change of it answers anew, if the tab is being looked at."""
    looked_at: gr.State
    shown: gr.State

    @property
    def outputs(self) -> list[Any]:
        return [self.looked_at, self.trace]

    @property
    def answer(self) -> list[Any]:
        parts = [self.shown, self.waiting, self.verdict, self.form, self.plot, self.head, self.maps, self.table]
        return [*parts, self.blocks, self.save, *self.timelines]


_ANSWER = (
    "shown",
    "waiting",
    "verdict",
    "form",
    "plot",
    "head",
    "maps",
    "table",
    "blocks",
    "save",
    "recorded",
    "replayed",
)


def build(context: Context, session: gr.State, tabs: gr.Tabs) -> WhatIfTab:
    replays = Replays(context)
    waiting, answer = Panel(elem_id="what-if-waits"), Panel(elem_id="what-if-verdict")
    with gr.Row(elem_classes="mv-what-if"):
        with gr.Column(elem_classes="mv-what-if-form", scale=0, min_width=264):
            form = SettingsForm(elem_id="what-if-form")
        with gr.Column(elem_classes="mv-what-if-answer", min_width=320):
            plot = ReservedPlot(elem_id="what-if-plot")
            blocks = Panel(elem_id="what-if-blocks")
            lines = tuple(MemoryTimeline(replays.find, elem_id=f"what-if-{each}") for each in ("recorded", "replayed"))
            head = Panel(elem_id="what-if-segments")
            maps = SegmentPair(replays.find, elem_id="what-if-maps")
            table = Panel(elem_id="what-if-table")
            save = Panel(elem_id="what-if-save")
    saved = gr.DownloadButton("Save", visible="hidden", elem_id="what-if-saved")
    parts = WhatIfTab(
        waiting,
        answer,
        form,
        plot,
        head,
        maps,
        table,
        blocks,
        save,
        saved,
        timelines=(lines[0], lines[1]),
        trace=gr.State(Open()),
        looked_at=gr.State(False),
        shown=gr.State(Shown()),
    )
    _Wiring(context, replays, parts).wire(session, tabs)
    return parts


def show(session: Session, tab: str | None) -> list[Any]:
    """The values of `WhatIfTab.outputs`: all that the tab needs to know to answer when it is looked at.

    `tab` is the one that the page turns to by itself, of which Gradio tells nobody.
    """
    key = timeline_key(session.current) if session.current is not None else ""
    return [tab == ID if tab else gr.skip(), Open(key, tab == ID)]


class _Wiring:
    """Which event asks what. It keeps replays for a while, and of a visitor only the work under way."""

    def __init__(self, context: Context, replays: Replays, parts: WhatIfTab) -> None:
        self.context = context
        self.replays = replays
        self.parts = parts
        self.workshop = Workshop()

    def wire(self, session: gr.State, tabs: gr.Tabs) -> None:
        parts = self.parts
        parts.trace.change(self._follow, [parts.trace, parts.shown, parts.looked_at], parts.answer, **_EVENTS)
        tabs.select(self._turn, [parts.trace, parts.shown], [parts.looked_at, *parts.answer], **_EVENTS)
        parts.form.input(self._changed, parts.shown, parts.answer, **_EVENTS)
        parts.form.click(self._pressed, parts.shown, parts.answer, **_EVENTS)
        parts.table.click(self._used, parts.shown, parts.answer, **_EVENTS)
        parts.waiting.click(self._cancel, None, parts.waiting, **_EVENTS)
        parts.plot.select(self._moved, parts.shown, [parts.head, parts.maps], **_EVENTS)
        parts.blocks.click(self._blocks, parts.shown, parts.answer, **_EVENTS)
        parts.save.click(self._page, parts.shown, parts.saved, **_EVENTS).then(None, js=_SAVE)

    def _follow(self, trace: Open, shown: Shown, looked_at: bool, request: gr.Request) -> Iterator[list[Any]]:
        if looked_at:
            yield from self._opened(trace.key, shown, request)

    def _turn(self, trace: Open, shown: Shown, event: gr.SelectData, request: gr.Request) -> Iterator[list[Any]]:
        looked_at = event.value == LABEL
        yield [looked_at, *_skipped()]
        if looked_at:
            for values in self._opened(trace.key, shown, request):
                yield [gr.skip(), *values]

    def _opened(self, key: str, shown: Shown, request: gr.Request) -> Iterator[list[Any]]:
        """Another trace begins with the question that most people have; the same one stays as it was left."""
        if shown.key != key:
            yield from self._answer(Shown(key, turn=shown.turn + 1), request, is_first=True)

    def _changed(self, shown: Shown, event: gr.EventData, request: gr.Request) -> Iterator[list[Any]]:
        asked = asked_of(said(event))
        is_redrawn = asked.card != shown.asked.card or asked.overhead != shown.asked.overhead
        turned = replace(shown, asked=asked, turn=shown.turn + (is_redrawn and asked.card.isdigit()))
        yield from self._answer(turned, request)

    def _pressed(self, shown: Shown, event: gr.EventData, request: gr.Request) -> Iterator[list[Any]]:
        form = said(event)
        turned = replace(shown, asked=asked_of(form))
        yield from self._answer(turned, request, is_pressed=True, searches=form.get("act") == "best")

    def _used(self, shown: Shown, event: gr.EventData, request: gr.Request) -> Iterator[list[Any]]:
        try:
            settings = parse_settings(clicked(event).get("settings", ""))
        except MemvizError:
            return
        turned = replace(shown, asked=shown.asked.with_settings(settings), turn=shown.turn + 1)
        yield from self._answer(turned, request, is_pressed=True)

    def _cancel(self, request: gr.Request) -> str:
        self.workshop.stop(_visitor(request))
        return ""

    def _blocks(self, shown: Shown, request: gr.Request) -> Iterator[list[Any]]:
        yield from self._answer(replace(shown, with_blocks=not shown.with_blocks), request, is_pressed=True)

    def _page(self, shown: Shown) -> str | None:
        """The file of what is shown, under a name that nobody can guess; the page's cache cleans it away."""
        pair, meant = self.context.find(shown.key), understood(shown.asked)
        if pair is None or meant.settings is None:
            return None
        asked = self.replays.what_if(shown.key, meant.settings, meant.card)
        searched = self.replays.known_search(shown.key, (meant.settings, meant.card, meant.release))
        path = Path(tempfile.mkdtemp(prefix="memviz-")) / "what-if.html"
        path.write_text(what_if_page(pair[1], asked, searched), encoding="utf-8", errors="replace")
        return str(path)

    def _moved(self, shown: Shown, event: gr.EventData) -> list[Any]:
        """The maps at an event that was chosen on the plot."""
        at, pair = said(event).get("at", ""), self.context.find(shown.key)
        meant = understood(shown.asked)
        if pair is None or meant.settings is None or not at.lstrip("-").isdigit():
            return [gr.skip(), gr.skip()]
        asked = self.replays.what_if(shown.key, meant.settings, meant.card)
        event_number = min(max(int(at), -1), len(pair[1].events) - 1)
        found = Found(pair[1], asked, None, event_number)
        matters = event_number == moment_that_matters(pair[1], asked)
        return [segments_head_html(event_number, matters=matters), self._maps(shown.key, found)]

    # -- answering

    def _answer(
        self,
        shown: Shown,
        request: gr.Request,
        *,
        is_first: bool = False,
        is_pressed: bool = False,
        searches: bool = False,
    ) -> Iterator[list[Any]]:
        pair = self.context.find(shown.key)
        if pair is None:
            yield _values(shown=shown, **_EMPTY)
            return
        device = pair[1]
        if is_first:
            shown = replace(shown, asked=_first_question(*pair))
        meant = understood(shown.asked)
        form = form_value(shown.asked, meant, _had(device), version=f"{shown.key} {shown.turn}")
        yield _values(shown=shown, form=form, **(_EMPTY if is_first else {}))
        if meant.settings is None:
            return
        if len(device.events) > _LONG and not is_pressed:
            yield _values(verdict=refusal_html("Press Replay: this recording is long, and replaying it takes a while."))
            return
        searches = searches or len(device.events) <= _SEARCHED_UNASKED
        yield from self._work(shown, meant, device, request, searches=searches)

    def _work(
        self, shown: Shown, meant: Understood, device: DeviceTrace, request: gr.Request, *, searches: bool
    ) -> Iterator[list[Any]]:
        visitor = _visitor(request)
        work = self.workshop.begin(visitor, lambda progress: self._find(shown.key, meant, searches, progress))
        while not work.is_done(_SHOWN_AFTER_SECONDS):
            if work.is_stopped:
                return
            yield _values(waiting=waiting_html(work.share, events=len(device.events)))
        yield self._result(work, shown, meant, device)
        self.workshop.ended(visitor, work)

    def _result(self, work: Work, shown: Shown, meant: Understood, device: DeviceTrace) -> list[Any]:
        try:
            asked, searched = work.result()
        except Stopped:
            return _skipped()
        except MemvizError as error:
            return _values(**{**_EMPTY, "verdict": refusal_html(str(error))})
        found = Found(device, asked, searched, moment_that_matters(device, asked))
        return self._drawn(shown, found)

    def _find(self, key: str, meant: Understood, searches: bool, progress: Progress) -> tuple[WhatIf, Any]:
        assert meant.settings is not None
        parts = 1 + _SEARCH_PARTS if searches else 1
        asked = self.replays.what_if(key, meant.settings, meant.card, part_of(progress, 0, parts))
        question = (meant.settings, meant.card, meant.release)
        if searches:

            def rest(done: int, total: int) -> None:
                progress(total + _SEARCH_PARTS * done, parts * total)

            return asked, self.replays.search(key, question, rest)
        return asked, self.replays.known_search(key, question)

    def _drawn(self, shown: Shown, found: Found) -> list[Any]:
        if not found.has_history:
            return _values(**{**_EMPTY, "verdict": what_if_html(found)})
        device, asked = found.device, found.what_if
        label = plot_label(asked, " ".join(verdict(asked, found.searched)))
        return _values(
            waiting="",
            verdict=what_if_html(found),
            plot=plot_value(device, asked, at=found.at, label=label),
            head=segments_head_html(found.at, matters=True),
            maps=self._maps(shown.key, found),
            table=search_html(found, found.searched),
            blocks=blocks_html(shown.with_blocks),
            save=save_html(),
            **self._timelines(shown, asked, device),
        )

    def _maps(self, key: str, found: Found) -> dict[str, Any]:
        """Of what ran out, or was recorded, and of what would have been. Behind its end a replay shows nothing."""
        asked = found.what_if
        ran_out = asked.base.oom is not None and found.at <= asked.base.oom.event
        left, ours = asked.base if ran_out else asked.recorded, asked.replayed
        has_more = ours is not left and (ours.oom is None or found.at <= ours.oom.event)
        sides = [left, ours] if has_more else [left]
        return {"maps": [self._map(key, each, found) for each in sides]}

    def _map(self, key: str, replayed: Replayed, found: Found) -> dict[str, Any]:
        is_recording = replayed is found.what_if.recorded
        device = found.device if is_recording else replayed.trace.devices[0]
        at = found.at if is_recording else event_in(replayed, found.at)
        name = key if is_recording else self.replays.key_of(replayed)
        return {"caption": caption(replayed, is_recording=is_recording), "map": map_value(device, name, {"at": at})}

    def _timelines(self, shown: Shown, asked: WhatIf, device: DeviceTrace) -> dict[str, Any]:
        pair = self.context.find(shown.key)
        if not shown.with_blocks or pair is None or asked.replayed is asked.recorded:
            return {"recorded": {}, "replayed": {}}
        ours = asked.replayed
        name = self.replays.key_of(ours).partition("/")[0]
        trace, replayed = ours.trace, ours.trace.devices[0]
        key = shown.key.partition("/")[0]
        sides = (
            Side("A", Opened(key, "as recorded", device.name, (device.name,)), *pair),
            Side("B", Opened(name, trace.about.label, replayed.name, (replayed.name,)), trace, replayed),
        )
        recorded, after = linked_values(sides, CompareView())
        return {"recorded": recorded, "replayed": after}


_EMPTY: dict[str, Any] = {
    "waiting": "",
    "verdict": "",
    "plot": {},
    "head": "",
    "maps": {},
    "table": "",
    "blocks": "",
    "save": "",
    "recorded": {},
    "replayed": {},
}


def _values(**given: Any) -> list[Any]:
    """One for each of `WhatIfTab.answer`; what is not given stays as it is."""
    return [given.get(name, gr.skip()) for name in _ANSWER]


def _skipped() -> list[Any]:
    return [gr.skip()] * len(_ANSWER)


def _visitor(request: gr.Request) -> str:
    return str(request.session_hash)


def _first_question(trace: Trace, device: DeviceTrace) -> Asked:
    """Segments that expand, in the memory that the process had where that is known."""
    recorded, _ = settings_of(trace, device)
    had = _had(device).memory
    asked = Asked(memory=f"{had >> 20:,} MiB" if had else "")
    return asked.with_settings(replace(recorded, expandable_segments=True))


def _had(device: DeviceTrace) -> Had:
    """What was reserved when it first ran out, and what the driver called free then."""
    failed = (device.events.action == Action.OOM).nonzero()[0]
    if not len(failed):
        return Had(None)
    event = int(failed[0])
    return Had(int(timeline(device).reserved[event + 1]) + int(device.events.address[event]))
