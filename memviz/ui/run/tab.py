"""Run: a workload with optimizations, predicted for a card or measured on this machine's GPU.

The form is on the left, the variants on the right. Runs happen in processes of their own, one order at a time; what
is done is kept in the visitor's own folder and opens like any other trace.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from memviz.errors import MemvizError
from memviz.runner.jobs.service import OrderStatus, SearchStatus
from memviz.text import Html, tag
from memviz.ui.components.component import Panel, PlainForm, clicked, form_fields
from memviz.ui.run.answer import RunAnswers, RunState, refused
from memviz.ui.run.fit_results import fit_head_html, fit_html
from memviz.ui.run.form import GENERAL, MOST_UNASKED, RunRequests, changed, search_order
from memviz.ui.run.form_html import (
    cancel_html,
    confirm_many_html,
    estimate_html,
    form_value,
    refused_html,
    stand_in_note,
)
from memviz.ui.run.published_examples import STAND_INS, published_table_html, stand_in_fields, story_fields
from memviz.ui.run.results import head_html, kept_runs_value, results_html
from memviz.ui.shell.gradio_events import IN_PARTS, in_parts
from memviz.ui.shell.session import Context, Session
from memviz.ui.shell.visitors import presence

ID = "run"
LABEL = "Run"
_LOOKING = tag(
    "p", "PyTorch is starting, to say what can be run here. This takes some seconds.", class_="mv-soft", role="status"
)
_PARTS = ("state", "head", "form", "cancel", "fit", "results", "table", "kept")


@dataclass(frozen=True)
class RunTab:
    head: Panel
    form: PlainForm
    cancel: Panel
    fit: Panel
    results: Panel
    table: Panel
    kept: PlainForm
    state: gr.State
    visitor: gr.BrowserState
    """A secret by which this browser finds the runs that were kept for it."""
    answers: RunAnswers
    fit_clicked: Any = None
    """Gradio's event of a click on a point; the state then holds the order to open."""

    @property
    def answer(self) -> list[Any]:
        return [getattr(self, name) for name in _PARTS]


def build(context: Context, tab: gr.Tab) -> RunTab:
    answers = RunAnswers(context.store, programs=context.programs, is_busy=context.reading.is_used)
    head = Panel(elem_id="run-head")
    with gr.Row(elem_classes="mv-what-if mv-run"):
        with gr.Column(elem_classes="mv-what-if-form", scale=0, min_width=264):
            form = PlainForm(elem_id="run-form")
            cancel = Panel(elem_id="run-cancel")
        with gr.Column(elem_classes="mv-what-if-answer", min_width=320):
            fit = Panel(elem_id="run-fit")
            results = Panel(elem_id="run-results")
            table = Panel(elem_id="run-table")
            kept = PlainForm(elem_id="run-kept")
    visitor = gr.BrowserState("", storage_key="memviz-visitor", secret="memviz")
    parts = RunTab(head, form, cancel, fit, results, table, kept, gr.State(RunState()), visitor, answers)
    return replace(parts, fit_clicked=_RunEvents(parts).wire(tab))


class _RunEvents:
    """Event handlers of the tab. Answers in parts skip outputs that did not change.

    Each begins with a part, as Gradio empties the outputs of a generator that yields nothing.
    """

    def __init__(self, parts: RunTab) -> None:
        self.parts = parts
        self.answers = parts.answers

    def wire(self, tab: gr.Tab) -> Any:
        parts = self.parts
        inputs = [parts.state, parts.visitor]
        tab.select(self._looked_at, inputs, [parts.visitor, *parts.answer], **IN_PARTS)
        parts.form.input(self._changed, inputs, parts.answer, **IN_PARTS)
        parts.form.click(self._pressed, inputs, parts.answer, **IN_PARTS)
        parts.cancel.click(self._cancel, inputs, None, **IN_PARTS)
        parts.kept.click(self._kept, inputs, parts.answer, **IN_PARTS)
        parts.results.click(self._chosen, [parts.state], parts.answer, **IN_PARTS)
        parts.table.click(self._table, [parts.state], parts.answer, **IN_PARTS)
        return parts.fit.click(self._way, inputs, parts.answer, **IN_PARTS)

    @in_parts
    def _looked_at(self, state: RunState, visitor: str) -> Iterator[list[Any]]:
        """Wait on the first visit for PyTorch's listing; then warm up a process ahead."""
        secret = visitor or secrets.token_urlsafe(18)
        if not state.drawn:
            yield [secret, *_values(head=head_html(None), results=_LOOKING)]
            order = self.answers.scheduler.newest_of(secret)
            searched = self.answers.searches.newest_of(secret)
            state = replace(state, drawn=1, order=order.id if order else "", search=searched.id if searched else "")
        is_led = bool(state.finding)
        if is_led:
            fields = stand_in_fields(state.finding, state.fields)
            state = replace(state, fields=fields, drawn=state.drawn + 1, story="", finding="")
        try:
            form = self._form(state, is_stand_in=is_led)
        except MemvizError as error:
            yield [secret, *_values(results=refused_html(str(error)))]
            return
        self.answers.scheduler.warm_up()
        status = self.answers.status(state.order)
        yield [
            secret,
            *_values(
                state=state,
                head=head_html(status),
                form=form,
                fit=self._fit_value(state),
                results=""
                if state.search and status is None
                else self._results(status, self.answers.chosen(state.order)),
            ),
        ]
        # By itself: with the form it would take so long to be sent that a click could change the list meanwhile.
        yield [gr.skip(), *_values(kept=self._kept_value(secret))]
        if state.search:
            for part in self._searched(state):
                yield [gr.skip(), *part]
        if status is not None and not status.is_over:
            for values in self._followed(state, secret):
                yield [gr.skip(), *values]

    def _results(self, status: OrderStatus | None, chosen: int | None) -> Html:
        return results_html(status, chosen, self.answers.pictures.of(status.variants) if status else {})

    def _form(self, state: RunState, status: Html | str = "", *, is_stand_in: bool = False) -> dict[str, Any]:
        form, requests = self.answers.parse(state.fields)
        listing = self.answers.listing()
        value = form_value(form, requests, listing, version=str(state.drawn), status=status)
        if is_stand_in:
            value["parts"]["stand-in"] = stand_in_note(form, listing)
        return value

    def _marked(self, state: RunState, status: OrderStatus) -> Any:
        """Mark the fields that the run refused."""
        form, requests = self.answers.parse(state.fields)
        bad = [variant for variant in status.variants if variant.what == "refused"]
        if not bad:
            return gr.skip()
        return form_value(form, refused(requests, bad[0]), self.answers.listing(), version=str(state.drawn))

    def _kept_value(self, visitor: str, fault: str = "") -> dict[str, Any]:
        return kept_runs_value(self.answers.kept(visitor).all() if visitor else (), fault)

    # -- the form

    @in_parts
    def _changed(self, state: RunState, visitor: str, event: gr.EventData) -> Iterator[list[Any]]:
        fields, is_redrawn = changed(form_fields(event), state.fields, self.answers.listing())
        state = replace(state, fields=fields, drawn=state.drawn + is_redrawn)
        _, requests = self.answers.parse(fields)
        if self.answers.estimates.is_ordered(requests, visitor) and not is_redrawn:
            # The button was pressed at the same moment; its status stays.
            yield _values()
            return
        # What was estimated is not true of the new fields.
        yield _values(state=state, form=self._form(state))
        for estimate in self.answers.estimate(requests, visitor):
            yield _values(form=self._form(state, estimate_html(estimate)))

    @in_parts
    def _pressed(self, state: RunState, visitor: str, event: gr.EventData) -> Iterator[list[Any]]:
        fields = form_fields(event)
        act, story = fields.pop("act", ""), fields.pop("story", "")
        self.answers.estimates.order(self.answers.parse(fields)[1], visitor)
        yield _values()
        if act == "story":
            state = replace(state, fields=story_fields(story, fields), drawn=state.drawn + 1, story=story)
            yield from self._run(state, visitor)
        elif act == "fit":
            yield from self._search(replace(state, fields=fields, story=""), visitor)
        elif act == "run-all":
            yield from self._run(replace(state, fields=fields, story=""), visitor)
        elif act == "run":
            state = replace(state, fields=fields, story="")
            _, requests = self.answers.parse(fields)
            if requests.count > MOST_UNASKED and not requests.faults:
                yield _values(state=state, form=self._form(state, confirm_many_html(requests)))
            else:
                yield from self._run(state, visitor)

    def _cancel(self, state: RunState, visitor: str) -> None:
        self.answers.scheduler.cancel(state.order)
        self.answers.searches.cancel(state.search)

    # -- the way that fits

    def _search(self, state: RunState, visitor: str) -> Iterator[list[Any]]:
        _, requests = self.answers.parse(state.fields)
        try:
            begun = self.answers.search(search_order(state.fields, requests), visitor)
        except MemvizError as error:
            yield _values(state=state, form=self._form(state, refused_html(str(error))))
            return
        self.answers.scheduler.leave(state.order)
        state = replace(state, order="", search=begun.id, way=None, opening="")
        yield _values(state=state, form=self._form(state), results="", table="")
        yield from self._searched(state)

    def _searched(self, state: RunState) -> Iterator[list[Any]]:
        for status in self.answers.follow_search(state.search, presence()):
            yield _values(
                head=fit_head_html(status, self._usable(status)),
                fit=fit_html(status, self._usable(status), state.way),
                cancel="" if status.is_over else cancel_html(),
            )

    def _usable(self, status: SearchStatus) -> int:
        return self.answers.usable_bytes(status.order.request.card)

    def _fit_value(self, state: RunState, opening: str = "") -> Html:
        status = self.answers.searches.status(state.search) if state.search else None
        return Html("") if status is None else fit_html(status, self._usable(status), state.way, opening)

    @in_parts
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

    def _run(self, state: RunState, visitor: str) -> Iterator[list[Any]]:
        _, requests = self.answers.parse(state.fields)
        begun = self._begin(requests, visitor, state)
        if not isinstance(begun, str):
            self.answers.searches.cancel(state.search)
            state = replace(state, order=begun.id, search="", way=None)
        # What does not go together explains itself where it stands; nothing else is changed.
        fault = begun if isinstance(begun, str) else ""
        yield _values(state=state, form=self._form(state, refused_html(fault) if fault else ""))
        if not isinstance(begun, str):
            yield _values(table=published_table_html(state.story, None), fit="")
            yield from self._followed(state, visitor)

    def _begin(self, requests: RunRequests, visitor: str, state: RunState) -> Any:
        """Return the order's status, or why it was not started."""
        if requests.faults or not requests.count:
            own = requests.faults.keys() - set(GENERAL)
            return "Nothing was run: what is marked above does not go." if own else "Nothing was run."
        try:
            return self.answers.begin(requests, visitor, instead_of=state.order)
        except MemvizError as error:
            return str(error)

    def _followed(self, state: RunState, visitor: str) -> Iterator[list[Any]]:
        for status in self.answers.follow(state.order, presence()):
            over = status.is_over
            yield _values(
                head=head_html(status),
                results=self._results(status, self.answers.chosen(state.order)),
                form=self._marked(state, status) if over else gr.skip(),
                cancel="" if over else cancel_html(),
                kept=self._kept_value(visitor) if over else gr.skip(),
            )

    def _chosen(self, state: RunState, event: gr.EventData) -> list[Any]:
        """Show the results with another variant in the headline."""
        data, status = clicked(event), self.answers.status(state.order)
        number = data.get("number", "")
        if data.get("act") != "choose" or not number.isdigit() or status is None:
            return _values()
        self.answers.choose(state.order, int(number))
        return _values(results=self._results(status, int(number)))

    # -- what was published, and what was kept

    @in_parts
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


def _values(**values: Any) -> list[Any]:
    return [values.get(name, gr.skip()) for name in _PARTS]


def with_finding(state: RunState, finding: str) -> RunState:
    """`finding` is the key of one that leads here."""
    kind = finding.rpartition("-")[0]
    return replace(state, finding=kind) if kind in STAND_INS else state


def open_clicked_traces(parts: RunTab, session: Session, state: RunState, event: gr.EventData) -> tuple[Session, str]:
    """Clicks on results that open traces: the session then, and the tab to turn to."""
    data = clicked(event)
    act = data.get("act")
    number = data.get("number", "")
    if act == "compare":
        return parts.answers.opened(session, state.order), "compare"
    if act == "open" and number.isdigit():
        rank = data.get("rank", "")
        if rank.isdigit():
            return parts.answers.opened_rank(session, state.order, int(number), int(rank)), "explore"
        return parts.answers.opened(session, state.order, [int(number)]), "explore"
    return session, ID


def open_point(parts: RunTab, session: Session, state: RunState) -> tuple[Session, str]:
    """Open the trace of the search's point whose timeline was requested."""
    return (parts.answers.opened(session, state.opening, [0]), "explore") if state.opening else (session, ID)


def reopen_run(parts: RunTab, session: Session, visitor: str, event: gr.EventData) -> tuple[Session, str]:
    """Reopen a stored run; if its trace is gone, stay on this tab, where the list of runs shows the error."""
    fields = form_fields(event)
    if fields.get("act") != "reopen":
        return session, ID
    try:
        return parts.answers.reopened(session, visitor, str(fields.get("id", ""))), "explore"
    except (OSError, MemvizError):
        return session, ID
