"""The frame around every tab: brand, open traces, refused files, the Share menu, and the theme.

A new page asks what its visitor had open. Clicks before the answer wait, because an empty session would answer
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import gradio as gr

from memviz.analysis.timeline import peak_bytes
from memviz.figures.packed_timeline import thumbnail_address
from memviz.results.headline import differing_names, letter
from memviz.text import Html, cut_middle, dark_html, distinct_labels, joined, tag
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.elements import button
from memviz.ui.shell.session import Opened, Session, link_name, timeline_key
from memviz.ui.shell.store import NamedRanks
from memviz.ui.shell.temporary_files import link_hours
from memviz.units import bytes_text, count_text

PAGE_STARTS = Html('<script>document.documentElement.dataset.mvBegins = "";</script>')
"""Not in saved pages."""
PAGE_READY = "() => window.dispatchEvent(new CustomEvent('memviz:known'))"
"""base.js hears it. Said too where the answer is an error."""


_GREYS = (
    *("#fafafa", "#f4f4f5", "#e4e4e7", "#d4d4d8", "#a1a1aa", "#71717a"),
    *("#52525b", "#3f3f46", "#27272a", "#18181b", "#0f0f11"),
)
_COLOURS = {
    "body_text_color": ("#18181b", "#f4f4f5"),
    "body_text_color_subdued": ("#52525b", "#b4b4bd"),
    "background_fill_primary": ("#ffffff", "#0f0f11"),
    "background_fill_secondary": ("#fafafa", "#151518"),
    "border_color_primary": ("#e4e4e7", "#2b2b30"),
    "block_background_fill": ("transparent", "transparent"),
    "checkbox_background_color_selected": ("#18181b", "#f4f4f5"),
    "button_primary_background_fill": ("#18181b", "#f4f4f5"),
    "button_primary_text_color": ("#ffffff", "#0f0f11"),
    "button_secondary_background_fill": ("#ffffff", "#1b1b1f"),
    "button_secondary_border_color": ("#e4e4e7", "#2b2b30"),
    "input_background_fill": ("#ffffff", "#1b1b1f"),
    "slider_color": ("#18181b", "#f4f4f5"),
}
"""Gradio's names, and the colours of light and dark pages."""


def theme() -> gr.themes.Base:
    ink = gr.themes.Color(*_GREYS, name="ink")
    base = gr.themes.Base(
        primary_hue=ink,
        secondary_hue=ink,
        neutral_hue=ink,
        radius_size="md",
        spacing_size="sm",
        text_size="sm",
        font=[gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700)), "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700)), "ui-monospace", "monospace"],
    )
    colours = {name: light for name, (light, _) in _COLOURS.items()}
    colours |= {f"{name}_dark": dark for name, (_, dark) in _COLOURS.items()}
    return base.set(
        **colours,
        color_accent="#18181b",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0px",
        input_border_width="1px",
        layout_gap="12px",
    )


_LONGEST_NAME, _BESIDE_A_BADGE = 18, 14
"""Characters that fit into the sidebar."""
_MANY, _MOST_SHOWN = 3, 6
_MOST_AHEAD = 300_000
"""Events of a trace whose timeline the browser may ask for before it is clicked."""
Find = Callable[[Opened | None], tuple[Trace, DeviceTrace] | None]

KEYS = (
    ("← →", "pan by a tenth"),
    ("Shift ← →", "one event back or forward"),
    ("+ −", "zoom"),
    ("W S", "zoom the height; also the wheel with Ctrl or Shift, or over the byte axis"),
    ("Shift ↑ ↓", "up or down a tenth of the height"),
    ("V", "fit the height to the pinned allocation"),
    ("0", "show all"),
    ("P", "go to the peak"),
    ("↑ ↓", "move through the allocations at this moment"),
    ("Enter", "pin or unpin the allocation"),
    ("F", "fit the view to the pinned allocation or the range"),
    ("[ ]", "set the start and end of a range"),
    ("Page Up, Page Down", "previous or next phase or mark"),
    ("T", "events or time"),
    ("Esc", "undo one thing: tooltip, pin, range, filter"),
    ("/", "find"),
    ("F2", "rename the focused trace in the list; also double-click its name"),
    ("Shift + drag", "select a range"),
    ("Ctrl + drag, or B and drag", "zoom into a box"),
    ("Alt + drag, or M and drag", "measure bytes, events and time with a ruler"),
    ("M, then arrows", "ruler by keys: ↑ ↓ go to the next edge, Enter restarts there"),
)


def brand_html() -> Html:
    boxes = ((1, 13, 16, "#3569bf"), (3, 7, 12, "#46b08a"), (6, 1, 6, "#d0b338"))
    bars = "".join(f'<rect x="{x}" y="{y}" width="{w}" height="5" rx="1" fill="{c}"/>' for x, y, w, c in boxes)
    mark = Html(f'<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">{bars}</svg>')
    return tag("div", mark, tag("b", "memviz"), class_="mv-brand")


def foot_html() -> Html:
    rows = [tag("tr", tag("th", keys, scope="row"), tag("td", action)) for keys, action in KEYS]
    title, close = tag("h2", "Keys, with the timeline in focus"), button("Close", None, None, data_mv_close=True)
    dialog = tag("dialog", title, tag("table", *rows), close, id="mv-keys", aria_label="Keys")
    keys = button(joined("Keys ", tag("kbd", "?")), None, None, data_mv_keys=True)
    return tag("div", button("Samples", "home", None), keys, dark_html(), dialog, class_="mv-foot")


_TABLES = {
    "explore": "every allocation",
    "compare": "every changed row",
    "ranks": "one row per rank",
    "run": "one row per variant",
    "what-if": "one row per replay",
}
_JSON = {"explore": "summary", "compare": "diff", "ranks": "ranks", "run": "run", "what-if": "replay"}
_SNAPSHOTS = {"explore": "without paths", "what-if": "the replay"}


def actions_html(session: Session) -> Html:
    """Return the Share menu of all tabs; address.js shows what the visible tab has.

    The first element tells the page's script which trace the address names, and by which name its timeline goes.
    """
    current = session.current if not session.home else None
    link, explored = (link_name(current), timeline_key(current)) if current is not None else (None, None)
    hours = link_hours()
    items = [
        tag("button", "Copy link", tag("small", data_mv_whom=True), type="button", data_mv_share=True),
        _share("Share link", "link", f"a copy on this server, for {_hours_text(hours)}") if hours else "",
        _share("One-file page", "page", "HTML, opens anywhere"),
        *(tag("button", f"Picture ({kind.upper()})", type="button", data_mv_picture=kind) for kind in ("png", "svg")),
        _share("Table (CSV)", "csv", _TABLES),
        _share("Data (JSON)", "json", {tab: f"as memviz {command} --json" for tab, command in _JSON.items()}),
        _share("Snapshot", "snapshot", _SNAPSHOTS, data_mv_tabs=" ".join(_SNAPSHOTS)),
    ]
    menu = tag("details", tag("summary", "Share"), tag("div", *items), class_="mv-menu", hidden=True)
    return tag("div", menu, class_="mv-actions", data_mv_link=link, data_mv_explored=explored)


def _share(words: str, kind: str, notes: str | Mapping[str, str], **data: str) -> Html:
    """`notes` are one for all tabs, or one for each."""
    by_tab = {None: notes} if isinstance(notes, str) else notes
    texts = [tag("small", text, data_mv_tabs=tab) for tab, text in by_tab.items()]
    return button(joined(words, *texts), "share", None, data_kind=kind, **data)


def _hours_text(hours: float) -> str:
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} h"


def kept_link_html(address: str, hours: float) -> Html:
    """Show the address of a page kept on this server, to copy or to delete."""
    end = f"A copy of this view. Anyone with access to this server sees it for {_hours_text(hours)}."
    field = tag("input", type="text", readonly=True, value=address, aria_label="Address of the copy")
    name = address.rpartition("/")[2]
    copy = button("Copy", None, None, data_mv_copy=address)
    buttons = joined(copy, button("Delete now", "unshare", None, data_name=name), button("Close", "close-link", None))
    return tag("div", tag("p", end), field, tag("p", buttons), class_="mv-kept-link", role="status")


def traces_html(session: Session, find: Find, table: NamedRanks | None = None) -> Html:
    if not session.opened and table is None:
        return tag("section", tag("p", "Only you can see what you open.", class_="mv-soft"), class_="mv-traces")
    pairs = [(opened, find(opened)) for opened in session.opened]
    peaks = [peak_bytes(pair[1]) for _, pair in pairs if pair is not None]
    # Two are compared in their own tab; of many, as of ranks, a glance says which is highest.
    highest = max(peaks) if len(peaks) >= _MANY else 0
    longest = _BESIDE_A_BADGE if len(session.compared) > 1 else _LONGEST_NAME
    # A name that the visitor gave is not cut, nor does it lengthen the others.
    short = iter(differing_names([opened.name for opened in session.opened if not opened.is_renamed]))
    names = distinct_labels([each.name if each.is_renamed else next(short) for each in session.opened], longest)
    labelled = zip(names, pairs, strict=True)
    rows = [_trace_row(name, opened, session, pair, highest=highest) for name, (opened, pair) in labelled]
    if table is not None:
        ranks = f"{count_text(len(table.job.ranks))} ranks, up to {bytes_text(table.job.highest.row.peak_bytes)}"
        label = tag("span", tag("b", cut_middle(table.name, _LONGEST_NAME)), tag("small", ranks))
        choose = button(label, "ranks", None, data_key=session.table, title=table.name)
        rows.insert(0, tag("div", choose, _close_button(session.table, table.name), class_="mv-trace"))
    many = len(rows)
    if many > _MOST_SHOWN:
        rest = (tag("summary", f"{many - _MOST_SHOWN} more"), *rows[_MOST_SHOWN:])
        is_chosen = any(opened.key == session.chosen for opened in session.opened[_MOST_SHOWN - many :])
        rows[_MOST_SHOWN:] = [tag("details", *rest, open=is_chosen, class_="mv-more-traces")]
    several = [tag("span", many), button("Close all", "close-all", "mv-close-all")] if many > 1 else []
    return tag("section", tag("h2", "Open traces ", *several), *rows, class_="mv-traces")


def _close_button(key: str, name: str) -> Html:
    return button("×", "close", "mv-x", data_key=key, aria_label=f"Close {name}")


def _trace_row(
    name: str, opened: Opened, session: Session, current: tuple[Trace, DeviceTrace] | None, *, highest: int
) -> Html:
    """`name` is as much of the trace's own as there is room for."""
    chosen = opened.key == session.chosen and not session.home
    picture, bar, ahead = tag("span", class_="mv-thumb"), Html(""), None
    facts = "closed to free memory; open it again"
    if current is not None:
        trace, device = current
        look = "mv-thumb" if trace.about.origin == "measured" else "mv-thumb mv-dashed"
        picture = tag("img", src=thumbnail_address(trace, device), alt="", class_=look, width=46, height=26)
        peak = peak_bytes(device)
        facts = f"{bytes_text(peak)} · {trace.about.origin}"
        if highest:
            facts = bytes_text(peak)
            bar = tag("i", class_="mv-peakline", style=f"width:{100 * peak / highest:.1f}%")
            ahead = timeline_key(opened) if len(device.events) <= _MOST_AHEAD else None
    # A lone trace is compared with nothing, so it is no A.
    is_compared = len(session.compared) > 1 and opened.key in session.compared
    badge = letter(session.compared.index(opened.key)) if is_compared else ""
    label = tag("span", tag("b", name), tag("small", facts), bar)
    shown = {"title": opened.name, "aria_current": "true" if chosen else None}
    devices: Html | str = ""
    if len(opened.devices) > 1:
        buttons = []
        for device_name in opened.devices[:64]:
            pressed = "true" if device_name == opened.device else "false"
            data = {"data_key": opened.key, "data_device": device_name}
            buttons.append(button(device_name, "device", None, **data, aria_pressed=pressed))
        group = {"role": "group", "aria_label": f"Devices of {opened.name}"}
        devices = tag("div", "device ", *buttons, class_="mv-devices", **group)
    return tag(
        "div",
        button(joined(picture, label), "choose", None, data_key=opened.key, data_mv_timeline=ahead, **shown),
        tag("i", badge, class_="mv-badge", title=f"{badge} in Compare") if badge else "",
        _close_button(opened.key, opened.name),
        devices,
        class_="mv-trace mv-chosen" if chosen else "mv-trace",
    )


def refused_html(session: Session) -> Html:
    if not session.refused:
        return Html("")
    rows = [
        tag("p", tag("b", f"{refusal.name} was not opened. "), refusal.reason, data_refused=refusal.turn)
        for refusal in session.refused
    ]
    if others := len(session.opened):
        untouched = f"Your {others} open trace{'s are' if others > 1 else ' is'} untouched."
        rows.append(tag("p", untouched, class_="mv-soft"))
    return tag("div", *rows, button("Dismiss", "dismiss", None), class_="mv-band", role="alert")


def missing_trace_html() -> Html:
    text = "This link's trace is not open in your session. Ask the sender for the file."
    return tag("div", tag("p", text), class_="mv-band", role="status")
