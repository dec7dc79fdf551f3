"""Allocations never freed, growth from step to step, and allocations freed at once."""

from __future__ import annotations

from dataclasses import replace

from memviz.analysis.breakdown import Breakdown
from memviz.analysis.groups import Groups
from memviz.analysis.leaks import Growth, GrowthRow
from memviz.text import Html, allocations, cut, exact, joined, rounded, tag
from memviz.ui.explore.live_set import TableLook, lights, name_html, table_html
from memviz.ui.explore.state import ExploreState
from memviz.ui.html.elements import number, table
from memviz.units import bytes_text, count_text, delta_text

CHURN_ROWS = 12


_LOOK = TableLook(total="Never freed")


def never_freed_html(
    kept: Breakdown,
    grown: Growth,
    churn: Groups,
    state: ExploreState,
    *,
    look: TableLook = _LOOK,
    download: dict[str, str] | None = None,
) -> Html:
    look = replace(look, total=_LOOK.total)
    return joined(sites_html(kept, state, download, look), growth_html(grown), churn_html(churn))


def sites_html(kept: Breakdown, state: ExploreState, download: dict[str, str] | None, look: TableLook = _LOOK) -> Html:
    groups = kept.groups
    if not groups.count:
        return _section("Everything that was made here was freed again, or asked to be.")
    head = f"{allocations(groups.count)} made here {'is' if groups.count == 1 else 'are'} alive at the end"
    soft = f"{bytes_text(groups.bytes)}. A model and its optimizer belong here; what grows from step to step does not."
    return _section(head, soft, table_html(kept, state, look=look, download=download))


def growth_html(grown: Growth) -> Html:
    if not grown.steps:
        text = "The trace marks no steps, so what grows from one to the next is not known."
        return _section("Growth from step to step", text)
    spans = len(grown.steps) - 1
    if not spans:
        return _section("Growth from step to step", "The trace holds one step; there is none to compare it with.")
    total = grown.live_bytes[-1] - grown.live_bytes[0]
    change = delta_text(total) if total else "No change"
    head = f"{change} from the end of {cut(grown.steps[0])} to the end of {cut(grown.steps[-1])}"
    if not grown.rows:
        return _section(head, "No site holds more at the end of the last step than at the end of the first.")
    rows = []
    for row in grown.rows:
        name = tag("td", name_html(row.label, grown.by))
        rows.append(tag("tr", name, *_cells(row, spans), **lights(grown.by, row.key)))
    rest = GrowthRow("", "everything else", grown.rest_bytes)
    live = GrowthRow("", "Live", grown.live_bytes)
    foot = [tag("tr", tag("td", row.label), *_cells(row, spans, is_exact=row is live)) for row in (rest, live)]
    heads = [(f"After {cut(step, 40)}", "mv-number mv-wide") for step in (grown.steps[0], grown.steps[-1])]
    heads += [("Change", "mv-number"), ("A step", "mv-number")]
    return _section(head, "", table([("Site", None), *heads], rows, "mv-table mv-groups", foot))


def _cells(row: GrowthRow, spans: int, *, is_exact: bool = False) -> tuple[Html, ...]:
    change, text = row.grown_bytes, exact if is_exact else rounded
    kind = "mv-grew" if change > 0 else "mv-shrank" if change < 0 else ""
    return (
        number(text(row.bytes[0]), more="mv-wide"),
        number(text(row.bytes[-1]), more="mv-wide"),
        number(_change(change), more=kind, title=exact(change)),
        number(_change(round(change / spans))),
    )


def _change(count: int) -> str:
    """The change always shows its direction in text, since color alone is not accessible."""
    return delta_text(count) if count else "0"


def churn_html(churn: Groups) -> Html:
    if not churn.count:
        return _section("Nothing was freed at once", "No allocation was freed by the very next alloc or free.")
    head = f"{allocations(churn.count)} freed at once"
    soft = f"{bytes_text(churn.bytes)} passed through, never live together. They cost time, not room."

    def row(name: object, count: int, size: object, **attributes: str) -> Html:
        return tag("tr", tag("td", name), number(count_text(count)), number(size), **attributes)

    rows = [
        row(name_html(group.label, churn.by), group.count, rounded(group.bytes), **lights(churn.by, group.key))
        for group in churn.groups
    ]
    foot = [row("everything else", churn.rest_count, rounded(churn.rest_bytes))] if churn.rest_count else []
    foot.append(row("Together", churn.count, exact(churn.bytes)))
    heads = (("Site", None), ("Times", "mv-number"), ("Bytes", "mv-number"))
    return _section(head, soft, table(heads, rows, "mv-table mv-groups", foot))


def _section(head: str, soft: str = "", *content: Html) -> Html:
    text = joined(" ", tag("span", soft, class_="mv-soft")) if soft else ""
    return tag("section", tag("h3", head, text), *content, class_="mv-part")
