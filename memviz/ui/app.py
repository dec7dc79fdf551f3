"""The page: its style sheets and scripts, sidebar and tabs, and how an opened trace travels between them."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.route_utils import get_root_url
from starlette.middleware import Middleware

from memviz.ranks.summary import RankSummary
from memviz.text import Html
from memviz.trace.model import Trace
from memviz.ui.compare import programs as compare_programs
from memviz.ui.compare import tab as compare
from memviz.ui.compare.state import TAB, compare_session, compare_state_of
from memviz.ui.components.component import (
    Arrivals,
    Component,
    FindField,
    Panel,
    PlainForm,
    TabTurn,
    clicked,
    turn_to,
    worker_html,
)
from memviz.ui.components.plots import MemoryTimeline, Overlay, RankMap, ReservedPlot, SegmentMap, SegmentPair
from memviz.ui.components.scripts import bundle
from memviz.ui.components.tables import EventList, HighlightPanel, WaterfallTable
from memviz.ui.explore import programs as explore_programs
from memviz.ui.explore import tab as explore
from memviz.ui.explore.findings import with_estimate
from memviz.ui.explore.tab import trace_files
from memviz.ui.ranks import tab as ranks
from memviz.ui.ranks.answer import has_ranks
from memviz.ui.ranks.views import CARD_CHOICES, card_form
from memviz.ui.run import programs as run_programs
from memviz.ui.run import tab as run
from memviz.ui.run.answer import RunState
from memviz.ui.shell.gradio_events import IN_PARTS, IN_TURN, NO_PROGRESS, PRIVATE, FairQueueBlocks, QuickBlocks, in_turn
from memviz.ui.shell.housekeeping import Housekeeping, poll_less_when_idle
from memviz.ui.shell.page_frame import (
    PAGE_READY,
    PAGE_STARTS,
    actions_html,
    brand_html,
    foot_html,
    kept_link_html,
    missing_trace_html,
    refused_html,
    theme,
    traces_html,
)
from memviz.ui.shell.programs import QUEUE, ExplainingBlocks, serve_agents, with_worded_errors
from memviz.ui.shell.request_guard import RequestGuard
from memviz.ui.shell.session import SAMPLE, Context, Session, find_by_link, open_trace, parts_of_sample, view_state
from memviz.ui.shell.static_cache import SharedPage, StaticCache, without_hidden
from memviz.ui.shell.store import TraceStore
from memviz.ui.shell.temporary_files import Exports, SharedFiles, drop_page, file_with, keep_page, link_hours
from memviz.ui.shell.visitors import OpenPages, Windows, visitor_of
from memviz.ui.upload import routes
from memviz.ui.upload.opening import on_upload, open_sample, reopen_traces, session_after, tab_after
from memviz.ui.upload.reading import Readings
from memviz.ui.upload.samples import OFFERED_SAMPLES, record_html, samples_html, welcome_html
from memviz.ui.what_if import programs as what_if_programs
from memviz.ui.what_if import tab as what_if

_UI = Path(__file__).parent
STYLES = (
    "shell/page_frame.css",
    "explore/explore.css",
    "compare/compare.css",
    "ranks/ranks.css",
    "what_if/what_if.css",
    "run/run.css",
    "run/fit.css",
    "run/cards.css",
)
"""In this order; the tokens that all others read are in the first."""
COMPONENTS: tuple[type[Component], ...] = (
    Arrivals,
    MemoryTimeline,
    SegmentMap,
    EventList,
    ReservedPlot,
    SegmentPair,
    Overlay,
    WaterfallTable,
    PlainForm,
    Panel,
    HighlightPanel,
    FindField,
    RankMap,
    TabTurn,
)
"""All with a script, which the page loads once; their style sheets come in this order."""


TITLE = "memviz: what fills your GPU"
_TO_THE_TOP = "() => window.scrollTo(0, 0)"
_SAVE = "() => document.querySelector('#saved a, a#saved, #saved')?.click()"


def build_app(
    traces_given: Sequence[Trace] = (), programs: Sequence[Path] = (), ranks_given: RankSummary | None = None
) -> gr.Blocks:
    """Build the page. Given traces and ranks are open to every visitor from the start; Run offers `programs`."""
    context = Context(TraceStore(), tuple(map(str, programs)), ranks_given)
    given = Session()
    for trace in traces_given:
        # The owner of this machine gave the trace, so source files that it names are shown wherever they are.
        here = (os.sep, os.getcwd())
        given = given.with_opened(open_trace(context.store, trace, pinned=True, source_folders=here))
    page = PageBlocks(title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(300, 3600))
    page.store = context.store
    page.readings = Readings(context, routes.most_bytes())
    page.exports = Exports()
    page.open_pages = OpenPages()
    page.windows = Windows(page)
    page.housekeeping = Housekeeping(page)
    with page:
        programs_row = _Page(context, given, page.windows).build(page)
    script = bundle(_UI / "shell" / "page.js", *(component.script for component in COMPONENTS))
    page.shared_page = SharedPage(
        Html(PAGE_STARTS + worker_html()), script, partial(without_hidden, hidden=programs_row)
    )
    return page


class PageBlocks(FairQueueBlocks, QuickBlocks, ExplainingBlocks):
    """The page, with the attributes that routes and the request guard find through Gradio's application."""

    store: TraceStore
    readings: Readings
    """Files on their way here."""
    exports: Exports
    """Files on their way out."""
    open_pages: OpenPages
    windows: Windows
    housekeeping: Housekeeping
    shared_page: SharedPage


class _Page:
    """Everything on the page, laid out by `build` and wired by `_wire`. It keeps nothing of any visitor."""

    def __init__(self, context: Context, given: Session, windows: Windows) -> None:
        self.context = context
        self.given = given
        self.windows = windows

    def build(self, page: gr.Blocks) -> int:
        """Lay out and wire the page, and return the number of the block that only programs use."""
        self.session = gr.State(Session())
        # What this browser may open again after a reload. The keys are worth nothing to anybody else.
        self.browser = gr.BrowserState([], storage_key="memviz-open-traces", secret="memviz")
        self.browser_name = gr.BrowserState("", storage_key="memviz-browser", secret="memviz")
        self._sidebar()
        self.band = Panel(elem_id="band")
        self._tabs()
        with gr.Row(visible=False) as programs:
            explore_programs.build()
            compare_programs.build()
            run_programs.build(self.run.answers)
            what_if_programs.build()
        self._wire(page)
        return int(programs._id)

    def _sidebar(self) -> None:
        with gr.Sidebar(width=244, elem_classes="mv-side"):
            gr.HTML(brand_html(), apply_default_css=False)
            self.traces = Panel(traces_html(Session(), self.context.of), elem_id="traces")
            self.arrivals = Arrivals(elem_id="arrivals")
            _drop_target("Drop snapshots here", "files", 92)
            self.foot = Panel(foot_html(), elem_id="foot")

    def _tabs(self) -> None:
        with gr.Column(elem_id="frame"):
            self.actions, self.kept_link = Panel(elem_id="actions"), Panel(elem_id="kept-link")
            self.turn = TabTurn(elem_id="turn", visible="hidden")
            with gr.Tabs(elem_id="tabs") as self.tabs:
                with gr.Tab("Explore", id="explore"):
                    with gr.Column(elem_id="home") as self.home:
                        gr.HTML(welcome_html(), apply_default_css=False)
                        with gr.Row(elem_id="home-columns"):
                            _drop_target("Open a snapshot", "first-files", 220)
                            Panel(record_html(), elem_id="record")
                        self.samples = Panel(samples_html(), elem_id="samples")
                    # Hidden and not left out: an arriving file is drawn before Gradio knows that one is open.
                    with gr.Column(visible="hidden", elem_id="loaded") as self.loaded:
                        self.explore = explore.ExploreTab(self.context, self.session)
                with gr.Tab(compare.LABEL, id=compare.ID) as tab:
                    self.compare = compare.CompareTab(self.context, self.session, self.tabs, tab)
                with gr.Tab(ranks.LABEL, id=ranks.ID, visible=False) as tab:
                    self.ranks = ranks.RanksTab(self.context, self.session, self.tabs, tab)
                with gr.Tab(run.LABEL, id=run.ID) as tab:
                    self.run = run.RunTab(self.context, tab)
                with gr.Tab(what_if.LABEL, id=what_if.ID):
                    offered = samples_html(what_if.ID)
                    self.what_if = what_if.WhatIfTab(self.context, self.tabs, self.turn, offered)
        self.saved = gr.DownloadButton("Save", visible="hidden", elem_id="saved")

    def _wire(self, page: gr.Blocks) -> None:
        frame = [self.session, self.browser, self.traces, self.band, self.home, self.loaded, self.actions, self.turn]
        outputs = [*frame, *self.explore.outputs, *self.compare.outputs, *self.ranks.outputs, *self.what_if.outputs]
        self.outputs = outputs
        self.turn.submit(None, None, self.tabs, js=TabTurn.chosen, api_visibility="private", **NO_PROGRESS)
        self.arrivals.click(self._arrived, [self.session], outputs, **IN_PARTS)
        for panel in (self.traces, self.band, self.explore.verdict):
            panel.click(self._act, [self.session], outputs, **PRIVATE)
        for panel in (self.samples, self.foot, self.compare.offer, self.what_if.parts["offer"]):
            panel.click(self._act, [self.session], outputs, **PRIVATE).then(None, js=_TO_THE_TOP)
        led = self.explore.findings.click(
            self._follow_finding, [self.session, self.run.state], [*outputs, self.run.state], **PRIVATE
        )
        led.then(None, js=_TO_THE_TOP)
        what_if_state, run_inputs = self.what_if.parts["state"], [self.session, self.run.state]
        replay = self._showing(self.what_if.open_replay)
        opens = self.what_if.parts["keep"].click(replay, [self.session, what_if_state], outputs, **PRIVATE)
        opens.then(None, js=_TO_THE_TOP)
        self.run.results.click(self._showing(self.run.open_clicked_traces), run_inputs, outputs, **IN_PARTS)
        self.run.fit_clicked.then(self._showing(self.run.open_point), run_inputs, outputs, **IN_PARTS)
        self.ranks.one.click(self._showing(self.ranks.open_clicked), [self.session], outputs, **PRIVATE)
        reopen = self._showing(self.run.reopen_run)
        self.run.kept.click(reopen, [self.session, self.run.visitor], outputs, **IN_PARTS)
        # The badges of what is compared stand in the sidebar too.
        self.compare.traces.change(self._traces, [self.session], [self.traces], **PRIVATE)
        saving: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "always_last", **IN_TURN}
        saving["show_progress_on"] = self.saved
        states = {self.session, self.compare.state, self.ranks.job, self.run.state, what_if_state}
        shared = self.actions.click(in_turn(self._share), states, [self.saved, self.kept_link], **saving)
        shared.then(None, js=_SAVE)
        self.kept_link.click(self._end_link, None, self.kept_link, **PRIVATE)
        of_link = [self.run.state, self.ranks.card, self.ranks.card_menu]
        begun = [*outputs, self.compare.state, what_if_state, *of_link, self.browser_name]
        begins = page.load(self._begin, [self.browser, self.browser_name], begun, **PRIVATE)
        begins.then(None, js=PAGE_READY)

    def _shown(self, current: Session, *, state: dict[str, Any] | None = None, tab: str | None = None) -> list[Any]:
        """A value for each of the outputs."""
        is_open = current.current is not None and not current.home
        return [
            current,
            self.windows.opened_in_browser(current),
            self._traces(current),
            refused_html(current),
            gr.update(visible=not is_open),
            gr.update(visible=True if is_open else "hidden"),
            actions_html(current),
            turn_to(tab) if tab else gr.skip(),
            *explore.show(self.context, current, state),
            *compare.show(current),
            *ranks.show(self.context, current),
            *what_if.show(current, tab),
        ]

    def _showing(self, answer: Callable[..., tuple[Session, str | None]]) -> Callable[..., list[Any]]:
        """An event handler that shows the session and the tab that `answer` returns, if it changes the session."""

        @wraps(answer)
        def show(current: Session, *args: Any) -> list[Any]:
            session, tab = answer(current, *args)
            return self._shown(session, tab=tab) if session is not current else [gr.skip() for _ in self.outputs]

        return show

    def _arrived(self, current: Session, event: gr.EventData) -> list[Any]:
        """Open a file that came by `routes`. Its key is a secret of the visitor's browser."""
        message = clicked(event)
        after = on_upload(self.context, current, message)
        # A table of ranks was uploaded, or the files of several ranks together.
        has_table = after.table and after.table != current.table
        shows_ranks = has_table or ("begins" in message and has_ranks(self.context, after))
        values = self._shown(after, tab=ranks.ID if shows_ranks else None)
        if "beside" in message and after.current == current.current:
            # Explore shows what it showed: of many files each would be its picture and its findings anew.
            for output in self.explore.outputs:
                values[self.outputs.index(output)] = gr.skip()
        return values

    def _act(self, current: Session, event: gr.EventData) -> list[Any]:
        data = clicked(event)
        after = session_after(self.context, current, data)
        for opened in current.opened:
            # Another window may show it still; it goes when that is closed.
            if after.of(opened.key) is None and not self.windows.is_open_in_other_window(opened.key):
                self.context.store.drop(opened.key)
        if current.table and after.table != current.table:
            self.context.tables.drop(current.table)
        return self._shown(after, tab=tab_after(data))

    def _follow_finding(self, current: Session, state: RunState, event: gr.EventData) -> list[Any]:
        """To the tab that would help with it, or to an estimate of what would come of an action."""
        data = clicked(event)
        if data.get("act") == "estimate":
            after = with_estimate(self.context, current, data)
            return [*self._shown(after, tab=compare.ID if after != current else None), gr.skip()]
        tab = data.get("tab")
        values = self._shown(current, tab=tab if tab in (what_if.ID, run.ID) else None)
        return [*values, run.with_finding(state, data.get("finding", "")) if tab == run.ID else gr.skip()]

    def _traces(self, current: Session) -> str:
        return traces_html(current, self.context.of, self.context.tables.get(current.table))

    def _share(self, states: dict[Any, Any], event: gr.EventData, request: gr.Request) -> list[Any]:
        """Return the view of a tab as a file, or where it was kept. `states` are by their components."""
        said, current = clicked(event), states[self.session]
        trace, asked = self.context.of(current.current), states[self.what_if.parts["state"]]
        files_of: dict[str, Callable[[], SharedFiles]] = {
            "explore": lambda: trace_files(*trace) if trace else {},
            compare.ID: lambda: compare.shared_files(self.context, current, states[self.compare.state]),
            ranks.ID: lambda: ranks.shared_files(self.context, current, states[self.ranks.job]),
            run.ID: lambda: run.shared_files(self.run.answers, states[self.run.state]),
            what_if.ID: lambda: self.what_if.answers.shared_files(asked, current),
        }
        kind = said.get("kind", "")
        with with_worded_errors():
            files = files_of.get(said.get("tab", ""), dict)()
            if kind == "link" and "page" in files:
                name = keep_page(files["page"][1], visitor_of(getattr(request.request, "scope", {})))
                root = get_root_url(request=request.request, route_path=QUEUE, root_path=None)
                return [None, kept_link_html(f"{root}{routes.KEPT_PATH}/{name}", link_hours())]
            return [file_with(*files[kind]) if kind in files else None, ""]

    def _end_link(self, event: gr.EventData) -> str:
        said = clicked(event)
        if said.get("act") == "unshare":
            drop_page(said.get("name", ""))
        return ""

    def _begin(self, kept: list[list[str]] | None, browser: str, request: gr.Request) -> list[Any]:
        browser = browser or secrets.token_urlsafe(18)
        self.windows.begin(browser)
        self.run.answers.look_ahead()
        query = request.query_params
        card = query.get("card", "") if query.get("tab") == ranks.ID else ""
        of_ranks = [card, card_form(card)] if card in CARD_CHOICES else [gr.skip(), gr.skip()]
        return [*self._first(kept, request), run.state_from_link(query) or gr.skip(), *of_ranks, browser]

    def _first(self, kept: list[list[str]] | None, request: gr.Request) -> list[Any]:
        """Return the values of a new page: the traces this browser had open, and the view that the link names."""
        session = reopen_traces(self.context.store, kept or [], self.given)
        keys = (str(stored[0]) for stored in kept or [] if stored)
        session = replace(session, table=next((key for key in keys if self.context.tables.get(key)), ""))
        query = dict(request.query_params)
        if query.get("tab") == TAB:
            compared = compare_session(session, query, self._sample)
            if compared is not None:
                return [*self._shown(compared, tab=TAB), compare_state_of(compared, query), gr.skip()]
        wanted = query.get("trace", "")
        named = find_by_link(session, wanted)
        linked = self._sample(session, wanted) if named is None else session.choosing(named.key)
        if linked is not None and query.get("tab") == what_if.ID:
            return [*self._shown(linked, tab=what_if.ID), gr.skip(), what_if.state_from_link(linked, query)]
        if query.get("tab") == ranks.ID and has_ranks(self.context, linked or session):
            return [*self._shown(linked or session, tab=ranks.ID), gr.skip(), gr.skip()]
        if linked is not None:
            named_tab = next((tab.id for tab in self.tabs.children if tab.visible and tab.id == query.get("tab")), None)
            return [*self._shown(linked, state=view_state(query), tab=named_tab), gr.skip(), gr.skip()]
        is_missing = bool(wanted) or "traces" in query
        given = ranks.ID if self.context.given_ranks is not None and not is_missing else None
        tab = run.ID if query.get("tab") == run.ID else given
        values = self._shown(replace(session, home=is_missing or not session.opened), tab=tab)
        values[3] = missing_trace_html() if is_missing else values[3]
        return [*values, gr.skip(), gr.skip()]

    def _sample(self, session: Session, wanted: str) -> Session | None:
        """Open the sample that a link names, or the estimate of one."""
        file, action = parts_of_sample(wanted.removeprefix(SAMPLE))
        sample = next((sample for sample in OFFERED_SAMPLES if file in sample.files), None)
        if sample is None or not wanted.startswith(SAMPLE):
            return None
        opened = open_sample(self.context.store, session, replace(sample, files=(file,)))
        after = with_estimate(self.context, opened, action) if action else opened
        return after if after is not opened or not action else None


def _drop_target(label: str, name: str, height: int) -> None:
    """A place for files, which `Arrivals` takes from it."""
    # No list of endings: what a file is, is found out by looking into it.
    gr.File(label=label, file_count="multiple", elem_id=name, height=height, show_label=True, interactive=True)


def launch_options() -> dict[str, Any]:
    """For `launch`: one behaviour on a laptop, a headless server and a Space."""
    styles = [(_UI / name).read_text(encoding="utf-8") for name in STYLES]
    return {
        "theme": theme(),
        "css": "\n".join((*styles, *(component.style() for component in COMPONENTS))),
        "ssr_mode": False,
        # Or else Gradio asks its own page, and ends it where a busy machine takes more than three seconds to answer.
        "_frontend": False,
        # A page about its visitors, for which Gradio would keep records of all events.
        "enable_monitoring": False,
        # Of all events together. Whoever follows a run keeps one, and a thread is made only when it is needed.
        "max_threads": 2 * run_programs.MOST_WAITING,
        "max_file_size": routes.most_bytes(),
        # A request passes the middleware in this order.
        "app_kwargs": {
            "routes": routes.routes(),
            "middleware": [Middleware(RequestGuard), Middleware(StaticCache)],
            "lifespan": _while_up,
        },
        "allowed_paths": [],
    }


@asynccontextmanager
async def _while_up(app: Any) -> AsyncIterator[None]:
    page = app.get_blocks()
    serve_agents(page)
    poll_less_when_idle(page)
    async with page.housekeeping.while_up():
        yield
