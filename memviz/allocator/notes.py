"""What a reader of a replay must know about it, in words that the views show."""

from __future__ import annotations

from memviz.allocator.replayed import Mismatch
from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import StartLayout
from memviz.trace.model import Note
from memviz.units import bytes_text

_INFERRED = (
    "The file does not say that segments expand, but its own do, so expandable_segments:True is taken as recorded."
)
_REUSE = (
    "graph_capture_record_stream_reuse lets a capture hand out memory again before it ends; the replay waits for the "
    "end, so a graph may need less than this."
)
_BY_CLASS = (
    "expandable_segments_reserve_by_class changes how much address space segments reserve; the replay leaves it out."
)


def of_settings(settings: Settings, *, are_inferred: bool) -> list[Note]:
    """What is inferred, and which settings in force the model does not follow."""
    notes = [Note("settings_inferred", _INFERRED)] if are_inferred else []
    if settings.graph_capture_record_stream_reuse:
        notes.append(Note("settings_not_modelled", _REUSE, level="warning"))
    if any(key == "expandable_segments_reserve_by_class" for key, _ in settings.others):
        notes.append(Note("settings_not_modelled", _BY_CLASS, level="warning"))
    return notes


def of_start(layout: StartLayout, *, afresh: bool) -> list[Note]:
    notes = []
    if layout.segments:
        how = (
            "was put into empty memory in order of address, as these settings would have placed it, "
            "which is kinder than the truth."
            if afresh
            else "was rebuilt from the final state and the frees, with the cache around it."
        )
        live = _counted(len(layout.blocks), "block")
        notes.append(Note("start_rebuilt", f"The history starts late. What was live before it ({live}) {how}"))
    waiting = sum(block.is_waiting for block in layout.blocks)
    if waiting:
        blocks = _counted(waiting, "block")
        text = (
            f"{bytes_text(layout.waiting_bytes)} of what was live before the first event ({blocks}) were freed already "
            "and waited for another stream: they are live, and no longer counted as allocated."
        )
        notes.append(Note("start_waits", text))
    if layout.unplaced:
        left_out = _counted(layout.unplaced, "block")
        text = f"What was live before the first event and lies in no segment ({left_out}) was left out."
        notes.append(Note("start_unplaced", text, level="warning"))
    return notes


def of_streams(waited: int) -> list[Note]:
    if not waited:
        return []
    frees = _counted(waited, "free")
    text = (
        f"When another stream would have been done is not in the file: {frees} that waited for one complete where "
        "they did in the recording, or earlier where memory runs out."
    )
    return [Note("streams_as_recorded", text)]


def of_mismatch(first: Mismatch | None, mismatches: int) -> list[Note]:
    if first is None:
        return []
    differ = _counted(mismatches, "address", "addresses")
    text = f"The replay is exact up to event {first.event:,}; off by then or later: {differ}. {first.why}"
    return [Note("replay_differs", text, level="warning")]


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
