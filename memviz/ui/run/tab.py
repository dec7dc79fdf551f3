"""Run: a workload with optimizations, predicted for a card or measured on this machine's GPU.

The form is on the left, the variants on the right. Runs happen in processes of their own, one order at a time; what
is done is kept in the visitor's own folder and opens like any other trace.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

import gradio as gr

from memviz.errors import MemvizError
from memviz.results.run import variants_headline
from memviz.runner.jobs.service import OrderStatus, SearchStatus
from memviz.runner.request import run_json
from memviz.text import Html, tag
from memviz.ui.components.component import Panel, PlainForm, clicked, form_fields, turn_of
from memviz.ui.components.plots import MemoryTimeline
from memviz.ui.run.answer import RunAnswers, RunState, refused, timeline_values, with_measured
from memviz.ui.run.cards import cards_html
from memviz.ui.run.fit_results import fit_head_html, fit_html
from memviz.ui.run.form import GENERAL, MOST_LIVE, MOST_PINNED, RunRequests, changed, link_of, read_link, search_order
from memviz.ui.run.form_html import form_value, progress_html, refused_html, stale_html, stand_in_note
from memviz.ui.run.predictions import request_key
from memviz.ui.run.published_examples import STAND_INS, STORIES, published_table_html, stand_in_fields, story_fields
from memviz.ui.run.results import CHECKING, head_html, kept_runs_value, legend_html, progress_text, results_html
from memviz.ui.saved.document import GENEROUS, Document, SavedLinks, html_text
from memviz.ui.saved.timeline import saved_pieces, site_labels
from memviz.ui.shell.gradio_events import IN_PARTS, ends_without_change
from memviz.ui.shell.session import Context, Session
from memviz.ui.shell.temporary_files import SharedFiles, json_writer, table_writer, text_writer
from memviz.ui.shell.visitors import presence

ID = "run"
LABEL = "Run"
_LOOKING = tag("p", "Starting PyTorch to read your programs. This takes some seconds.", class_="mv-soft", role="status")
_PARTS = ("state", "progress", "head", "cards", "form", "A", "B", "legend", "fit", "results", "table", "kept")


class RunTab:
    """The tab's components and event handlers. Answers in parts skip outputs that did not change.

    Each begins with a part, as Gradio empties the outputs of a generator that yields nothing.
    """

    def __init__(self, context: Context, tab: gr.Tab) -> None:
        self.answers = RunAnswers(context.store, programs=context.programs, is_busy=context.reading.is_used)
        with gr.Row(elem_classes="mv-what-if mv-run"):
            with gr.Column(elem_classes="mv-what-if-form", scale=0, min_width=264):
                form = PlainForm(elem_id="run-form")
            with gr.Column(elem_classes="mv-what-if-answer", min_width=320):
                progress = Panel(elem_id="run-progress")
                head = Panel(elem_id="run-head")
                cards = Panel(elem_id="run-cards")
                """Examples, until something is run."""
                with gr.Row(elem_classes="mv-linked mv-run-timelines"):
                    timelines = [MemoryTimeline(context.find, elem_id=f"run-{letter}") for letter in "AB"]
                    """The baseline, and the variant that is shown beside it."""
                    legend = Panel(elem_id="run-legend")
                self.results = Panel(elem_id="run-results")
                fit = Panel(elem_id="run-fit")
                table = Panel(elem_id="run-table")
                self.kept = PlainForm(elem_id="run-kept")
        self.visitor = gr.BrowserState("", storage_key="memviz-visitor", secret="memviz")
        """A secret by which this browser finds the runs that were kept for it."""
        self.state = gr.State(RunState())
        above = [self.state, progress, head, cards, form]
        answer = [*above, *timelines, legend, fit, self.results, table, self.kept]
        inputs = [self.state, self.visitor]
        tab.select(self._looked_at, inputs, [self.visitor, *answer], **IN_PARTS)
        form.input(self._changed, inputs, answer, **IN_PARTS)
        for pressed in (form, cards):
            pressed.click(self._pressed, inputs, answer, **IN_PARTS)
        progress.click(self.answers.cancel, [self.visitor], None, **IN_PARTS)
        self.kept.click(self._kept, inputs, answer, **IN_PARTS)
        self.results.click(self._act_on_row, inputs, answer, **IN_PARTS)
        table.click(self._table, [self.state], answer, **IN_PARTS)
        self.fit_clicked = fit.click(self._way, inputs, answer, **IN_PARTS)
        """Gradio's event of a click on a point; the state then holds the order to open."""

    @ends_without_change
    def _looked_at(self, state: RunState, visitor: str) -> Iterator[list[Any]]:
        """Show what can be run, warm up a process ahead, and ask PyTorch for a GPU."""
        secret = visitor or secrets.token_urlsafe(18)
        if not self.answers.is_listed:
            yield [secret, *_values(head="", results=_LOOKING)]
        finding = state.finding
        try:
            state = state if state.drawn else self.answers.resumed(state, secret)
            begins = bool(finding) or (state.link is not None and not (state.order or state.search))
            if finding:
                fields = stand_in_fields(finding, state.fields)
                state = replace(state, fields=fields, drawn=state.drawn + 1, story="", finding="", stands_in=True)
            form = self._form(state)
        except MemvizError as error:
            yield [secret, *_values(results=refused_html(str(error)))]
            return
        status = self.answers.status(state.order)
        is_empty = status is None and not state.search and not begins
        shown = self._answer_values(state, status) if status is not None and not state.search else {"results": ""}
        values = {"state": state, "form": form, "cards": cards_html() if is_empty else "", **shown}
        table = "" if is_empty or state.search else published_table_html(state.story, None)
        yield [secret, *_values(**values, fit=self._fit_value(state), table=table)]
        # By itself: with the form it would take so long to be sent that a click could change the list meanwhile.
        yield [gr.skip(), *_values(kept=self._kept_value(secret))]
        try:
            self.answers.scheduler.warm_up()
            # An answer does not wait for it, and draws the form again.
            if is_empty and self.answers.complete_listing() and self.answers.scheduler.newest_of(secret) is None:
                yield [gr.skip(), *_values(form=self._form(state))]
        except MemvizError as error:
            yield [gr.skip(), *_values(results=refused_html(str(error)))]
            return
        parts: Iterator[list[Any]] = iter(())
        if begins:
            is_published = STORIES.get(state.story, {"": ""}).items() <= state.fields.items()
            parts = self._story(state, secret) if is_published else self._live(state, secret)
        elif state.search:
            parts = self._searched(state, secret)
        elif status is not None and not status.is_over:
            parts = self._followed(state, secret)
        for values_of_part in parts:
            yield [gr.skip(), *values_of_part]

    def _form(self, state: RunState, status: Html | str = "") -> dict[str, Any]:
        form, requests = self.answers.parse(state.fields)
        listing = self.answers.listing()
        prices = self.answers.price_list(requests, by_saving=state.by_saving)
        value = form_value(form, requests, listing, version=str(state.drawn), status=status, prices=prices)
        if state.stands_in:
            value["parts"]["stand-in"] = stand_in_note(form, listing)
        if state.order or state.search:
            query = link_of(state.fields, state.pinned, state.story, is_search=bool(state.search))
            value["parts"]["link"] = tag("i", data_mv_query=query)
        return value

    def _kept_value(self, visitor: str, fault: str = "") -> dict[str, Any]:
        return kept_runs_value(self.answers.kept(visitor).all() if visitor else (), fault)

    # -- the form

    @ends_without_change
    def _changed(self, state: RunState, visitor: str, event: gr.EventData) -> Iterator[list[Any]]:
        fields, is_redrawn = changed(form_fields(event), state.fields, self.answers.listing())
        story = state.story if fields.get("workload") == state.fields.get("workload") else ""
        state = replace(state, fields=fields, drawn=state.drawn + is_redrawn, stands_in=False, story=story)
        yield from self._live(state, visitor, turn_of(event))

    @ends_without_change
    def _pressed(self, state: RunState, visitor: str, event: gr.EventData) -> Iterator[list[Any]]:
        data = form_fields(event)
        act, story = data.pop("act", ""), data.pop("story", "")
        fields = state.fields if act == "story" else data
        yield _values()
        if act == "story":
            fields = story_fields(story, fields)
            state = replace(state, fields=fields, drawn=state.drawn + 1, story=story, stands_in=False)
            yield from self._story(state, visitor)
        elif act == "fit":
            yield from self._search(replace(state, fields=fields, story=""), visitor)
        elif act in ("run", "measure"):
            yield from self._run(replace(state, fields=fields, story=""), visitor, measures=act == "measure")
        elif act == "sort":
            state = replace(state, fields=fields, by_saving=not state.by_saving, drawn=state.drawn + 1)
            yield _values(state=state, form=self._form(state))

    # -- the answer, which follows the form by itself

    def _story(self, state: RunState, visitor: str) -> Iterator[list[Any]]:
        is_many = self.answers.parse(state.fields)[1].count > MOST_LIVE
        return self._run(state, visitor, measures=False) if is_many else self._live(state, visitor)

    def _live(self, state: RunState, visitor: str, turn: int = 0) -> Iterator[list[Any]]:
        """Predict what the form describes, unless it has faults or too many variants."""
        is_current = self.answers.begin_turn(visitor, turn)
        if not is_current():
            yield _values()
            return
        _, requests = self.answers.parse(state.fields)
        many = requests.count > MOST_LIVE
        if requests.faults or not requests.count or many:
            text = "Press Predict to run these variants." if many else "Fix the marked fields."
            text += " The results below are of earlier settings." if state.order or state.search else ""
            yield _values(state=state, form=self._form(state), progress=stale_html(text))
            return
        wanted = self.answers.with_pinned(requests, state.pinned)
        yield from takewhile(lambda _: is_current(), self._begun(state, visitor, wanted, keeps=False))

    def _run(self, state: RunState, visitor: str, *, measures: bool) -> Iterator[list[Any]]:
        """Run what a button asks for; what is predicted is listed beside what is measured."""
        _, requests = self.answers.parse(state.fields)
        if requests.faults or not requests.count:
            own = requests.faults.keys() - set(GENERAL)
            fault = refused_html("Fix the marked fields first." if own else "Nothing to run.")
            yield _values(state=state, form=self._form(state, fault))
            return
        wanted = with_measured(requests) if measures else requests
        is_current = self.answers.begin_turn(visitor)
        yield from takewhile(lambda _: is_current(), self._begun(state, visitor, wanted, keeps=True))

    def _begun(self, state: RunState, visitor: str, requests: RunRequests, *, keeps: bool) -> Iterator[list[Any]]:
        try:
            begun = self.answers.begin(requests, visitor, keeps=keeps)
        except MemvizError as error:
            yield _values(state=state, form=self._form(state, refused_html(str(error))), progress="")
            return
        self.answers.searches.cancel(state.search)
        has_before = state.is_answered or bool(state.search)
        state = replace(state, order=begun.id, is_answered=has_before, search="", way=None)
        values = {"state": state, "form": self._form(state), "cards": "", "fit": ""}
        values |= {} if has_before else {"results": ""}
        progress = "" if begun.is_over else progress_html("predicting …")
        yield _values(**values, table=published_table_html(state.story, None), progress=progress)
        yield from self._followed(state, visitor, keeps=keeps)

    def _followed(self, state: RunState, visitor: str, *, keeps: bool = True) -> Iterator[list[Any]]:
        """Show each change; while the answer of before is there, the new one comes when all of it has figures."""
        has_before = state.is_answered
        status, drawn = None, 0
        for status in self.answers.follow(state.order, presence()):
            is_ready = all(variant.run is not None or variant.is_over for variant in status.variants)
            is_new = is_ready or not has_before
            progress = "" if status.is_over else progress_html(progress_text(status), is_new=is_new)
            if is_new:
                traces = sum(variant.run is not None and variant.file is not None for variant in status.variants)
                draws, drawn = status.is_over or traces > drawn, traces
                state = replace(state, is_answered=state.is_answered or traces > 0 or is_ready)
                yield _values(state=state, progress=progress, **self._answer_values(state, status, draws=draws))
            else:
                yield _values(progress=progress)
        if status is None or not status.is_over or status.is_left:
            return
        _, requests = self.answers.parse(state.fields)
        form = self._form(state)
        bad = next((variant for variant in status.variants if variant.what == "refused"), None)
        form["faults"] |= dict(refused(requests, bad).faults) if bad else {}
        yield _values(form=form, kept=self._kept_value(visitor) if keeps else gr.skip())
        for _ in self.answers.in_background(status, requests, visitor, presence()):
            yield _values(form=self._form(state), **self._answer_values(state, status, draws=False))

    def _answer_values(self, state: RunState, status: OrderStatus, *, draws: bool = True) -> dict[str, Any]:
        """`draws` the timelines, which need the traces of runs that are over."""
        status = self.answers.checked(status, state.pinned)
        shown = self.answers.shown(status)
        values: dict[str, Any] = {"head": head_html(status), "results": results_html(status, shown)}
        if draws:
            traces = self.answers.shown_pair(status)
            values |= zip("AB", timeline_values(traces, status), strict=True)
            values["legend"] = legend_html(traces) if traces else ""
        # Traces take time to read. The answer to a click in between was sent already, and this one would undo it.
        return values if self.answers.shown(status) == shown else self._answer_values(state, status, draws=draws)

    @ends_without_change
    def _act_on_row(self, state: RunState, visitor: str, event: gr.EventData) -> Iterator[list[Any]]:
        """Show a variant beside the baseline, pin it, or take it out."""
        order = self.answers.shown_order(state)
        data, status = clicked(event), self.answers.status(order)
        act, number = data.get("act"), data.get("number", "")
        yield _values()
        if not number.isdigit() or status is None or int(number) >= len(status.variants):
            return
        variant = status.variants[int(number)]
        if act == "choose":
            self.answers.choose(order, int(number))
            yield _values(**(self._answer_values if state.order else self._best_values)(state, status))
        elif act == "pin" and len(state.pinned) < MOST_PINNED:
            fault = self.answers.keep_variant(status, int(number), visitor)
            state = replace(state, pinned=(*state.pinned, (replace(variant.request, label=""), variant.label)))
            yield _values(state=state, kept=self._kept_value(visitor, fault))
            yield from self._live(state, visitor)
        elif act == "unpin":
            key = request_key(variant.request)
            state = replace(state, pinned=tuple(one for one in state.pinned if request_key(one[0]) != key))
            yield _values(state=state)
            yield from self._live(state, visitor)

    # -- the way that fits

    def _search(self, state: RunState, visitor: str) -> Iterator[list[Any]]:
        _, requests = self.answers.parse(state.fields)
        try:
            begun = self.answers.search(search_order(state.fields, requests), visitor)
        except MemvizError as error:
            yield _values(state=state, form=self._form(state, refused_html(str(error))))
            return
        state = replace(state, order="", search=begun.id, way=None, opening="")
        yield _values(state=state, form=self._form(state), cards="", results="", table="", B={})
        yield from self._searched(state, visitor)

    def _searched(self, state: RunState, visitor: str) -> Iterator[list[Any]]:
        """Show each change of a search, with the runs of its best configuration so far as a normal answer."""
        status, drawn = None, None
        for status in self.answers.follow_search(state.search, presence()):
            best = self.answers.best_of(status, visitor)
            values: dict[str, Any] = {}
            if best is not None and best.is_over and best.id != drawn:
                values, drawn = self._best_values(state, best), best.id
            yield _values(
                head=fit_head_html(status, self._usable(status)),
                fit=fit_html(status, self._usable(status), state.way),
                progress="" if status.is_over else progress_html("searching …"),
                **values,
            )
        if status is None or not status.is_over:
            return
        last = None
        # First the runs that are under way, which may be those of an earlier best.
        for _ in range(2):
            last = self.answers.best_of(status, visitor)
            if last is None or last.id == drawn:
                continue
            drawn = last.id
            for run in self.answers.follow(last.id, presence()):
                last = run
                values = self._best_values(state, run) if run.is_over else {}
                yield _values(progress="" if run.is_over else progress_html(progress_text(run)), **values)
        if last is not None and last.is_over:
            _, requests = self.answers.parse(state.fields)
            for _ in self.answers.in_background(last, requests, visitor, presence()):
                yield _values(form=self._form(state), **self._best_values(state, last, draws=False))

    def _best_values(self, state: RunState, best: OrderStatus, *, draws: bool = True) -> dict[str, Any]:
        """Return its table and timelines; the headline and the code are those of the search."""
        values = self._answer_values(state, best, draws=draws)
        shown = self.answers.checked(best, state.pinned)
        values["results"] = results_html(shown, self.answers.shown(shown), has_code=False)
        return {name: value for name, value in values.items() if name != "head"}

    def _usable(self, status: SearchStatus) -> int:
        return self.answers.usable_bytes(status.order.request.card)

    def _fit_value(self, state: RunState, opening: str = "") -> Html:
        status = self.answers.searches.status(state.search) if state.search else None
        return Html("") if status is None else fit_html(status, self._usable(status), state.way, opening)

    @ends_without_change
    def _way(self, state: RunState, visitor: str, event: gr.EventData) -> Iterator[list[Any]]:
        """A click on a point shows its code; its timeline is predicted anew, and then opened."""
        data = clicked(event)
        number = data.get("number", "")
        state = replace(state, way=int(number) if number.isdigit() else state.way, opening="")
        yield _values(state=state, fit=self._fit_value(state))
        if data.get("act") != "timeline" or state.way is None:
            return
        try:
            begun = self.answers.timeline_of(state.search, state.way, visitor)
        except MemvizError as error:
            yield _values(fit=self._fit_value(state, str(error)))
            return
        last = begun
        for last in self.answers.follow(begun.id, presence()):
            yield _values(fit=self._fit_value(state, f"{last.variants[0].phase or 'waiting'} …"))
        done = last.variants[0].state == "done"
        message = "" if done else last.variants[0].phase
        yield _values(state=replace(state, opening=begun.id if done else ""), fit=self._fit_value(state, message))

    # -- what was published, and what was kept

    @ends_without_change
    def _table(self, state: RunState) -> Iterator[list[Any]]:
        rows: list[dict[str, Any]] = []
        yield _values(table=published_table_html(state.story, rows, waiting=True))
        try:
            for rows, is_all in self.answers.tables.rows(state.story):
                yield _values(table=published_table_html(state.story, rows, waiting=not is_all))
        except MemvizError as error:
            yield _values(table=published_table_html(state.story, rows, fault=str(error)))

    def _kept(self, state: RunState, visitor: str, event: gr.EventData) -> list[Any]:
        fields = form_fields(event)
        id, runs, fault = fields.get("id", ""), self.answers.kept(visitor), ""
        try:
            match fields.get("act"):
                case "rename":
                    runs.rename(id, fields.get(f"name:{id}", ""))
                case "delete":
                    runs.delete(id)
                case "reopen":
                    runs.get(id)
        except (OSError, MemvizError) as error:
            fault = str(error)
        return _values(kept=self._kept_value(visitor, fault))

    # -- traces that the page opens: the session then, and the tab to turn to

    def open_clicked_traces(self, session: Session, state: RunState, event: gr.EventData) -> tuple[Session, str]:
        data, order = clicked(event), self.answers.shown_order(state)
        number, rank = data.get("number", ""), data.get("rank", "")
        if data.get("act") == "compare":
            return self.answers.opened(session, order), "compare"
        if data.get("act") != "open" or not number.isdigit():
            return session, ID
        if rank.isdigit():
            return self.answers.opened_rank(session, order, int(number), int(rank)), "explore"
        return self.answers.opened(session, order, [int(number)]), "explore"

    def open_point(self, session: Session, state: RunState) -> tuple[Session, str]:
        """Open the trace of the search's point whose timeline was requested."""
        return (self.answers.opened(session, state.opening, [0]), "explore") if state.opening else (session, ID)

    def reopen_run(self, session: Session, visitor: str, event: gr.EventData) -> tuple[Session, str]:
        """Reopen a stored run; if its trace is gone, stay on this tab, where the list of runs shows the error."""
        fields = form_fields(event)
        if fields.get("act") == "reopen":
            with suppress(OSError, MemvizError):
                return self.answers.reopened(session, visitor, str(fields.get("id", ""))), "explore"
        return session, ID


def _values(**values: Any) -> list[Any]:
    return [values.get(name, gr.skip()) for name in _PARTS]


def shared_files(answers: RunAnswers, state: RunState) -> SharedFiles:
    status = answers.status(answers.shown_order(state))
    if status is None or not any(variant.run for variant in status.variants):
        return {}
    shown = answers.checked(status, state.pinned)

    def rows() -> list[dict[str, Any]]:
        return [{"variant": one.label, **run_json(one.run)} for one in shown.variants if one.run is not None]

    return {
        "page": ("runs.html", text_writer(lambda: _page(answers, state, shown))),
        "csv": ("runs.csv", table_writer(rows)),
        "json": ("runs.json", json_writer(lambda: {"variants": rows()})),
    }


def _page(answers: RunAnswers, state: RunState, status: OrderStatus) -> str:
    """The tab's answer as one page, without its form."""
    search = answers.searches.status(state.search) if state.search else None
    traces = [replace(trace, key=trace.letter) for trace in answers.shown_pair(status)]
    with SavedLinks():
        head = head_html(status)
        found: Html | str = ""
        if search is not None:
            usable = answers.usable_bytes(search.order.request.card)
            head, found = fit_head_html(search, usable), fit_html(search, usable, state.way)
        # A page that is kept will not hear how a check ends.
        results = Html(results_html(status, answers.shown(status)).replace(CHECKING, tag("small", "not compared")))
    places = [tag("div", id=f"run-{trace.letter}") for trace in traces]
    legend = tag("div", legend_html(traces), id="run-legend") if traces else ""
    linked = tag("div", *places, legend, class_="mv-linked mv-run-timelines")
    body = tag("div", head, linked, found, results, class_="mv-what-if mv-run")
    columns = GENEROUS.columns // max(len(traces), 1)
    saved: dict[str, Any] = {}
    for trace in traces:
        pieces = saved_pieces(*trace.pair, columns).pieces
        saved[trace.key] = {"pieces": pieces, "sites": site_labels(*trace.pair), "lights": {}}
    data = {"run": timeline_values(traces, status)[: len(traces)], "traces": saved}
    return html_text(Document(variants_headline(status.variants).headline.answer, body, data=data))


def state_from_link(query: Mapping[str, str]) -> RunState | None:
    link = read_link(query)
    if link is None:
        return None
    is_there = STORIES.get(link.story, {"": ""}).get("workload") == link.fields.get("workload")
    return RunState(fields=link.fields, link=link, story=link.story if is_there else "")


def with_finding(state: RunState, finding: str) -> RunState:
    """`finding` is the key of one that leads here."""
    kind = finding.rpartition("-")[0]
    return replace(state, finding=kind) if kind in STAND_INS else state
