"""What a query finds: its sites, with bytes at the moment and how often over the whole trace."""

from __future__ import annotations

from memviz.analysis.find import FindResult, FoundSite
from memviz.ui.explore.live_set import lights, name_html
from memviz.ui.html.markup import Html, joined, tag
from memviz.ui.html.words import allocations, cut, exact, rounded, when
from memviz.units import bytes_text, count_text

MOST_ROWS = 20


def found_html(result: FindResult, query: str) -> Html:
    """The outermost element tells the page's script what to light while nothing else is pointed at."""
    if not result.count:
        return _section(tag("p", tag("b", "Nothing"), f" in this trace is found by {cut(query)}", class_="mv-soft"))
    sites = f"{count_text(len(result.sites))} site{'' if len(result.sites) == 1 else 's'}"
    now = f"{bytes_text(result.live_bytes)} live at {when(result.event)}" if result.event >= 0 else when(result.event)
    head = tag("h3", f"{allocations(result.count)} at {sites}", tag("span", f" {now}", class_="mv-soft"))
    return _section(head, _table(result), data_light_rest="find", data_light_rest_group=query)


def refused_query_html(words: str) -> Html:
    return _section(tag("p", words, class_="mv-soft", role="alert"))


def _section(*content: Html, **attributes: str) -> Html:
    return tag("section", *content, class_="mv-part mv-found", **attributes)


def _table(result: FindResult) -> Html:
    rows = [_row(site) for site in result.sites[:MOST_ROWS]]
    rest = result.sites[MOST_ROWS:]
    foot = []
    if rest:
        name = f"everything else, {count_text(len(rest))} more"
        sums = (sum(e.live_count for e in rest), sum(e.live_bytes for e in rest), sum(e.count for e in rest))
        foot.append(tag("tr", tag("td", name), *_cells(sums[0], rounded(sums[1]), sums[2])))
    foot.append(tag("tr", tag("td", "Found"), *_cells(result.live_count, exact(result.live_bytes), result.count)))
    names = (
        ("Site", ""),
        ("Blocks now", "mv-number mv-wide"),
        ("Bytes now", "mv-number"),
        ("In the whole trace", "mv-number"),
    )
    heads = [tag("th", words, class_=kind or None, scope="col") for words, kind in names]
    body = joined(tag("thead", tag("tr", *heads)), tag("tbody", *rows), tag("tfoot", *foot))
    return tag("table", body, class_="mv-table mv-groups")


def _row(site: FoundSite) -> Html:
    title = f"{exact(site.bytes)} over the whole trace, never live together"
    cells = _cells(site.live_count, rounded(site.live_bytes), site.count, title=title)
    return tag("tr", tag("td", name_html(site.label, "site")), *cells, **lights("site", site.key))


def _cells(live: int, size: object, count: int, title: str | None = None) -> tuple[Html, ...]:
    return (
        tag("td", count_text(live), class_="mv-number mv-wide"),
        tag("td", size, class_="mv-number"),
        tag("td", count_text(count), class_="mv-number", title=title),
    )
