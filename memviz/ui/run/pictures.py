"""The variants' memory over their step, side by side on one scale, in the timeline's own colours."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memviz.analysis.purpose.categories import KINDS
from memviz.analysis.timeline import timeline
from memviz.analysis.which_device import chosen_device
from memviz.errors import TraceError
from memviz.figures.packed_timeline import data_address, drawn_thumbnail
from memviz.runner.jobs.order import Variant
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.ui.html.elements import button
from memviz.ui.html.labels import swatch
from memviz.ui.html.markup import Html, cut, joined, rounded, tag
from memviz.units import bytes_text, count_text

_WIDTH, _HEIGHT = 240, 110
_HEADROOM = 1.04
_LARGEST_FILE = 64 << 20
"""A trace that is larger is looked at when it is opened, not by itself."""
_MOST_KEPT = 256
_MOST_SHOWN = 12


@dataclass(frozen=True)
class Picture:
    address: str
    live_bytes: int
    """At the peak."""
    events: int
    kinds: frozenset[str]
    """That are drawn in it."""


class RunPictures:
    """Each is drawn once, as high as its own peak; side by side the page scales them. No trace is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: OrderedDict[Path, Picture] = OrderedDict()

    def of(self, variants: Sequence[Variant]) -> dict[int, Picture]:
        """Return pictures by the variant's number, without those whose trace is missing or deleted."""
        files = [(number, variant.file) for number, variant in enumerate(variants) if variant.run and variant.file]
        pictures = {number: self._of(file) for number, file in files[:_MOST_SHOWN]}
        return {number: picture for number, picture in pictures.items() if picture is not None}

    def _of(self, file: Path) -> Picture | None:
        with self._lock:
            if file in self._drawn:
                return self._drawn[file]
        try:
            if file.stat().st_size > _LARGEST_FILE:
                return None
            picture = _drawn(load_trace(file))
        except (OSError, TraceError):
            return None
        with self._lock:
            self._drawn[file] = picture
            while len(self._drawn) > _MOST_KEPT:
                self._drawn.popitem(last=False)
        return picture


def _drawn(trace: Trace) -> Picture:
    device = chosen_device(trace)
    line = timeline(device)
    png, kinds = drawn_thumbnail(trace, device, width=_WIDTH, height=_HEIGHT)
    return Picture(data_address(png), line.peak_bytes, len(device.events), kinds)


def pictures_html(variants: Sequence[Variant], pictures: Mapping[int, Picture]) -> Html:
    """Nothing where there is none; one alone too: it may be opened."""
    if not pictures:
        return Html("")
    highest = max(picture.live_bytes for picture in pictures.values())
    scale = (
        "one scale, dashed at ",
        rounded(highest),
        ", the highest, without rounding to blocks; each from its first event to its last",
    )
    seen = [kind for kind in KINDS if any(kind in picture.kinds for picture in pictures.values())]
    return tag(
        "section",
        tag("h2", "Memory asked for, event by event ", tag("small", *scale), class_="mv-h2"),
        tag("p", *(tag("span", swatch(kind), kind) for kind in seen), class_="mv-run-colours"),
        tag("ul", *(_picture(variants[number], number, picture, highest) for number, picture in pictures.items())),
        class_="mv-run-pictures",
    )


def _picture(variant: Variant, number: int, picture: Picture, highest: int) -> Html:
    line = f"bottom:{100 / _HEADROOM:.3f}%"
    peak = f"{bytes_text(picture.live_bytes)} at the peak"
    words = f"{variant.label}: memory asked for over {count_text(picture.events)} events, {peak}"
    height = f"height:{100 * picture.live_bytes / (_HEADROOM * max(highest, 1)):.3f}%"
    image = tag("img", src=picture.address, alt=words, style=height)
    shown = joined(
        tag("span", image, tag("i", style=line, aria_hidden="true"), class_="mv-run-picture"),
        tag("b", cut(variant.label)),
        tag("small", rounded(picture.live_bytes), " asked for at the peak"),
    )
    return tag("li", button(shown, "open", None, data_number=number, title=f"Open {variant.label} in Explore"))
