"""Figures for notebooks and for saved files.

`timeline`, `peak`, `waterfall`, `icicle` and `segments` plot what `memviz.open` returns and its results; each
`plot_<word>` plots a result of `memviz.analysis`. Only this package imports plotly, with the first figure, and it
computes no numbers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memviz.errors import library_needed

if TYPE_CHECKING:
    from memviz.figures.drawings import icicle, peak, segments, timeline, waterfall
    from memviz.figures.plots.icicle import plot_icicle
    from memviz.figures.plots.peak import plot_peak, plot_waterfall
    from memviz.figures.plots.segments import plot_fragmentation, plot_fragmentation_at, plot_segments
    from memviz.figures.plots.timeline import plot_replay, plot_timeline

__all__ = [
    "icicle",
    "peak",
    "plot_fragmentation",
    "plot_fragmentation_at",
    "plot_icicle",
    "plot_peak",
    "plot_replay",
    "plot_segments",
    "plot_timeline",
    "plot_waterfall",
    "segments",
    "timeline",
    "waterfall",
]

_PLOTS = {
    "plot_fragmentation": "segments",
    "plot_fragmentation_at": "segments",
    "plot_icicle": "icicle",
    "plot_peak": "peak",
    "plot_replay": "timeline",
    "plot_segments": "segments",
    "plot_timeline": "timeline",
    "plot_waterfall": "peak",
}
"""The module in `plots` of each figure of a result."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = f"plots.{_PLOTS[name]}" if name in _PLOTS else "drawings"
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        raise (library_needed(error) or error) from None
