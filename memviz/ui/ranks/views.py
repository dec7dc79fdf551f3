"""The Ranks tab in HTML: the sentence at the top, groups of equal ranks, outliers, and one rank in detail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from urllib.parse import urlencode

from memviz.predictor.cards import common_cards, short_name
from memviz.ranks.card import OnCard
from memviz.ranks.numbers import Rank, rank_label
from memviz.ranks.row import Curve
from memviz.ranks.summary import JobChanges, Outlier, RankChange, RankGroup, RankSummary, by_category, by_site
from memviz.results.headline import Headline, consecutive_spans
from memviz.results.ranks import missing_ranks, ranks_headline
from memviz.text import Html, cut, cut_middle, rounded, tag
from memviz.trace.model import is_reserved_known
from memviz.ui.html.elements import button, facts_html, labelled, menu, number, switch, table
from memviz.ui.html.labels import headline_html
from memviz.units import bytes_text, count_text, counted, delta_text

_MOST = 20
_TABLE = "mv-table mv-ranktable"
_LONGEST = 60


def ranks_verdict_html(
    job: RankSummary,
    names: Sequence[str] = (),
    number: int = 0,
    card: OnCard | None = None,
    *,
    compared: Headline | None = None,
    choice: str = "",
) -> Html:
    """`names` of the jobs that are open, if several; `number` is that of this one, `choice` the chosen card."""
    # The page's address names the tab and the card (address.js).
    query = {"tab": "ranks", "card": choice} if choice else {"tab": "ranks"}
    link = tag("i", data_mv_query=urlencode(query), hidden=True)
    choices = {str(place): name for place, name in enumerate(names)}
    jobs = switch("job", "Job", choices, str(number)) if names else ""
    against = "" if compared is None else tag("p", str(compared), class_="mv-soft")
    return tag(
        "header", jobs, headline_html(ranks_headline(job, card, is_brief=True)), against, link, class_="mv-answer"
    )


CARD_CHOICES = {short_name(card.name): f"{short_name(card.name)} ({card.memory_gib:g} GiB)" for card in common_cards()}


def card_form(chosen: str = "") -> str:
    """The value of the form that asks for a card."""
    cards = menu("card", chosen, [("", "choose a card"), *CARD_CHOICES.items()])
    choice = labelled("Check fit on", cards, class_="mv-rankcard")
    return json.dumps({"html": choice, "version": "1", "faults": {}, "parts": {}})


def jobs_html(changes: JobChanges, names: Sequence[str]) -> Html:
    """Two jobs against each other: groups where ranks are alike in both, then rank by rank, and the sum."""
    changed = sorted((one for one in changes.ranks if one.delta_bytes), key=lambda one: -abs(one.delta_bytes))
    is_grouped = 1 < len(changes.groups) < len(changed)
    ranks = [_job_row(one, spans_text(one.ranks)) for one in changed[:MOST_ROWS]]
    groups = [_job_row(one, spans_text(one.ranks)) for one in changes.groups[:MOST_ROWS]]
    (groups if is_grouped else ranks).append(_job_row(changes.total, "all"))
    heads = [("Ranks", None), *((words, "mv-number") for words in (*names[:2], "Difference")), ("Largest parts", None)]
    tables = [table(heads, rows, f"{_TABLE} mv-jobs") for rows in ((groups, ranks) if is_grouped else (ranks,))]
    if len(changed) > MOST_ROWS:
        tables.append(tag("p", f"and {count_text(len(changed) - MOST_ROWS)} more ranks", class_="mv-soft"))
    return tag("section", tag("h2", f"{names[1]} against {names[0]}"), *tables)


def _job_row(change: RankChange, name: str) -> Html:
    delta = change.delta_bytes
    causes = [f"{row.words} ({delta_text(row.delta_bytes)})" for row in change.rows("category", 2)[0]]
    causes += [f"{cut(row.name)} ({delta_text(row.delta_bytes)})" for row in change.rows("site", 1)[0]]
    return tag(
        "tr",
        tag("th", name, scope="row"),
        *(number(rounded(peak)) for peak in change.peaks),
        number(tag("b", delta_text(delta), class_=_look(delta)) if delta else "0"),
        tag("td", ", ".join(causes), class_="mv-code"),
    )


def missing_html(job: RankSummary, *, is_open: bool) -> Html:
    """Return the note about missing ranks. Among open files a rank is not open, since its file may exist."""
    text = missing_ranks(job, "Not open here:" if is_open else "No file of")
    return tag("p", text, class_="mv-soft mv-missing") if text else Html("")


def failed_html(job: RankSummary) -> Html:
    if not job.failed:
        return Html("")
    names = [(one, tag("b", cut_middle(one.place, _LONGEST), title=one.place)) for one in job.failed[:_MOST]]
    rows = [tag("li", name, " ", one.reason) for one, name in names]
    head = tag("summary", f"Left out: {count_text(len(job.failed))}")
    more = tag("li", f"and {count_text(len(job.failed) - _MOST)} more") if len(job.failed) > _MOST else ""
    return tag("details", head, tag("ul", *rows, more), class_="mv-leftout")


_WIDE, _HIGH = 132, 26
_MOST_POINTS = 66


def sparkline(curve: Curve, highest: int, other: Curve | None = None) -> Html:
    """`other` is drawn behind it, as an area."""
    behind = tag("path", d=f"{_line(other or curve, highest)}V{_HIGH}H0Z", class_="mv-spark-area")
    front = tag("path", d=_line(curve, highest), class_="mv-spark-line")
    size = {"width": _WIDE, "height": _HIGH, "viewBox": f"0 0 {_WIDE} {_HIGH}"}
    return tag("svg", behind, front, **size, class_="mv-spark", aria_hidden="true")


def _line(curve: Curve, highest: int) -> str:
    """Return the path of a curve; each point is the highest value of its interval."""
    count = min(_MOST_POINTS, len(curve.live))
    bounds = [len(curve.live) * i // count for i in range(count + 1)]
    heights = [max(curve.live[begin:end]) for begin, end in pairwise(bounds)]
    points = [
        f"{_WIDE * i / max(count - 1, 1):.1f} {_HIGH - (_HIGH - 1) * live / max(highest, 1):.1f}"
        for i, live in enumerate(heights)
    ]
    return f"M{'L'.join(points)}"


MOST_ROWS = 24
_MOST_SPANS = 5


def groups_html(job: RankSummary) -> Html:
    usual = job.usual_groups
    # The headline says how many are alike in one group, and outliers have a list of their own.
    if len(usual) < 2:
        return Html("")
    rows = [_group_row(job, group) for group in usual[:MOST_ROWS]]
    return _section("Groups of similar ranks", ("", "Ranks", "Peak", ""), rows, len(usual), "groups")


def _group_row(job: RankSummary, group: RankGroup) -> Html:
    median = job.of(group.median_rank)
    spread = ""
    if group.least_bytes != group.most_bytes:
        spread = f"{bytes_text(group.least_bytes)} to {bytes_text(group.most_bytes)}"
    picture = "" if median is None else sparkline(median.row.curve, job.highest.row.peak_bytes)
    return tag(
        "tr",
        tag("td", picture),
        tag("th", _choosing(group.median_rank, counted(len(group.ranks), "rank")), scope="row"),
        number(rounded(group.peak_bytes)),
        tag("td", spans_text(group.ranks), tag("small", spread) if spread else "", class_="mv-soft"),
    )


def outliers_html(job: RankSummary) -> Html:
    if not job.outliers:
        return Html("")
    rows = [_outlier_row(job, one) for one in job.outliers[:MOST_ROWS]]
    names = ("", "Rank", "More or less", "Largest parts")
    return _section("Outliers", names, rows, len(job.outliers), "ranks")


def _outlier_row(job: RankSummary, one: Outlier) -> Html:
    rank, against = job.of(one.rank), job.of(one.against)
    picture: Html | str = ""
    if rank is not None and against is not None:
        picture = sparkline(rank.row.curve, job.highest.row.peak_bytes, against.row.curve)
    # The category first, and a site where one is the largest.
    category, site = one.chief_category, one.chief_site
    causes = [f"{category.words} ({delta_text(category.delta_bytes)})"] if category is not None else []
    causes += [f"{cut(site.name)} ({delta_text(site.delta_bytes)})"] if site is not None else []
    return tag(
        "tr",
        tag("td", picture),
        tag("th", _choosing(one.rank, f"rank {one.rank}"), scope="row"),
        number(tag("b", delta_text(one.delta_bytes), class_=_look(one.delta_bytes))),
        tag("td", ", ".join(causes), tag("small", f"against rank {one.against}"), class_="mv-code"),
    )


def _choosing(rank: int, text: str) -> Html:
    return button(text, "rank", "mv-link", data_rank=rank)


def _section(title: str, names: Sequence[str], rows: Sequence[Html], many: int, what: str) -> Html:
    """`rows` are the first of `many`."""
    head = tag("tr", *(tag("th", name, scope="col") if name else tag("td") for name in names))
    made = tag("table", tag("thead", head), tag("tbody", *rows), class_=_TABLE)
    left = many - MOST_ROWS
    more = tag("p", f"and {count_text(left)} more {what}", class_="mv-soft") if left > 0 else ""
    return tag("section", tag("h2", f"{title} ", tag("span", count_text(many))), made, more)


def spans_text(numbers: Sequence[int]) -> str:
    """'0-3, 8-11'."""
    spans = consecutive_spans(numbers)
    text = [f"{first}" if first == last else f"{first}–{last}" for first, last in spans[:_MOST_SPANS]]
    return ", ".join([*text, *(["…"] if len(spans) > _MOST_SPANS else [])])


_TOP = 8


def one_rank_html(
    job: RankSummary, number: int | None, *, can_open: bool, job_number: int = 0, given: str = ""
) -> Html:
    """`job_number` is the job's among those that are open, `given` the visitor's name for the rank."""
    rank = None if number is None else job.of(number)
    if rank is None:
        return tag("p", "Select a rank in the map to see its figures.", class_="mv-soft mv-onerank")
    against = job.of(job.against(rank.number))
    other = None if against is None or against.number == rank.number else against
    where = rank_label(rank, given)
    title = tag("h2", f"Rank {rank.number}", tag("span", f" {where}") if where else "")
    picture = sparkline(rank.row.curve, job.highest.row.peak_bytes, None if other is None else other.row.curve)
    data = {"data_rank": rank.number, "data_job": job_number or None}
    buttons = [button("Open in Explore", "open-rank", "mv-button", **data)]
    if other is not None:
        label = f"Compare with rank {other.number}"
        buttons.append(button(label, "compare-rank", "mv-button", **data))
    parts = [tag("header", title, picture, *(buttons if can_open else ())), _facts(rank, with_categories=other is None)]
    if other is not None:
        parts.append(_differences(rank, other))
    return tag("section", *parts, class_="mv-onerank", aria_label=f"Rank {rank.number}")


def _facts(rank: Rank, *, with_categories: bool) -> Html:
    row = rank.row
    is_known = is_reserved_known(row.peak_bytes, row.reserved_peak_bytes)
    device = [("device", f"{row.device}, one of {count_text(row.device_count)}")] if row.device_count > 1 else []
    facts: list[tuple[str, object]] = [
        ("", row.origin),
        *device,
        ("peak", rounded(row.peak_bytes)),
        *([("peak reserved", rounded(row.reserved_peak_bytes))] if is_known else []),
        *((part.words, rounded(part.bytes)) for part in row.categories[: 4 if with_categories else 0]),
    ]
    if row.ran_out:
        last = row.ran_out[-1]
        facts.append(("out of memory, requested", f"{bytes_text(last.requested_bytes)} {cut(last.site, 60)}".strip()))
    return facts_html(facts)


def _differences(rank: Rank, other: Rank) -> Html:
    delta = rank.row.peak_bytes - other.row.peak_bytes
    if not delta and not by_site(rank.row, other.row, 1):
        return tag("p", f"Its peak equals that of rank {other.number}.", class_="mv-soft")
    rows = [
        tag("li", tag("b", delta_text(row.delta_bytes), class_=_look(row.delta_bytes)), " ", tag("code", cut(row.name)))
        for row in by_site(rank.row, other.row, _TOP)
    ]
    kinds = ", ".join(f"{row.words} {delta_text(row.delta_bytes)}" for row in by_category(rank.row, other.row)[:2])
    text = f"{delta_text(delta)} against rank {other.number}" if delta else f"as high as rank {other.number}"
    caption = tag("h3", text, tag("span", f" {kinds}") if kinds else "")
    return tag("div", caption, tag("ul", *rows, class_="mv-parts"))


def _look(delta: int) -> str:
    return "mv-grew" if delta > 0 else "mv-shrank"
