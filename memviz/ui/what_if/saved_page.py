"""A what-if as one self-contained page, to keep or to send: the tab's own views."""

from __future__ import annotations

from typing import Any

from memviz.allocator.replay_result import exactness
from memviz.allocator.replayer import WhatIf
from memviz.allocator.search import Search
from memviz.results.replay_headline import replay_headline
from memviz.text import cut, tag
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.payloads.segment_view import map_value, moment_in_replay
from memviz.ui.saved.document import Document, SavedLinks, html_text
from memviz.ui.what_if.plots import map_sides, moment_that_matters, plot_label, plot_value
from memviz.ui.what_if.verdict import Answer, search_html, segments_head_html, what_if_html


def what_if_page(trace: Trace, device: DeviceTrace, outcome: WhatIf, searched: Search | None = None) -> str:
    answer = Answer(device, outcome, searched, moment_that_matters(device, outcome))
    headline = replay_headline(outcome, searched)
    data: dict[str, Any] = {}
    if answer.has_history:
        sides = list(zip(("left", "right"), map_sides(answer), strict=False))
        data = {
            "plot": plot_value(device, outcome, at=answer.at, label=plot_label(outcome, str(headline))),
            "shown_maps": [
                {"caption": side.caption, "map": map_value(side.device, name, at=side.at)} for name, side in sides
            ],
            "maps": {
                name: moment_in_replay(
                    trace if side.is_recording else side.replayed.trace, side.device, {"at": side.at, "table": True}
                )
                for name, side in sides
            },
        }
    about = outcome.replayed.trace.about
    text = f"{cut(about.source)}: {cut(about.label)}, device {device.name}; {exactness(outcome.recorded)}"
    with SavedLinks():
        parts = [tag("p", text, class_="mv-soft mv-of-file"), what_if_html(answer)]
        if answer.has_history:
            parts += [tag("div", id="what-if-plot"), segments_head_html(answer.at, matters=True)]
            parts.append(tag("div", id="what-if-maps"))
        if searched is not None:
            parts.append(search_html(answer, searched))
        body = tag("div", *parts, class_="mv-what-if-saved")
    return html_text(Document(str(headline), body, data=data))
