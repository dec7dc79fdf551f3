"""Figures for notebooks and for what people save: a result of `memviz.analysis` becomes a plotly figure.

The only part that imports plotly, when a figure is first asked for; it decides nothing about numbers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memviz.figures.fragmentation import plot_fragmentation, plot_fragmentation_at
    from memviz.figures.icicle import plot_icicle
    from memviz.figures.peak import plot_peak
    from memviz.figures.replay import plot_replay
    from memviz.figures.segments import plot_segments
    from memviz.figures.timeline import plot_timeline
    from memviz.figures.waterfall import plot_waterfall

__all__ = [
    "plot_fragmentation",
    "plot_fragmentation_at",
    "plot_icicle",
    "plot_peak",
    "plot_replay",
    "plot_segments",
    "plot_timeline",
    "plot_waterfall",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = name.removeprefix("plot_").removesuffix("_at")
    return getattr(import_module(f"{__name__}.{module}"), name)
