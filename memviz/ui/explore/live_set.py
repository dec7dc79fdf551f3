"""Tables of allocations live at a moment or a range's peak, matching a query, never freed, or freed at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from memviz.analysis.breakdown import Breakdown, Dominant, WeightedRows, rows_in_range
from memviz.analysis.find import FindResult
from memviz.analysis.groups import Group, Groups
from memviz.analysis.leaks import Growth, GrowthRow
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.peak import RangeSummary, Total
from memviz.analysis.purpose.categories import KINDS
from memviz.analysis.purpose.reasons import Certainty
from memviz.figures.colouring import MEANINGS, Colouring, cached_colouring, group_colour
from memviz.text import Html, allocations, cut, exact, joined, rounded, tag, when
from memviz.trace.model import DeviceTrace, Ints8, Trace
from memviz.ui.explore.state import GROUPINGS, TABS, WEIGHTS, ExploreState
from memviz.ui.html.elements import button, link, number, switch, table
from memviz.ui.html.labels import shades_of, style_of, swatch
from memviz.units import bytes_text, count_text, counted, delta_text, percent_text


@dataclass(frozen=True)
class Paint:
    meaning: str
    shades: Mapping[str, tuple[str, str]]
    """Colours of each label, on light and on dark pages."""

    def style(self, label: str) -> str:
        return style_of(self.shades[label])

    def swatch(self, label: str) -> Html:
        words = None if self.meaning == "category" else f"mostly {label}"
        return tag("i", class_="mv-kind mv-square", style=self.style(label), title=words, aria_hidden="true")


CATEGORIES = Paint("category", {kind: shades_of(kind) for kind in KINDS})


def colours_of(trace: Trace, device: DeviceTrace, meaning: str) -> Colouring:
    """Return the timeline's cached colours; an unknown `meaning` from the browser gets the default."""
    return cached_colouring(trace, device, meaning if meaning in MEANINGS else "category")


def paint_of(colours: Colouring) -> Paint:
    shades = {
        label: (group_colour(colours, group, dark=False), group_colour(colours, group, dark=True))
        for group, label in enumerate(colours.labels)
    }
    return Paint(colours.meaning, shades)


@dataclass(frozen=True)
class Measure:
    """Formatting of one kind of figure."""

    kind: str = "bytes"
    """One of `state.WEIGHTS`."""
    events: int = 1
    """Divisor of bytes × lifetime, for bytes on average."""

    @property
    def head(self) -> str:
        return "Mean bytes" if self.kind == "lifetime" else "Bytes"

    def text(self, value: int) -> str:
        if self.kind == "count":
            return count_text(value)
        return bytes_text(round(value / self.events))

    def exact(self, value: int) -> str:
        if self.kind == "count":
            return counted(value, "allocation")
        return exact(value) if self.kind == "bytes" else f"{count_text(value)} B × events"

    @property
    def of_bytes_column(self) -> Measure:
        """Measure of the bytes column, which a table of counts has too."""
        return BYTES if self.kind == "count" else self

    def html(self, value: int) -> Html:
        return tag("span", self.text(value), title=self.exact(value))

    def bar_value(self, group: Group | Groups) -> int:
        """Return the value that a group's bar and its share are drawn from."""
        return group.count if self.kind == "count" else group.bytes


BYTES = Measure()


def weights_by_bytes(device: DeviceTrace, rows: Ints8, colours: Colouring) -> WeightedRows:
    return WeightedRows(rows, lifetimes(device).size[rows], colours.group[rows], colours.labels)


def weights_by_lifetime(device: DeviceTrace, span: tuple[int, int], colours: Colouring) -> tuple[WeightedRows, Measure]:
    integral = rows_in_range(device, *span)
    part = colours.group[integral.rows]
    return WeightedRows(integral.rows, integral.byte_events, part, colours.labels), Measure("lifetime", integral.events)


def recoloured(weights: WeightedRows, colours: Colouring) -> WeightedRows:
    """Return the same rows grouped by other colours."""
    return WeightedRows(weights.rows, weights.weight, colours.group[weights.rows], colours.labels)


FEW_ROWS = 40
MOST_ROWS = 200
_LONGEST_KEY = 2000
"""Limit of a group's key in the page. Longer keys cannot be highlighted; only generated code has such names."""
_DIFFER_AT_THE_END = ("module", "line")
_END = 14
_LINE_END = 8
"""Letters of a place's end that stay: its line, with some of the file's name."""
_NAMES = {"site": "Site", "category": "Category", "module": "Module", "line": "Line", "holder": "Holder"}


def head_html(
    state: ExploreState, moment: Html | str = "", facts: Html | str = "", groupings: Mapping[str, str] = GROUPINGS
) -> Html:
    """Moment and switch belong to the live set; the other tabs have their own."""
    tabs = [
        button(label, "tab", None, role="tab", data_value=name, aria_selected="true" if name == state.tab else "false")
        for name, label in TABS.items()
    ]
    tab_list = tag("div", *tabs, class_="mv-tabs", role="tablist", aria_label="Views of this moment")
    rows = switch("by", "Group rows by", groupings, state.by)
    weights = switch("weight", "Measure", WEIGHTS, state.weight)
    switches = joined(rows, weights) if state.tab == "live" else ""
    return joined(tag("div", tab_list, moment, switches, class_="mv-head"), facts)


def moment_total_html(event: int, live: Total, *, of_range: bool = False, is_still: bool = False) -> Html:
    """Return the line with the moment that the tables show."""
    which = "live at the range’s peak, " if of_range else ""
    text = f"{which}{when(event, is_still=is_still)} · {allocations(live.count)} · "
    return tag("p", text, rounded(live.bytes), class_="mv-moment", aria_live="polite")


def lifetime_total_html(span: tuple[int, int], weights: WeightedRows, measure: Measure) -> Html:
    """Return the total of bytes × lifetime over a range or the whole trace."""
    text = f"events {count_text(max(span[0], 0))} to {count_text(span[1])} · {allocations(len(weights.rows))} · "
    mean = measure.html(int(weights.weight.sum()))
    return tag("p", text, mean, " on average", class_="mv-moment", aria_live="polite")


def range_html(during: RangeSummary) -> Html:
    span = f"events {count_text(max(during.first, 0))} to {count_text(during.last)}:"
    parts = {"allocated within": during.allocated, "freed within": during.freed, "live throughout": during.throughout}
    facts = [
        tag("span", f"{text} ", tag("b", rounded(total.bytes)), f" in {count_text(total.count)}")
        for text, total in parts.items()
    ]
    return tag("p", tag("span", span), *facts, class_="mv-facts")


@dataclass(frozen=True)
class TableLook:
    """How a table is coloured and what its figures are. `colour` is what most of each group is, as colours mean it."""

    paint: Paint = CATEGORIES
    colour: Mapping[str, Dominant] | None = None
    measure: Measure = BYTES
    total: str = "Live"


def table_html(
    breakdown: Breakdown, state: ExploreState, *, look: TableLook = TableLook(), download: dict[str, str] | None = None
) -> Html:
    """`download` is the request with which the browser gets the whole table."""
    if not breakdown.groups.count:
        return tag("p", "Nothing is live here.", class_="mv-soft")
    by, groups = breakdown.groups.by, ordered(breakdown, state.sort, is_rising=state.is_rising)
    shown = groups[: MOST_ROWS if state.is_long else FEW_ROWS]
    largest = max((look.measure.bar_value(group) for group in breakdown.groups.groups), default=0)
    rows = [_row(group, breakdown, look, largest=largest) for group in shown]
    rest = groups[len(shown) :]
    if rest:
        label = f"everything else, {count_text(len(rest))} more"
        name = label if state.is_long else button(label, "more", "mv-link")
        size, count = sum(group.bytes for group in rest), sum(group.count for group in rest)
        share = percent_text(sum(map(look.measure.bar_value, rest)), look.measure.bar_value(breakdown.groups))
        rows.append(_sum_row(name, count, look.measure.of_bytes_column.html(size), share, by))
    return tag(
        "table",
        tag("thead", tag("tr", *_heads(by, state, breakdown, look.measure))),
        tag("tbody", *rows),
        tag("tfoot", _total_row(breakdown, look, download)),
        class_="mv-table mv-groups",
    )


def ordered(breakdown: Breakdown, sort: str, *, is_rising: bool) -> list[Group]:
    """Return sorted groups; equal ones by bytes, then by name."""
    groups = sorted(breakdown.groups.groups, key=lambda group: (-group.bytes, group.label, group.key))
    keys = {
        "name": lambda group: group.label.lower(),
        "category": lambda group: breakdown.dominant[group.key].kind,
        "count": lambda group: group.count,
        "bytes": lambda group: group.bytes,
    }
    return sorted(groups, key=keys[sort], reverse=not is_rising)


def _heads(by: str, state: ExploreState, breakdown: Breakdown, measure: Measure) -> Iterable[Html]:
    yield _head(_NAMES.get(by, by.capitalize()), "name", state)
    if by != "category":
        yield _head("Category", "category", state, "mv-wide")
    yield tag("td", class_="mv-wide")
    yield _head("Blocks", "count", state, "mv-number")
    yield _head(measure.head, "bytes", state, "mv-number")
    yield tag("th", f"of {measure.text(measure.bar_value(breakdown.groups))}", class_="mv-number mv-wide", scope="col")


def _head(words: str, sort: str, state: ExploreState, class_: str = "") -> Html:
    is_sorted = state.sort == sort
    arrow = (" ↑" if state.is_rising else " ↓") if is_sorted else ""
    sorts = button(words + arrow, "sort", None, data_value=sort)
    direction = ("ascending" if state.is_rising else "descending") if is_sorted else None
    return tag("th", sorts, class_=class_ or None, scope="col", aria_sort=direction)


def _row(group: Group, breakdown: Breakdown, look: TableLook, *, largest: int) -> Html:
    by_category, mostly = breakdown.groups.by == "category", breakdown.dominant[group.key]
    colour = mostly if look.colour is None else look.colour[group.key]
    is_category = look.paint.meaning == "category"
    # Where the category has its own column, that one goes on narrow screens, and the swatch goes to the name.
    # Where colours mean something else, the swatch is always there.
    first = tag("span", look.paint.swatch(colour.kind), class_="mv-narrow" if is_category and not by_category else None)
    cells = [tag("td", first, name_html(group.label, breakdown.groups.by))]
    if not by_category:
        # With its share unless that reads 100 %.
        percent = percent_text(mostly.bytes, group.bytes)
        mixed = tag("span", f" {percent}", class_="mv-soft") if percent != percent_text(1, 1) else ""
        probably = tag("span", "probably ", class_="mv-soft") if mostly.certainty is Certainty.PROBABLE else ""
        kind = tag("span", probably, mostly.kind, title=mostly.reason or None)
        cells.append(tag("td", swatch(mostly.kind) if is_category else "", " ", kind, mixed, class_="mv-wide"))
    measure, share = look.measure, look.measure.bar_value(group)
    bar = f"width:{100 * share / max(largest, 1):.2f}%;{look.paint.style(colour.kind)}"
    return tag(
        "tr",
        *cells,
        tag("td", tag("i", class_="mv-kind", style=bar), class_="mv-bar mv-wide"),
        number(count_text(group.count)),
        number(measure.of_bytes_column.html(group.bytes)),
        number(percent_text(share, measure.bar_value(breakdown.groups)), more="mv-soft mv-wide"),
        **lights(breakdown.groups.by, group.key),
    )


def name_html(label: str, by: str) -> Html:
    """A button, so that the keyboard lights and keeps the row as the pointer does."""
    text = cut(label)
    place, space, function = text.rpartition(" ")
    has_function = by == "site" and (":" in place or function == "(backward)")
    inside: object = _site(place, space, function) if has_function else text
    spoken = text if has_function else None
    if by in _DIFFER_AT_THE_END:
        inside, spoken = tag("span", text), text
        if len(text) >= 2 * _END:
            # Where it is cut, its middle goes.
            inside = tag("span", tag("span", text[:-_END]), tag("span", text[-_END:]), class_="mv-middle-cut")
    return button(inside, None, "mv-name mv-code", title=cut(label, 600), aria_label=spoken, data_keep="")


def _site(place: str, space: str, function: str) -> Html:
    """Return the site; where it is cut, the function goes first, then the middle, since lines of one file differ."""
    if len(place) < 2 * _LINE_END:
        return joined(place, space, tag("span", function, class_="mv-soft"))
    return tag(
        "span",
        tag("span", place[:-_LINE_END]),
        tag("span", place[-_LINE_END:]),
        tag("span", space, function, class_="mv-soft"),
        class_="mv-site-cut",
    )


def lights(by: str, key: str) -> dict[str, str]:
    return {"data_light_by": by, "data_light_group": key} if len(key) <= _LONGEST_KEY else {}


def _total_row(breakdown: Breakdown, look: TableLook, download: dict[str, str] | None) -> Html:
    groups, csv = breakdown.groups, Html("")
    if download is not None:
        data = {f"data_{name}": value for name, value in download.items()}
        csv = link("CSV", title="The whole table as CSV", data_csv="", **data)
    measure = look.measure.of_bytes_column
    # Bytes × lifetime is shown as a mean here too; the exact sum has twenty digits.
    total = measure.html(groups.bytes) if measure.kind == "lifetime" else measure.exact(groups.bytes)
    return _sum_row(joined(f"{look.total} ", csv), groups.count, total, percent_text(1, 1), groups.by)


def _sum_row(name: object, count: int, size: object, share: str, by: str) -> Html:
    wide = [tag("td", class_="mv-wide")] * (1 if by == "category" else 2)
    figures = number(count_text(count)), number(size), number(share, more="mv-soft mv-wide")
    return tag("tr", tag("td", name), *wide, *figures)


MOST_FOUND = 20


def matches_html(result: FindResult, query: str) -> Html:
    """The outermost element names what the page's script highlights while the pointer is on no row."""
    if not result.count:
        return matches_section(
            tag("p", tag("b", "Nothing"), f" in this trace is found by {cut(query)}", class_="mv-soft")
        )
    now = f"{bytes_text(result.live_bytes)} live at {when(result.event)}" if result.event >= 0 else when(result.event)
    sites = counted(len(result.sites), "site")
    head = tag("h3", f"{allocations(result.count)} at {sites}", tag("span", f" {now}", class_="mv-soft"))
    return matches_section(head, _matches_table(result), data_light_rest="find", data_light_rest_group=query)


def matches_section(*content: Html, **attributes: str) -> Html:
    return tag("section", *content, class_="mv-part mv-found", **attributes)


def _matches_table(result: FindResult) -> Html:
    rows = []
    for site in result.sites[:MOST_FOUND]:
        title = f"{exact(site.bytes)} over the whole trace, never live together"
        cells = _match_cells(site.live_count, rounded(site.live_bytes), site.count, title=title)
        rows.append(tag("tr", tag("td", name_html(site.label, "site")), *cells, **lights("site", site.key)))
    rest = result.sites[MOST_FOUND:]
    foot = []
    if rest:
        name = f"everything else, {count_text(len(rest))} more"
        sums = (sum(e.live_count for e in rest), sum(e.live_bytes for e in rest), sum(e.count for e in rest))
        foot.append(tag("tr", tag("td", name), *_match_cells(sums[0], rounded(sums[1]), sums[2])))
    foot.append(tag("tr", tag("td", "Found"), *_match_cells(result.live_count, exact(result.live_bytes), result.count)))
    heads = (
        ("Site", None),
        ("Blocks now", "mv-number mv-wide"),
        ("Bytes now", "mv-number"),
        ("In the whole trace", "mv-number"),
    )
    return table(heads, rows, "mv-table mv-groups", foot)


def _match_cells(live: int, size: object, count: int, title: str | None = None) -> tuple[Html, ...]:
    return number(count_text(live), more="mv-wide"), number(size), number(count_text(count), title=title)


CHURN_ROWS = 12


def never_freed_html(
    kept: Breakdown,
    grown: Growth,
    churn: Groups,
    state: ExploreState,
    *,
    look: TableLook = TableLook(),
    download: dict[str, str] | None = None,
) -> Html:
    groups = kept.groups
    sites = _section("All allocations made here were freed, or their free was requested.")
    if groups.count:
        head = f"{allocations(groups.count)} made here {'is' if groups.count == 1 else 'are'} alive at the end"
        soft = f"{bytes_text(groups.bytes)}. Expected of a model and its optimizer, not of growth from step to step."
        look = replace(look, total="Never freed")
        sites = _section(head, soft, table_html(kept, state, look=look, download=download))
    return joined(sites, growth_html(grown), churn_html(churn))


def growth_html(grown: Growth) -> Html:
    if not grown.steps:
        text = "The trace marks no steps, so growth between steps is not known."
        return _section("Growth from step to step", text)
    title = f"Growth from {grown.unit} to {grown.unit}"
    spans = len(grown.steps) - 1
    if not spans:
        return _section(title, "The trace has only one step, so growth cannot be measured.")
    total = grown.live_bytes[-1] - grown.live_bytes[0]
    change = delta_text(total) if total else "No change"
    first, last = (f"the {'end of' if grown.unit == 'step' else 'mark'} {cut(grown.steps[i])}" for i in (0, -1))
    head = f"{change} from {first} to {last}"
    if not grown.rows:
        return _section(head, f"No {grown.by} holds more at the end of the last step than at the end of the first.")
    rows = [
        tag("tr", tag("td", name_html(row.label, grown.by)), *_cells(row, spans), **lights(grown.by, row.key))
        for row in grown.rows
    ]
    rest = GrowthRow("", "everything else", grown.rest_bytes)
    live = GrowthRow("", "Live", grown.live_bytes)
    foot = [tag("tr", tag("td", row.label), *_cells(row, spans, is_exact=row is live)) for row in (rest, live)]
    after = "After " if grown.unit == "step" else ""
    heads = [(f"{after}{cut(step, 40)}", "mv-number mv-wide") for step in (grown.steps[0], grown.steps[-1])]
    heads += [("Change", "mv-number"), (f"A {grown.unit}", "mv-number")]
    return _section(head, "", table([(_NAMES[grown.by], None), *heads], rows, "mv-table mv-groups", foot))


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
    """Return the change with its sign, since colour alone is not accessible."""
    return delta_text(count) if count else "0"


def churn_html(churn: Groups) -> Html:
    if not churn.count:
        return _section("Nothing was freed at once", "No allocation was freed by the very next alloc or free.")
    head = f"{allocations(churn.count)} freed at once"
    soft = f"{bytes_text(churn.bytes)} in total, never live together. They cost time, not memory."

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
