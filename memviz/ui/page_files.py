"""The page's own style sheets and scripts, put together once."""

from __future__ import annotations

from pathlib import Path

from memviz.ui.components.arrivals import Arrivals, worker
from memviz.ui.components.component import Component
from memviz.ui.components.event_list import EventList
from memviz.ui.components.find_field import FindField
from memviz.ui.components.lit_panel import LitPanel
from memviz.ui.components.memory_timeline import MemoryTimeline
from memviz.ui.components.overlay import Overlay
from memviz.ui.components.panel import Panel
from memviz.ui.components.plain_form import PlainForm
from memviz.ui.components.rank_map import RankMap
from memviz.ui.components.reserved_plot import ReservedPlot
from memviz.ui.components.scripts import bundle
from memviz.ui.components.segment_map import SegmentMap
from memviz.ui.components.segment_pair import SegmentPair
from memviz.ui.components.turn import Turn
from memviz.ui.components.waterfall import WaterfallTable
from memviz.ui.html.markup import Html
from memviz.ui.shell.beginning import BEGINS

_HERE = Path(__file__).parent
STYLES = (
    "shell/page_frame.css",
    "explore/explore.css",
    "compare/compare.css",
    "ranks/ranks.css",
    "what_if/what_if.css",
    "run/run.css",
    "run/fit.css",
)
"""In this order; the tokens that all others read are in the first."""
COMPONENTS: tuple[type[Component], ...] = (
    Arrivals,
    MemoryTimeline,
    SegmentMap,
    EventList,
    ReservedPlot,
    SegmentPair,
    Overlay,
    WaterfallTable,
    PlainForm,
    Panel,
    LitPanel,
    FindField,
    RankMap,
    Turn,
)
"""All with a script, which the page loads once; their style sheets come in this order."""


def style() -> str:
    areas = [(_HERE / name).read_text(encoding="utf-8") for name in STYLES]
    return "\n".join((*areas, *(component.style() for component in COMPONENTS)))


def beginning() -> Html:
    """What stands in the page itself, before the script."""
    return Html(BEGINS + worker())


def script() -> str:
    """The page's own parts first, then the components'."""
    return bundle(_HERE / "shell" / "page.js", *(component.script for component in COMPONENTS))
