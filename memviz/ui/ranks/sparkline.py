"""A rank's live bytes over its steps, as small as a word; another's beside it on the same scale."""

from __future__ import annotations

from memviz.ranks.row import Curve
from memviz.ui.html.markup import Html, tag

_WIDE, _HIGH = 132, 26
_MOST_POINTS = 66


def sparkline(curve: Curve, highest: int, other: Curve | None = None) -> Html:
    """`other` is drawn behind it, as an area."""
    behind = tag("path", d=f"{_line(other or curve, highest)}V{_HIGH}H0Z", class_="mv-spark-area")
    front = tag("path", d=_line(curve, highest), class_="mv-spark-line")
    return tag(
        "svg",
        behind,
        front,
        width=_WIDE,
        height=_HIGH,
        viewBox=f"0 0 {_WIDE} {_HIGH}",
        class_="mv-spark",
        aria_hidden="true",
    )


def _line(curve: Curve, highest: int) -> str:
    """Of what comes together in a point, the highest."""
    count = min(_MOST_POINTS, len(curve.live))
    bounds = [len(curve.live) * i // count for i in range(count + 1)]
    heights = [max(curve.live[begin:end]) for begin, end in zip(bounds, bounds[1:], strict=False)]
    points = [
        f"{_WIDE * i / max(count - 1, 1):.1f} {_HIGH - (_HIGH - 1) * live / max(highest, 1):.1f}"
        for i, live in enumerate(heights)
    ]
    return f"M{'L'.join(points)}"
