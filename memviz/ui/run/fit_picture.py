"""Ways as points, peak against cost: the front, the card's line, and each point a button."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

from memviz.headlines.fit import cost_unit, cost_words, fit_cell, front, rank, work_text
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut
from memviz.units import bytes_text, duration_text

_ROOM = 1.06
_FEW_TICKS = 4
_GIB = 1 << 30
_KEEPS = {"outputs": "keeps outputs", "training": "trains otherwise", "nothing": "changes outputs"}

Way = Mapping[str, Any]


@dataclass(frozen=True)
class _Scale:
    """Shares of the picture, in percent, from the left and from the top."""

    low: float
    high: float
    most_bytes: float

    def x(self, cost: float) -> float:
        return 2 + 96 * (cost - self.low) / ((self.high - self.low) or 1)

    def y(self, count: float) -> float:
        return 100 - 100 * count / self.most_bytes


def picture_html(ways: Sequence[Way], usable_bytes: int, chosen: int | None) -> Html:
    """`chosen` is the point whose code stands below."""
    if not ways:
        return tag("p", "Points come as ways are predicted.", class_="mv-soft")
    costs = [rank(way) for way in ways]
    most = _ROOM * max(usable_bytes, *(way["peak_reserved_bytes"] for way in ways))
    scale = _Scale(min(costs), max(costs), most)
    drawn = front(ways)
    points = [_point(number, way, scale, number in drawn.numbers, number == chosen) for number, way in enumerate(ways)]
    return tag(
        "figure",
        tag(
            "div",
            *_grid(scale),
            _card(scale, usable_bytes),
            _line([ways[number] for number in drawn.numbers], scale),
            *points,
            class_="mv-fit-plot",
        ),
        tag("div", *_costs(scale, ways), class_="mv-fit-costs"),
        _legend(ways, usable_bytes),
        class_="mv-fit-picture",
        aria_label=f"{len(ways)} ways by cost and by memory; {len(drawn.numbers)} of them are on the front",
    )


def _point(number: int, way: Way, scale: _Scale, on_front: bool, is_chosen: bool) -> Html:
    place = f"left:{scale.x(rank(way)):.2f}%;top:{scale.y(way['peak_reserved_bytes']):.2f}%"
    reserved = f"{bytes_text(way['peak_reserved_bytes'])} reserved"
    words = f"{cut(str(way['title']))}: {reserved}, {cost_words(way)}, {fit_cell(way)}"
    kinds = [f"mv-is-{way['keeps']}", *(["mv-fits"] if way["fits"] else []), *(["mv-on-front"] if on_front else [])]
    return tag(
        "button",
        type="button",
        style=place,
        class_=" ".join(["mv-point", *kinds]),
        data_act="way",
        data_number=str(number),
        aria_label=words,
        aria_pressed="true" if is_chosen else "false",
        title=words,
        tabindex="0" if on_front or is_chosen else "-1",
    )


def _line(ways: Sequence[Way], scale: _Scale) -> Html:
    """Steps: between two ways of the front there is only the dearer one's memory to be had for its cost."""
    places: list[str] = []
    for way in ways:
        x, y = scale.x(rank(way)), scale.y(way["peak_reserved_bytes"])
        if places:
            places.append(f"{x:.2f},{places[-1].split(',')[1]}")
        places.append(f"{x:.2f},{y:.2f}")
    line = tag("polyline", points=" ".join(places), vector_effect="non-scaling-stroke")
    return tag("svg", line, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")


def _card(scale: _Scale, usable: int) -> Html:
    return tag("i", tag("span", f"the card: {bytes_text(usable)}"), class_="mv-fit-card", style=_top(scale, usable))


def _top(scale: _Scale, count: float) -> str:
    return f"top:{scale.y(count):.2f}%"


def _grid(scale: _Scale) -> list[Html]:
    step = _round_step(scale.most_bytes / _GIB / _FEW_TICKS) * _GIB
    counts = [number * step for number in range(int(scale.most_bytes // step) + 1)]
    return [tag("i", tag("span", _gib(count)), class_="mv-fit-tick", style=_top(scale, count)) for count in counts]


def _gib(count: float) -> str:
    return "0" if not count else f"{count / _GIB:,.3g} GiB"


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** ceil(log10(least) - 1)
    return next(float(step * power) for step in (1, 2, 5, 10) if step * power >= least)


def _costs(scale: _Scale, ways: Sequence[Way]) -> list[Html]:
    """The cheapest and the dearest, in the words of what they are compared by."""
    in_seconds, per = ways[0]["cost"]["seconds_low"] is not None, ways[0]["cost"]["per"]
    ends = [scale.low, scale.high] if scale.high > scale.low else [scale.low]
    texts = [duration_text(round(end * 1e6)) if in_seconds else work_text(end) for end in ends]
    what = f"a {per}, the middle of its estimate" if in_seconds else cost_unit(ways[0])
    return [tag("span", texts[0]), tag("span", what, class_="mv-soft"), *(tag("span", text) for text in texts[1:])]


def _legend(ways: Sequence[Way], usable: int) -> Html:
    kinds = [keeps for keeps in _KEEPS if any(way["keeps"] == keeps for way in ways)]
    parts = [tag("span", tag("i", class_=f"mv-point-key mv-fits mv-is-{keeps}"), _KEEPS[keeps]) for keeps in kinds]
    if any(not way["fits"] for way in ways):
        parts.append(tag("span", tag("i", class_=f"mv-point-key mv-is-{kinds[0]}"), "does not fit"))
    parts.append(tag("span", tag("i", class_="mv-point-key-line"), f"the front of what {_KEEPS[front(ways).keeps]}"))
    return tag("figcaption", *parts)
