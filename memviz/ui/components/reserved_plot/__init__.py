"""Live bytes, and what was reserved for them as recorded and as replayed, as one picture drawn in the browser."""

from __future__ import annotations

from pathlib import Path

from memviz.ui.components.component import Component

_HERE = Path(__file__).parent


class ReservedPlot(Component):
    """`value` is what `what_if.reserved_plot.plot_value` makes; `select` carries the event that was chosen."""

    script = _HERE / "reserved_plot.js"
    looks = _HERE / "reserved_plot.css"
    tells = ("select",)
