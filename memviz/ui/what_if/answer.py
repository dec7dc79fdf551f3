"""What the What if tab answers: what is replayed for a question, and every part of the page that shows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
import numpy as np

from memviz.allocator.recorded_settings import settings_of
from memviz.allocator.replayer import Progress, Replayed, part_of, rest_of
from memviz.allocator.what_if import WhatIf
from memviz.headlines.what_if import what_if
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.ui.components.memory_timeline.linked_timelines import LinkedTrace, linked_values
from memviz.ui.components.segment_map.segment_view import map_value
from memviz.ui.shell.context import Context
from memviz.ui.shell.session import MOST_OPEN, Session
from memviz.ui.what_if.downloads import page_file, snapshot_file, with_replay
from memviz.ui.what_if.kept_replays import Replays, Terms
from memviz.ui.what_if.question import Asked, Understood, understood
from memviz.ui.what_if.reserved_plot import event_in, moment_that_matters, plot_label, plot_value
from memviz.ui.what_if.settings_form import Had
from memviz.ui.what_if.verdict import (
    Found,
    blocks_html,
    caption,
    keep_html,
    save_html,
    search_html,
    segments_head_html,
    what_if_html,
)

_LONGEST_UNASKED = 200_000
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
    left: tuple[tuple[str, Asked], ...] = ()
    """What was asked of other traces, by key, for whoever comes back to them."""

    def turned_to(self, key: str) -> tuple[Shown, bool]:
        """And whether nothing was asked of that trace yet."""
        left = dict(self.left)
        if self.key:
            left[self.key] = self.asked
        asked = left.pop(key, None)
        kept = tuple(left.items())[-MOST_OPEN:]
        return Shown(key, asked or Asked(), self.turn + 1, self.with_blocks, kept), asked is None


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
    "keep",
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
    "keep": "",
    "recorded": {},
    "replayed": {},
}


def values(**given: Any) -> list[Any]:
    """One for each of `PARTS`; what is not given stays as it is."""
    return [given.get(name, gr.skip()) for name in PARTS]


def skipped() -> list[Any]:
    return [gr.skip()] * len(PARTS)


def terms_of(meant: Understood) -> Terms:
    return Terms(meant.card, meant.release, meant.overhead_bytes)


class Answers:
    def __init__(self, context: Context, replays: Replays) -> None:
        self.context = context
        self.replays = replays

    def find(self, key: str, meant: Understood, searches: bool, progress: Progress) -> tuple[WhatIf, Any]:
        assert meant.settings is not None
        parts = 1 + _SEARCH_PARTS if searches else 1
        asked = self.replays.what_if(key, meant.settings, terms_of(meant), part_of(progress, 0, parts))
        if searches:
            return asked, self.replays.search(key, meant.settings, terms_of(meant), rest_of(progress, 1, parts))
        return asked, self.replays.known_search(key, terms_of(meant))

    def drawn(self, shown: Shown, found: Found) -> dict[str, Any]:
        """By the names of `PARTS`."""
        if not found.has_history:
            return {**EMPTY, "verdict": what_if_html(found)}
        device, asked = found.device, found.what_if
        label = plot_label(asked, str(what_if(asked, found.searched)))
        return {
            "waiting": "",
            "verdict": what_if_html(found),
            "plot": plot_value(device, asked, at=found.at, label=label),
            "head": segments_head_html(found.at, matters=True),
            "maps": self._maps(shown.key, found),
            "table": search_html(found, found.searched),
            "blocks": blocks_html(shown.with_blocks),
            "save": save_html(),
            "keep": keep_html(),
            **self._timelines(shown, asked, device),
        }

    def had(self, key: str) -> Had:
        """What the process could have, where the recording shows it: it ran out, or memory was short."""
        pair = self.context.find(key)
        if pair is None or not _shows_a_limit(pair[1]):
            return Had(None)
        memory = self.replays.begun(key).source.freed.memory
        return Had(None) if memory is None else Had(memory.least, is_exact=memory.least == memory.most)

    def answered(self, shown: Shown) -> tuple[DeviceTrace, WhatIf] | None:
        """What is on the screen; None where the trace was closed meanwhile, or a field was refused."""
        pair, meant = self.context.find(shown.key), understood(shown.asked)
        if pair is None or meant.settings is None:
            return None
        return pair[1], self.replays.what_if(shown.key, meant.settings, terms_of(meant))

    def file(self, shown: Shown, kind: str) -> str | None:
        answered = self.answered(shown)
        if answered is None:
            return None
        if kind == "snapshot":
            return snapshot_file(answered[1].replayed)
        return page_file(*answered, self.replays.known_search(shown.key, terms_of(understood(shown.asked))))

    def kept(self, shown: Shown, session: Session, *, compared: bool) -> Session:
        """With the replay as one more open trace."""
        answered = self.answered(shown)
        if answered is None:
            return session
        recording = shown.key.partition("/")[0]
        return with_replay(self.context.store, session, recording, answered[1].replayed, compared=compared)

    def moved(self, shown: Shown, at: str) -> list[Any]:
        """The maps at an event that was chosen on the plot."""
        answered = self.answered(shown)
        if answered is None or not at.lstrip("-").isdigit():
            return [gr.skip(), gr.skip()]
        device, asked = answered
        event_number = min(max(int(at), -1), len(device.events) - 1)
        found = Found(device, asked, None, event_number)
        matters = event_number == moment_that_matters(device, asked)
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
        return {"caption": caption(replayed, is_recording=is_recording), "map": map_value(device, name, at=at)}

    def _timelines(self, shown: Shown, asked: WhatIf, device: DeviceTrace) -> dict[str, Any]:
        pair = self.context.find(shown.key)
        if not shown.with_blocks or pair is None or asked.replayed is asked.recorded:
            return {"recorded": {}, "replayed": {}}
        ours = asked.replayed
        key, label = self.replays.key_of(ours), ours.trace.about.label
        recorded, after = linked_values(
            (
                LinkedTrace("A", shown.key, "as recorded", *pair),
                LinkedTrace("B", key, label, ours.trace, ours.trace.devices[0]),
            )
        )
        return {"recorded": recorded, "replayed": after}


def _shows_a_limit(device: DeviceTrace) -> bool:
    """Of a long recording it would take a replay that nobody asked for."""
    gives_back = np.isin(device.events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP, Action.OOM))
    return device.kind == "gpu" and len(device.events) <= _LONGEST_UNASKED and bool(gives_back.any())


def first_question(trace: Trace, device: DeviceTrace, had: Had) -> Asked:
    """Segments that expand, in the memory that the process had where that is known."""
    recorded, _ = settings_of(trace, device)
    memory = had.memory
    asked = Asked(memory=f"{memory >> 20:,} MiB" if memory else "")
    return asked.with_settings(replace(recorded, expandable_segments=True))
