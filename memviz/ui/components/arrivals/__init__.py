"""Files on their way here, as rows beside the open traces. memviz/ui/upload/routes.py answers what worker.js asks."""

from __future__ import annotations

from pathlib import Path

from memviz.ui.components.component import Component
from memviz.ui.components.scripts import bundle

_HERE = Path(__file__).parent


def worker() -> str:
    """What a worker runs stands in the page as text, and needs no address."""
    return f'<script type="text/plain" id="memviz-worker">{bundle(_HERE / "worker.js")}</script>'


class Arrivals(Component):
    """Its `click` carries `stored`, a key of the store whose trace is open now; or `refused`, a name, and `reason`."""

    script = _HERE / "arrivals.js"
    looks = _HERE / "arrivals.css"
    tells = ("click",)
