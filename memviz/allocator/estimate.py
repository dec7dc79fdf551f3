"""What changed requests, or other settings, would come to: an estimate from a trace, against its own requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memviz.allocator.replay import source_of
from memviz.allocator.replayed import Figures, Replayed
from memviz.allocator.replayer import Source
from memviz.allocator.settings import Settings
from memviz.allocator.what_if import figures_on, replay_on
from memviz.trace.model import ESTIMATE_CODE, Note, Trace

ESTIMATE = "an estimate from the trace"


@dataclass(frozen=True)
class ReplayedEstimate:
    """Both in memory without end, under the recorded settings but for what was changed."""

    before: Figures
    after: Figures

    @property
    def live_change(self) -> int:
        """Of the peak of what the program holds."""
        return self.after.peak_requested_bytes - self.before.peak_requested_bytes

    @property
    def reserved_change(self) -> int:
        """Of the peak of what is reserved."""
        return self.after.peak_reserved_bytes - self.before.peak_reserved_bytes


def unchanged(source: Source) -> Figures:
    """What every estimate of this source is compared with."""
    return figures_on(source, afresh=_terms(source, expandable=False)[1])


def estimate(
    source: Source, changed: Trace | None = None, *, expandable: bool = False, before: Figures | None = None
) -> ReplayedEstimate:
    """`changed` are requests of the same device; without them those of the source are taken. `before` is what
    `unchanged` says, for whoever has it already."""
    settings, afresh = _terms(source, expandable)
    after = figures_on(_source(source, changed), settings, afresh=afresh)
    return ReplayedEstimate(unchanged(source) if before is None else before, after)


def estimated_trace(
    source: Source, changed: Trace | None, name: str, assumptions: tuple[str, ...], *, expandable: bool = False
) -> Trace:
    """The history that comes of it, which says of itself what it is."""
    settings, afresh = _terms(source, expandable)
    return _named(replay_on(_source(source, changed), settings, afresh=afresh), name, assumptions)


def _terms(source: Source, expandable: bool) -> tuple[Settings | None, bool]:
    """What was there before the first event lies anew on both sides: what had been reserved for it says nothing of
    what would have been."""
    settings = replace(source.recorded, expandable_segments=True) if expandable else None
    return settings, bool(source.layout.segments)


def _source(source: Source, changed: Trace | None) -> Source:
    return source if changed is None else source_of(changed)


def _named(replayed: Replayed, name: str, assumptions: tuple[str, ...]) -> Trace:
    about = replayed.trace.about
    text = f"It is {ESTIMATE}, not a recording. It assumes: {' '.join(assumptions)}"
    note = Note(ESTIMATE_CODE, text, level="warning", device=replayed.trace.devices[0].name)
    return replace(replayed.trace, about=replace(about, on=f"{name}, {ESTIMATE}"), notes=(note, *replayed.trace.notes))
