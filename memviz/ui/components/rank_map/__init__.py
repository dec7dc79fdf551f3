"""Every rank over the same steps, as one picture; README.md beside this file describes it."""

from __future__ import annotations

from pathlib import Path

from memviz.ui.components.component import Component

_HERE = Path(__file__).parent


class RankMap(Component):
    """`value` is what `memviz.ui.payloads.rank_map_value` makes; `select` tells the rank that was chosen."""

    script = _HERE / "rank_map.js"
    looks = _HERE / "rank_map.css"
    tells = ("select",)
