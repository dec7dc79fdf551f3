"""The rank that was chosen: its figures, what it has more or less than the median rank, and where to go from here."""

from __future__ import annotations

from memviz.ranks.differences import by_category, by_site
from memviz.ranks.mesh import mesh_of, mesh_text
from memviz.ranks.numbers import Rank
from memviz.ranks.together import Ranks
from memviz.trace.reserved_bytes import is_reserved_known
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut, rounded
from memviz.ui.ranks.sparkline import sparkline
from memviz.units import bytes_text, count_text, delta_text

_TOP = 8


def one_rank_html(job: Ranks, number: int | None, *, can_open: bool) -> Html:
    rank = None if number is None else job.of(number)
    if rank is None:
        return tag("p", "Choose a rank in the map: its figures come here.", class_="mv-soft mv-onerank")
    against = job.of(job.against(rank.number))
    other = None if against is None or against.number == rank.number else against
    where = mesh_text(mesh_of(rank))
    title = tag("h2", f"Rank {rank.number}", tag("span", f" {where}") if where else "")
    picture = sparkline(rank.row.curve, job.highest.row.peak_bytes, None if other is None else other.row.curve)
    parts = [tag("header", title, picture, *_buttons(rank, other, can_open=can_open)), _facts(rank)]
    if other is not None:
        parts.append(_differences(rank, other))
    return tag("section", *parts, class_="mv-onerank", aria_label=f"Rank {rank.number}")


def _buttons(rank: Rank, other: Rank | None, *, can_open: bool) -> list[Html]:
    if not can_open:
        return []
    shown = [_button("Open in Explore", "open-rank", rank.number)]
    if other is not None:
        shown.append(_button(f"Compare with rank {other.number}", "compare-rank", rank.number))
    return shown


def _button(words: str, act: str, rank: int) -> Html:
    return tag("button", words, type="button", data_act=act, data_rank=rank, class_="mv-button")


def _facts(rank: Rank) -> Html:
    row = rank.row
    is_known = is_reserved_known(row.peak_bytes, row.reserved_peak_bytes)
    device = [("device", f"{row.device}, one of {count_text(row.device_count)}")] if row.device_count > 1 else []
    facts = [
        ("", row.origin),
        *device,
        ("peak", rounded(row.peak_bytes)),
        ("reserved at most", rounded(row.reserved_peak_bytes) if is_known else "not in the file"),
        ("events", count_text(row.event_count)),
        *((part.words, rounded(part.bytes)) for part in row.categories[:4]),
    ]
    if row.ran_out:
        last = row.ran_out[-1]
        facts.append(("out of memory, asked", f"{bytes_text(last.requested_bytes)} {cut(last.site, 60)}".strip()))
    return tag("p", *(tag("span", words, " ", tag("b", value)) for words, value in facts), class_="mv-facts")


def _differences(rank: Rank, other: Rank) -> Html:
    delta = rank.row.peak_bytes - other.row.peak_bytes
    if not delta and not by_site(rank.row, other.row, 1):
        return tag("p", f"At its peak it holds what rank {other.number} holds.", class_="mv-soft")
    rows = [
        tag("li", tag("b", delta_text(row.delta_bytes), class_=_look(row.delta_bytes)), " ", tag("code", cut(row.name)))
        for row in by_site(rank.row, other.row, _TOP)
    ]
    kinds = ", ".join(f"{row.words} {delta_text(row.delta_bytes)}" for row in by_category(rank.row, other.row)[:3])
    words = f"{delta_text(delta)} against rank {other.number}" if delta else f"as high as rank {other.number}"
    caption = tag("h3", words, tag("span", f" {kinds}") if kinds else "")
    return tag("div", caption, tag("ul", *rows, class_="mv-parts"))


def _look(delta: int) -> str:
    return "mv-grew" if delta > 0 else "mv-shrank"
