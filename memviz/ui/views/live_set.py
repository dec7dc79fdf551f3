"""What is live at a moment, as a table."""

from __future__ import annotations

from memviz.analysis.peak import LiveSet
from memviz.ui.views.markup import Html, tag
from memviz.units import bytes_text, count_text, percent_text


def live_table_html(live: LiveSet) -> Html:
    whole = live.live_bytes
    rows = [
        tag(
            "tr",
            tag("td", each.label, class_="mv-code"),
            tag("td", tag("i", style=f"width:{100 * each.bytes / max(whole, 1):.2f}%"), class_="mv-bar"),
            tag("td", count_text(each.count), class_="mv-number"),
            tag("td", bytes_text(each.bytes), class_="mv-number"),
            tag("td", percent_text(each.bytes, whole), class_="mv-number mv-soft"),
            data_act="light",
            data_by=live.live.by,
            data_group=each.key,
            tabindex="0",
        )
        for each in live.live.groups
    ]
    if live.live.rest_count:
        rest = live.live
        rows.append(
            tag(
                "tr",
                tag("td", "everything else"),
                tag("td"),
                tag("td", count_text(rest.rest_count), class_="mv-number"),
                tag("td", bytes_text(rest.rest_bytes), class_="mv-number"),
                tag("td", percent_text(rest.rest_bytes, whole), class_="mv-number mv-soft"),
            )
        )
    head = [
        (live.live.by.capitalize(), ""),
        ("", ""),
        ("Blocks", "mv-number"),
        ("Bytes", "mv-number"),
        ("Share", "mv-number"),
    ]
    return tag(
        "table",
        tag("thead", tag("tr", *(tag("th", text, class_=kind, scope="col") for text, kind in head))),
        tag("tbody", *rows),
        class_="mv-table",
    )
