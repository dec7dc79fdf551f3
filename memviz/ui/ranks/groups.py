"""Who is like whom, and who stands out: a line a group and a line an outlier, each with its small picture."""

from __future__ import annotations

from collections.abc import Sequence

from memviz.ranks.differences import NamedDelta
from memviz.ranks.groups import Outlier, RankGroup
from memviz.ranks.together import Ranks
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut, rounded
from memviz.ui.ranks.sparkline import sparkline
from memviz.units import bytes_text, count_text, delta_text

MOST_ROWS = 24
_MOST_SPANS = 5


def groups_html(job: Ranks) -> Html:
    if len(job.groups) < 2:
        return Html("")
    usual = job.usual_groups
    rows = [_group_row(job, group) for group in usual[:MOST_ROWS]]
    need = "reached" if job.ran_out else "need"
    head = tag("h2", f"Groups of ranks that {need} the same ", tag("span", count_text(len(usual))))
    return tag("section", head, _table(("", "Ranks", "Peak", ""), rows), _more(len(usual), "groups"))


def _group_row(job: Ranks, group: RankGroup) -> Html:
    median = job.of(group.median_rank)
    spread = ""
    if group.least_bytes != group.most_bytes:
        spread = f"{bytes_text(group.least_bytes)} to {bytes_text(group.most_bytes)}"
    picture = "" if median is None else sparkline(median.row.curve, job.highest.row.peak_bytes)
    many = count_text(len(group.ranks))
    return tag(
        "tr",
        tag("td", picture),
        tag("th", _choosing(group.median_rank, f"{many} {'rank' if many == '1' else 'ranks'}"), scope="row"),
        tag("td", rounded(group.peak_bytes), class_="mv-number"),
        tag("td", spans_text(group.ranks), tag("small", spread) if spread else "", class_="mv-soft"),
    )


def outliers_html(job: Ranks) -> Html:
    if not job.outliers:
        return Html("")
    rows = [_outlier_row(job, one) for one in job.outliers[:MOST_ROWS]]
    head = tag("h2", "Ranks that stand out ", tag("span", count_text(len(job.outliers))))
    names = ("", "Rank", "More or less", "Largest parts")
    return tag("section", head, _table(names, rows), _more(len(job.outliers), "ranks"))


def _outlier_row(job: Ranks, one: Outlier) -> Html:
    rank, against = job.of(one.rank), job.of(one.against)
    picture: Html | str = ""
    if rank is not None and against is not None:
        picture = sparkline(rank.row.curve, job.highest.row.peak_bytes, against.row.curve)
    look = "mv-grew" if one.delta_bytes > 0 else "mv-shrank"
    return tag(
        "tr",
        tag("td", picture),
        tag("th", _choosing(one.rank, f"rank {one.rank}"), scope="row"),
        tag("td", tag("b", delta_text(one.delta_bytes), class_=look), class_="mv-number"),
        tag("td", *_causes(one), tag("small", f"against rank {one.against}"), class_="mv-code"),
    )


def _causes(one: Outlier) -> list[Html | str]:
    """The category first, and a site where one is the largest."""
    category, site = one.chief_category, one.chief_site
    words = [f"{category.words} ({delta_text(category.delta_bytes)})"] if category is not None else []
    if site is not None:
        words.append(cause_text(site))
    return [", ".join(words)]


def cause_text(cause: NamedDelta | None) -> str:
    return "" if cause is None else f"{cut(cause.name)} ({delta_text(cause.delta_bytes)})"


def _choosing(rank: int, words: str) -> Html:
    return tag("button", words, type="button", data_act="rank", data_rank=rank, class_="mv-link")


def _table(names: Sequence[str], rows: Sequence[Html]) -> Html:
    head = tag("tr", *(tag("th", name, scope="col") if name else tag("td") for name in names))
    return tag("table", tag("thead", head), tag("tbody", *rows), class_="mv-table mv-ranktable")


def _more(many: int, what: str) -> Html | str:
    left = many - MOST_ROWS
    return tag("p", f"and {count_text(left)} more {what}", class_="mv-soft") if left > 0 else ""


def spans_text(numbers: Sequence[int]) -> str:
    """'0-3, 8-11'."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = [f"{first}" if first == last else f"{first}–{last}" for first, last in spans[:_MOST_SPANS]]
    return ", ".join([*words, *(["…"] if len(spans) > _MOST_SPANS else [])])
