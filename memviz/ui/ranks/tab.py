"""Ranks: many ranks of one program over the same steps, groups of equal ranks, outliers and their causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from memviz.errors import MemvizError
from memviz.ranks.card import fit_on_card
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import trace_at
from memviz.ranks.summary import JobChanges, RankSummary
from memviz.results.ranks import card_memory, jobs_headline, ranks_headline, ranks_json
from memviz.text import Html, joined, tag
from memviz.ui.components.component import Panel, PlainForm, clicked, form_fields
from memviz.ui.components.plots import RankMap
from memviz.ui.ranks.answer import ShownRanks, compared_jobs, has_ranks, rank_map_value, shown_ranks
from memviz.ui.ranks.views import (
    CARD_CHOICES,
    card_form,
    failed_html,
    groups_html,
    jobs_html,
    missing_html,
    one_rank_html,
    outliers_html,
    ranks_verdict_html,
)
from memviz.ui.saved.document import Document, SavedLinks, SavedPanel, html_text
from memviz.ui.shell.gradio_events import PRIVATE, while_seen
from memviz.ui.shell.session import Context, Session, open_trace
from memviz.ui.shell.temporary_files import SharedFiles, json_writer, table_writer, text_writer
from memviz.units import whole_number

ID, LABEL = "ranks", "Ranks"


class RanksTab:
    """The tab's components. It keeps nothing of any visitor."""

    def __init__(self, context: Context, session: gr.State, tabs: gr.Tabs, tab: gr.Tab) -> None:
        self.context = context
        with gr.Column(elem_classes="mv-ranks"):
            shown = gr.State(())
            """The part of the session that this tab shows. A change redraws the tab if it is visible."""
            verdict = Panel(elem_id="ranks-verdict")
            self.card_menu = card_menu = PlainForm(card_form(), elem_id="ranks-card")
            # Above what is said of a rank, so that a click moves nothing that is pointed at.
            picture = RankMap(elem_id="ranks-map")
            self.one = Panel(elem_id="ranks-one")
            """Its buttons open traces, which the page does."""
            lists, failed = Panel(elem_id="ranks-lists"), Panel(elem_id="ranks-failed")
            chosen, self.job, card, looked_at = gr.State(None), gr.State(0), gr.State(""), gr.State(False)
            job, self.card = self.job, card
        self.outputs = [tab, shown]
        drawing = [verdict, picture, self.one, lists, failed, chosen]
        inputs = [session, chosen, job, card]
        while_seen(tabs, tab, shown, looked_at, partial(draw, context), inputs=inputs, outputs=drawing)
        picture.select(self._choose, [session, job], [self.one, chosen], **PRIVATE)
        lists.click(self._jump, [session, job, card], drawing, **PRIVATE)
        verdict.click(self._turn_to_job, [session, card], [*drawing, job], **PRIVATE)
        card_menu.input(self._take_card, [session, job], [verdict, card], **PRIVATE)

    def _choose(self, current: Session, job: int, event: gr.EventData) -> list[Any]:
        """In the map, which has marked it already."""
        rank, shown = _rank(clicked(event)), shown_ranks(self.context, current, job)
        return ["" if shown is None else _one(shown, rank), rank]

    def _jump(self, current: Session, job: int, card: str, event: gr.EventData) -> list[Any]:
        return draw(self.context, current, _rank(clicked(event)), job, card)

    def _turn_to_job(self, current: Session, card: str, event: gr.EventData) -> list[Any]:
        job = _rank(clicked(event), "value") or 0
        return [*draw(self.context, current, None, job, card), job]

    def _take_card(self, current: Session, job: int, event: gr.EventData) -> list[Any]:
        card, shown = form_fields(event).get("card", ""), shown_ranks(self.context, current, job)
        compared = None if shown is None else compared_jobs(self.context, current, shown)
        return ["" if shown is None else _verdict(shown, card, compared), card]

    def open_clicked(self, session: Session, event: gr.EventData) -> tuple[Session, str | None]:
        """The session with the rank opened, or compared with the median rank, and the tab that shows it."""
        return pressed(self.context, session, clicked(event))


def show(context: Context, session: Session) -> list[Any]:
    """The values of `RanksTab.outputs`: the tab is there where ranks are."""
    opened = (session.table, *((trace.key, trace.device, trace.name) for trace in session.opened))
    return [gr.update(visible=has_ranks(context, session)), opened]


def draw(context: Context, session: Session, chosen: int | None, number: int = 0, card: str = "") -> list[Any]:
    """The values of what the tab draws; `number` is the job's among those that are open, `card` the chosen one."""
    shown = shown_ranks(context, session, number)
    if shown is None:
        return ["", {}, "", "", "", None]
    job = shown.job
    chosen = None if chosen is None or job.of(chosen) is None else chosen
    # Until one is chosen the largest outlier, of those that have come so far.
    first = job.outliers[0].rank if job.outliers else job.highest.number
    rank = first if chosen is None else chosen
    compared = compared_jobs(context, session, shown)
    return [
        _verdict(shown, card, compared),
        rank_map_value(job, rank, shown.given),
        _one(shown, rank),
        ("" if compared is None else jobs_html(*compared)) + outliers_html(job) + groups_html(job),
        missing_html(job, is_open=shown.is_open) + failed_html(job),
        chosen,
    ]


def _verdict(shown: ShownRanks, card: str, compared: tuple[JobChanges, list[str]] | None) -> str:
    # Rows alone decide: a file of this name may be another one here, so none is replayed.
    choice = card if card in CARD_CHOICES else ""
    answer = fit_on_card(shown.job.ranks, card_memory(choice)) if choice else None
    against = None if compared is None else jobs_headline(*compared)
    return ranks_verdict_html(shown.job, shown.names, shown.number, answer, compared=against, choice=choice)


def _one(shown: ShownRanks, rank: int | None) -> str:
    can_open = shown.is_given or (rank in shown.keys)
    given = "" if rank is None else shown.given.get(rank, "")
    return one_rank_html(shown.job, rank, can_open=can_open, job_number=shown.number, given=given)


_MOST_SAVED = 512
"""Ranks whose figures a page has; of others it has the map."""


def shared_files(context: Context, session: Session, job: int) -> SharedFiles:
    shown = shown_ranks(context, session, job)
    if shown is None:
        return {}
    found = shown.job
    return {
        "page": ("ranks.html", text_writer(lambda: ranks_page(found))),
        "csv": ("ranks.csv", table_writer(lambda: ranks_json(found)["ranks"])),
        "json": ("ranks.json", json_writer(lambda: ranks_json(found))),
    }


def ranks_page(job: RankSummary) -> str:
    """The tab as one page: the map, in which a rank can be chosen, and its lists."""
    numbers = [*(one.rank for one in job.outliers), job.highest.number, *(rank.number for rank in job.ranks)]
    saved = {str(number) for number in numbers[:_MOST_SAVED]}

    def follow(data: Mapping[str, str]) -> dict[str, str] | None:
        return {"rank": data["rank"]} if data.get("rank") in saved else None

    with SavedLinks(follow):
        views: dict[tuple[str, ...], Html] = {(rank,): one_rank_html(job, int(rank), can_open=False) for rank in saved}
        lists = joined(outliers_html(job), groups_html(job))
        texts = [ranks_verdict_html(job), missing_html(job, is_open=False), failed_html(job)]
    parts = ("ranks-map", ""), ("ranks-one", views[str(numbers[0]),]), ("ranks-lists", lists)
    places = [tag("div", html, id=name) for name, html in parts]
    body = tag("div", texts[0], *places, *texts[1:], class_="mv-ranks")
    panel = SavedPanel("ranks-one", ("rank",), views)
    data = {"ranks": rank_map_value(job, numbers[0])}
    return html_text(Document(ranks_headline(job).answer, body, [panel], {"rank": str(numbers[0])}, data=data))


def _rank(data: dict[str, str], name: str = "rank") -> int | None:
    return whole_number(data.get(name, ""))


def pressed(context: Context, session: Session, data: dict[str, str]) -> tuple[Session, str | None]:
    shown, rank = shown_ranks(context, session, _rank(data, "job") or 0), _rank(data)
    if shown is None or rank is None or shown.job.of(rank) is None:
        return session, None
    if data.get("act") not in ("open-rank", "compare-rank"):
        return session, None
    session, other = session.without_refused(), ""
    if data["act"] == "compare-rank":
        session, other = _opened(context, session, shown, shown.job.against(rank))
    session, key = _opened(context, session, shown, rank)
    session = session.choosing(key)
    return (replace(session, compared=(other, key)), "compare") if other else (session, "explore")


def _opened(context: Context, session: Session, shown: ShownRanks, number: int) -> tuple[Session, str]:
    """Return the rank's open trace; else read its file, which is allowed only for files given at startup."""
    key = shown.keys.get(number, "")
    if session.of(key) is not None:
        return session, key
    rank = shown.job.of(number)
    if rank is None or not shown.is_given:
        raise gr.Error("This rank is no longer open.", print_exception=False)
    try:
        opened = open_trace(context.store, trace_at(Place(rank.row.place)))
    except MemvizError as error:
        raise gr.Error(str(error), print_exception=False) from None
    return session.with_opened(opened), opened.key
