"""Two segment maps beside each other: the same length in bytes is the same length in both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memviz.errors import UsageError
from memviz.ui.components.component import Component, Find, Request, served
from memviz.ui.payloads.segment_view import moment_in_replay

_HERE = Path(__file__).parent


class SegmentPair(Component):
    """`value`: `maps`, one or two of {caption, map}; `map` is what a segment map is given."""

    script = _HERE / "segment_pair.js"
    looks = _HERE / "segment_pair.css"

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(server_functions=[pair_server(find)], **options)


def pair_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def segment_map(request: Request) -> dict[str, Any]:
        """As the map's own, of a replay."""
        pair = find(str(request.get("key", "")))
        if pair is None:
            raise UsageError("This replay is gone. Ask again.")
        return moment_in_replay(*pair, request)

    return segment_map
