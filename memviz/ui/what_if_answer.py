"""What the What if tab answers: what is replayed for a question, and every part of the page that shows it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.allocator.recorded_settings import settings_of
from memviz.allocator.replayer import Progress, Replayed, part_of
from memviz.allocator.verdict import verdict
from memviz.allocator.what_if import WhatIf
from memviz.analysis.timeline import timeline
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.ui.asked import Asked, Understood, understood
from memviz.ui.compared import CompareView, Side
from memviz.ui.context import Context
from memviz.ui.replays import Replays
from memviz.ui.session import Opened
from memviz.ui.tabs.segments import map_value
from memviz.ui.views.linked_timelines import linked_values
from memviz.ui.views.reserved_plot import event_in, moment_that_matters, plot_label, plot_value
from memviz.ui.views.settings_form import Had
from memviz.ui.views.what_if import (
    Found,
    blocks_html,
    caption,
    save_html,
    search_html,
    segments_head_html,
    what_if_html,
)
from memviz.ui.what_if_page import what_if_page

_SEARCH_PARTS = 6
"""How many times as long as an answer a search takes, about."""


@dataclass(frozen=True)
class Shown:
    """What a visitor sees on this tab. Plain and frozen: every change is a new one."""

    key: str = ""
    asked: Asked = Asked()
    turn: int = 0
    """Grows where the page itself fills the form in."""
    with_blocks: bool = False


PARTS = (
    "shown",
    "waiting",
    "verdict",
    "form",
    "plot",
    "head",
    "maps",
    "table",
    "blocks",
    "save",
    "recorded",
    "replayed",
)
EMPTY: dict[str, Any] = {
    "waiting": "",
    "verdict": "",
    "plot": {},
    "head": "",
    "maps": {},
    "table": "",
    "blocks": "",
    "save": "",
    "recorded": {},
    "replayed": {},
}


def values(**given: Any) -> list[Any]:
    """One for each of `PARTS`; what is not given stays as it is."""
    return [given.get(name, gr.skip()) for name in PARTS]


def skipped() -> list[Any]:
    return [gr.skip()] * len(PARTS)


class Answers:
    def __init__(self, context: Context, replays: Replays) -> None:
        self.context = context
        self.replays = replays

    def find(self, key: str, meant: Understood, searches: bool, progress: Progress) -> tuple[WhatIf, Any]:
        assert meant.settings is not None
        parts = 1 + _SEARCH_PARTS if searches else 1
        asked = self.replays.what_if(key, meant.settings, meant.card, part_of(progress, 0, parts))
        if searches:

            def rest(done: int, total: int) -> None:
                progress(total + _SEARCH_PARTS * done, parts * total)

            return asked, self.replays.search(key, meant.settings, (meant.card, meant.release), rest)
        return asked, self.replays.known_search(key, (meant.card, meant.release))

    def drawn(self, shown: Shown, found: Found) -> dict[str, Any]:
        """By the names of `PARTS`."""
        if not found.has_history:
            return {**EMPTY, "verdict": what_if_html(found)}
        device, asked = found.device, found.what_if
        label = plot_label(asked, " ".join(verdict(asked, found.searched)))
        return {
            "waiting": "",
            "verdict": what_if_html(found),
            "plot": plot_value(device, asked, at=found.at, label=label),
            "head": segments_head_html(found.at, matters=True),
            "maps": self._maps(shown.key, found),
            "table": search_html(found, found.searched),
            "blocks": blocks_html(shown.with_blocks),
            "save": save_html(),
            **self._timelines(shown, asked, device),
        }

    def page(self, shown: Shown) -> str | None:
        """The file of what is shown, under a name that nobody can guess; the page's cache cleans it away."""
        pair, meant = self.context.find(shown.key), understood(shown.asked)
        if pair is None or meant.settings is None:
            return None
        asked = self.replays.what_if(shown.key, meant.settings, meant.card)
        searched = self.replays.known_search(shown.key, (meant.card, meant.release))
        path = Path(tempfile.mkdtemp(prefix="memviz-")) / "what-if.html"
        path.write_text(what_if_page(pair[1], asked, searched), encoding="utf-8", errors="replace")
        return str(path)

    def moved(self, shown: Shown, at: str) -> list[Any]:
        """The maps at an event that was chosen on the plot."""
        pair, meant = self.context.find(shown.key), understood(shown.asked)
        if pair is None or meant.settings is None or not at.lstrip("-").isdigit():
            return [gr.skip(), gr.skip()]
        asked = self.replays.what_if(shown.key, meant.settings, meant.card)
        event_number = min(max(int(at), -1), len(pair[1].events) - 1)
        found = Found(pair[1], asked, None, event_number)
        matters = event_number == moment_that_matters(pair[1], asked)
        return [segments_head_html(event_number, matters=matters), self._maps(shown.key, found)]

    def _maps(self, key: str, found: Found) -> dict[str, Any]:
        """Of what ran out, or was recorded, and of what would have been. Behind its end a replay shows nothing."""
        asked = found.what_if
        ran_out = asked.base.oom is not None and found.at <= asked.base.oom.event
        left, ours = asked.base if ran_out else asked.recorded, asked.replayed
        has_more = ours is not left and (ours.oom is None or found.at <= ours.oom.event)
        sides = [left, ours] if has_more else [left]
        return {"maps": [self._map(key, each, found) for each in sides]}

    def _map(self, key: str, replayed: Replayed, found: Found) -> dict[str, Any]:
        is_recording = replayed is found.what_if.recorded
        device = found.device if is_recording else replayed.trace.devices[0]
        at = found.at if is_recording else event_in(replayed, found.at)
        name = key if is_recording else self.replays.key_of(replayed)
        return {"caption": caption(replayed, is_recording=is_recording), "map": map_value(device, name, {"at": at})}

    def _timelines(self, shown: Shown, asked: WhatIf, device: DeviceTrace) -> dict[str, Any]:
        pair = self.context.find(shown.key)
        if not shown.with_blocks or pair is None or asked.replayed is asked.recorded:
            return {"recorded": {}, "replayed": {}}
        ours = asked.replayed
        name = self.replays.key_of(ours).partition("/")[0]
        trace, replayed = ours.trace, ours.trace.devices[0]
        key = shown.key.partition("/")[0]
        sides = (
            Side("A", Opened(key, "as recorded", device.name, (device.name,)), *pair),
            Side("B", Opened(name, trace.about.label, replayed.name, (replayed.name,)), trace, replayed),
        )
        recorded, after = linked_values(sides, CompareView())
        return {"recorded": recorded, "replayed": after}


def first_question(trace: Trace, device: DeviceTrace) -> Asked:
    """Segments that expand, in the memory that the process had where that is known."""
    recorded, _ = settings_of(trace, device)
    memory = had(device).memory
    asked = Asked(memory=f"{memory >> 20:,} MiB" if memory else "")
    return asked.with_settings(replace(recorded, expandable_segments=True))


def had(device: DeviceTrace) -> Had:
    """What was reserved when it first ran out, and what the driver called free then."""
    failed = (device.events.action == Action.OOM).nonzero()[0]
    if not len(failed):
        return Had(None)
    event = int(failed[0])
    return Had(int(timeline(device).reserved[event + 1]) + int(device.events.address[event]))
