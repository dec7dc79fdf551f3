"""The page: sidebar, tabs, and how what a visitor opens travels between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.trace.model import Trace
from memviz.ui import programs
from memviz.ui.components import (
    event_list,
    memory_timeline,
    overlay,
    reserved_plot,
    segment_map,
    segment_pair,
    settings_form,
    waterfall,
)
from memviz.ui.components.panel import Panel, clicked
from memviz.ui.context import Context
from memviz.ui.exports import EXPORTS, export_file
from memviz.ui.links import SAMPLE, named, view_state
from memviz.ui.opening import SAMPLE_LIST, open_files, open_sample, opened, remembered, reopened, sample_named
from memviz.ui.session import Session
from memviz.ui.store import TraceStore
from memviz.ui.tabs import compare, explore, what_if
from memviz.ui.theme import theme
from memviz.ui.views.frame import (
    actions_html,
    brand_html,
    foot_html,
    missing_html,
    record_html,
    refused_html,
    samples_html,
    traces_html,
    welcome_html,
)

_HERE = Path(__file__).parent
STYLES = ("frame", "explore", "compare", "what_if")
"""Files in `styles/`, in this order; the tokens that all others read are in the first."""
SCRIPTED = (
    memory_timeline,
    segment_map,
    event_list,
    overlay,
    waterfall,
    reserved_plot,
    segment_pair,
    settings_form,
)
STYLED = (memory_timeline, segment_map, event_list, reserved_plot, segment_pair)
TITLE = "memviz: what fills your GPU"
_PRIVATE: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
"""Through the queue: only then does Gradio tell the tabs of a `gr.State` that has changed."""
_SAVE = "() => document.querySelector('#saved a, a#saved, #saved')?.click()"


def build_app(traces_given: Sequence[Trace] = ()) -> gr.Blocks:
    """`traces_given` are open from the start, for everybody who sees the page."""
    context = Context(TraceStore())
    given = Session()
    for each in traces_given:
        given = given.with_opened(opened(context.store, each, pinned=True))
    page = gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(3600, 86400))
    with page:
        _Page(context, given).build(page)
    return page


class _Page:
    """Everything on the page, laid out by `build` and wired by `_wire`. It keeps nothing of any visitor."""

    def __init__(self, context: Context, given: Session) -> None:
        self.context = context
        self.given = given

    def build(self, page: gr.Blocks) -> None:
        self.session = gr.State(Session())
        # What this browser may open again after a reload. The keys are worth nothing to anybody else.
        self.browser = gr.BrowserState([], storage_key="memviz-open-traces", secret="memviz")
        self._sidebar()
        self.band = Panel(elem_id="band")
        self._home()
        self._loaded()
        programs.build()
        self._wire(page)

    def _sidebar(self) -> None:
        with gr.Sidebar(width=244, elem_classes="mv-side"):
            gr.HTML(brand_html(), apply_default_css=False)
            self.traces = Panel(traces_html(Session(), self.context.of), elem_id="traces")
            self.more_files = _drop_target("Drop snapshots here", "files", 92)
            self.foot = Panel(foot_html(), elem_id="foot")

    def _home(self) -> None:
        with gr.Column(elem_id="home") as self.home:
            gr.HTML(welcome_html(), apply_default_css=False)
            with gr.Row(elem_id="home-columns"):
                self.first_files = _drop_target("Open a snapshot", "first-files", 220)
                Panel(record_html(), elem_id="record")
            self.samples = Panel(samples_html(), elem_id="samples")

    def _loaded(self) -> None:
        with gr.Column(visible=False, elem_id="loaded") as self.loaded:
            self.actions = Panel(elem_id="actions")
            with gr.Tabs(elem_id="tabs") as self.tabs:
                with gr.Tab("Explore", id="explore"):
                    self.explore = explore.build(self.context, self.session)
                with gr.Tab(compare.LABEL, id=compare.ID) as tab:
                    self.compare = compare.build(self.context, self.session, self.tabs, tab)
                with gr.Tab(what_if.LABEL, id=what_if.ID):
                    self.what_if = what_if.build(self.context, self.session, self.tabs)
        self.saved = gr.DownloadButton("Save", visible="hidden", elem_id="saved")

    def _wire(self, page: gr.Blocks) -> None:
        frame = [self.session, self.browser, self.traces, self.band, self.home, self.loaded, self.actions, self.tabs]
        outputs = [*frame, *self.explore.outputs, *self.compare.outputs, *self.what_if.outputs]
        for files in (self.more_files, self.first_files):
            files.upload(
                self._upload,
                [files, self.session],
                [*outputs, files],
                concurrency_id="parse",
                concurrency_limit=2,
                show_progress_on=[files],
                api_visibility="private",
            )
        for panel in (self.traces, self.band, self.samples, self.foot, self.compare.offer):
            panel.click(self._act, [self.session], outputs, **_PRIVATE)
        # The badges of what is compared stand in the sidebar too.
        self.compare.traces.change(self._traces, [self.session], [self.traces], **_PRIVATE)
        self.actions.click(self._export, [self.session], self.saved, api_visibility="private").then(None, js=_SAVE)
        page.load(self._begin, [self.browser], outputs, show_progress="hidden", api_visibility="private")

    def _shown(self, current: Session, *, state: dict[str, Any] | None = None, tab: str | None = None) -> list[Any]:
        """A value for each of the outputs."""
        is_open = current.current is not None and not current.home
        return [
            current,
            remembered(current),
            traces_html(current, self.context.of),
            refused_html(current),
            gr.update(visible=not is_open),
            gr.update(visible=is_open),
            actions_html(current),
            gr.update(selected=tab) if tab else gr.update(),
            *explore.show(self.context, current, state),
            *compare.show(self.context, current),
            *what_if.show(current, tab),
        ]

    def _upload(
        self,
        paths: list[str] | None,
        current: Session,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - how Gradio hands a progress over
    ) -> list[Any]:
        def say(share: float, words: str) -> None:
            progress(share, desc=words)

        return [*self._shown(open_files(self.context.store, current, paths or [], say)), None]

    def _act(self, current: Session, event: gr.EventData) -> list[Any]:
        data = clicked(event)
        return self._shown(_changed(self.context, current, data), tab=_tab(data))

    def _traces(self, current: Session) -> str:
        return traces_html(current, self.context.of)

    def _export(self, current: Session, event: gr.EventData) -> str | None:
        found = self.context.current(current)
        kind = clicked(event).get("kind", "")
        return export_file(*found, kind) if found is not None and kind in EXPORTS else None

    def _begin(self, kept: list[list[str]] | None, request: gr.Request) -> list[Any]:
        """The page as it is first seen: what this browser had open, and what the link asks for."""
        session = reopened(self.context.store, kept or [], self.given)
        query = dict(request.query_params)
        wanted = query.get("trace", "")
        if not wanted:
            return self._shown(replace(session, home=not session.opened))
        found = named(session, wanted) or self._sample(session, wanted)
        if isinstance(found, Session):
            return self._shown(found, state=view_state(query))
        if found is not None:
            return self._shown(session.choosing(found.key), state=view_state(query))
        values = self._shown(replace(session, home=True))
        values[3] = missing_html()
        return values

    def _sample(self, session: Session, wanted: str) -> Session | None:
        """Samples may be named by anybody."""
        file = wanted.removeprefix(SAMPLE)
        sample = next((each for each in SAMPLE_LIST if file in each.files), None)
        if sample is None or not wanted.startswith(SAMPLE):
            return None
        return open_sample(self.context.store, session, replace(sample, files=(file,)))


def _drop_target(label: str, name: str, height: int) -> gr.File:
    # No list of endings: what a file is, is found out by looking into it.
    return gr.File(label=label, file_count="multiple", type="filepath", elem_id=name, height=height, show_label=True)


def _changed(context: Context, session: Session, data: dict[str, str]) -> Session:
    key = data.get("key", "")
    match data.get("act"):
        case "choose":
            return session.choosing(key)
        case "device":
            return session.choosing(key).on_device(key, data.get("device", ""))
        case "close":
            if session.of(key) is not None:
                context.store.drop(key)
            return session.closing(key)
        case "dismiss":
            return session.without_refused()
        case "home":
            return replace(session, home=True)
        case "sample":
            sample = sample_named(data.get("sample", ""))
            return open_sample(context.store, session, sample) if sample else session
    return session


def _tab(data: dict[str, str]) -> str | None:
    """Where a sample's answer stands."""
    sample = sample_named(data.get("sample", ""))
    return sample.tab if sample else None


def launch_options() -> dict[str, Any]:
    """For `launch`: one behaviour on a laptop, a headless server and a Space."""
    return {
        "theme": theme(),
        "css": style(),
        "head": scripts(),
        "ssr_mode": False,
        # A visitor of a Space shares it with others; on a person's own machine only their own limits count.
        "max_file_size": "200mb" if os.environ.get("SPACE_ID") else None,
        "allowed_paths": [],
    }


def style() -> str:
    areas = [(_HERE / "styles" / f"{name}.css").read_text(encoding="utf-8") for name in STYLES]
    return "\n".join((*areas, *(each.style() for each in STYLED)))


def scripts() -> str:
    """The page's own first: components may use it."""
    page = (_HERE / "page.js").read_text(encoding="utf-8")
    return f"<script>{page}</script>" + "".join(each.scripts() for each in SCRIPTED)
