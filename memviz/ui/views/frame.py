"""The frame around every tab: brand, open traces, what was refused, and the page before anything is open."""

from __future__ import annotations

from collections.abc import Callable

from memviz.analysis.timeline import timeline
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.opening import SAMPLE_LIST
from memviz.ui.session import Opened, Session
from memviz.ui.views.markup import Html, tag
from memviz.units import bytes_text

Find = Callable[[Opened | None], tuple[Trace, DeviceTrace] | None]

RECORD = """# before the model is built
torch.cuda.memory._record_memory_history()
model = build(); train(model, steps=3)
torch.cuda.memory._dump_snapshot("run.pickle")"""


def brand_html() -> Html:
    bars = "".join(
        f'<rect x="{x}" y="{y}" width="{w}" height="5" rx="1" fill="{c}"/>'
        for x, y, w, c in ((1, 13, 16, "#3569bf"), (3, 7, 12, "#46b08a"), (6, 1, 6, "#d0b338"))
    )
    return tag(
        "div",
        Html(f'<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">{bars}</svg>'),
        tag("b", "memviz"),
        class_="mv-brand",
    )


def traces_html(session: Session, find: Find) -> Html:
    if not session.opened:
        words = "None yet. What you open is listed here, and only you see it."
        return tag("section", tag("h2", "Open traces"), tag("p", words, class_="mv-soft"), class_="mv-traces")
    rows = [_trace_row(each, session, find(each)) for each in session.opened]
    return tag("section", tag("h2", "Open traces ", tag("span", len(session.opened))), *rows, class_="mv-traces")


def _trace_row(opened: Opened, session: Session, found: tuple[Trace, DeviceTrace] | None) -> Html:
    if found is None:
        facts = "closed to make room; open it again"
    else:
        trace, device = found
        facts = f"{bytes_text(timeline(device).peak_bytes)} · {trace.about.label}"
    chosen = opened.key == session.chosen
    return tag(
        "div",
        tag(
            "button",
            tag("b", opened.name),
            tag("span", facts),
            type="button",
            data_act="choose",
            data_key=opened.key,
            aria_current="true" if chosen else None,
        ),
        tag(
            "button",
            "×",
            type="button",
            data_act="close",
            data_key=opened.key,
            aria_label=f"Close {opened.name}",
            class_="mv-x",
        ),
        class_="mv-trace mv-chosen" if chosen else "mv-trace",
    )


def refused_html(session: Session) -> Html:
    if not session.refused:
        return Html("")
    others = len(session.opened)
    safe = f" Your {others} open trace{'s are' if others > 1 else ' is'} untouched." if others else ""
    bands = [
        tag("p", tag("b", f"{each.name} was not opened. "), each.reason, f" Nothing in the file was run.{safe}")
        for each in session.refused
    ]
    return tag(
        "div", *bands, tag("button", "Dismiss", type="button", data_act="dismiss"), class_="mv-band", role="alert"
    )


def empty_html() -> Html:
    samples = [
        tag(
            "button",
            tag("b", each.title),
            tag("span", each.text),
            tag("small", each.tab.capitalize()),
            type="button",
            data_act="sample",
            data_sample=each.name,
            class_="mv-sample",
        )
        for each in SAMPLE_LIST
    ]
    return tag(
        "div",
        tag("h1", "See what fills your GPU."),
        tag(
            "p",
            "Every allocation over time, what the peak is made of, and what changed between two runs.",
            class_="mv-lead",
        ),
        tag(
            "div",
            tag(
                "section",
                tag("h3", "No snapshot yet? Record one"),
                tag("pre", RECORD),
                tag("p", "Reading a file never runs code from it. No GPU needed here.", class_="mv-soft"),
            ),
            class_="mv-columns",
        ),
        tag("h3", "Or start with a sample"),
        tag("div", *samples, class_="mv-samples"),
        class_="mv-empty",
    )
