"""The variants' memory over their step, side by side on one scale, in the timeline's own colours."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memviz.analysis.live import live_rows
from memviz.analysis.purpose.kinds import KINDS, kinds
from memviz.analysis.timeline import timeline
from memviz.analysis.which_device import chosen_device
from memviz.errors import TraceError
from memviz.figures.thumbnail import data_address, thumbnail
from memviz.runner.jobs.order import Variant
from memviz.trace.load import load_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.kinds import swatch
from memviz.ui.html.markup import Html, joined, tag
from memviz.ui.html.words import cut, rounded
from memviz.units import bytes_text, count_text

_WIDTH, _HEIGHT = 240, 110
_HEADROOM = 1.04
_LARGEST_FILE = 64 << 20
"""A trace that is larger is looked at when it is opened, not by itself."""
_MOST_KEPT = 64
_MOST_SHOWN = 12


@dataclass(frozen=True)
class Picture:
    address: str
    live_bytes: int
    """At the peak."""
    events: int
    kinds: frozenset[str]
    """Of what is live at the peak."""


class RunPictures:
    """Each is drawn once for each scale, and the newest are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces: OrderedDict[Path, tuple[Trace, DeviceTrace]] = OrderedDict()
        self._drawn: OrderedDict[tuple[Path, int], Picture] = OrderedDict()

    def of(self, variants: Sequence[Variant]) -> dict[int, Picture]:
        """By the number of the variant; of what has no trace, or one that is gone, there is none."""
        opened = {number: each.file for number, each in enumerate(variants) if each.run and each.file}
        read = {number: (file, self._read(file)) for number, file in list(opened.items())[:_MOST_SHOWN]}
        found = {number: (file, trace) for number, (file, trace) in read.items() if trace is not None}
        top = max((timeline(device).peak_bytes for _, (_, device) in found.values()), default=0)
        return {number: self._draw(file, *trace, top=top) for number, (file, trace) in found.items()}

    def _read(self, file: Path) -> tuple[Trace, DeviceTrace] | None:
        with self._lock:
            if file in self._traces:
                return self._traces[file]
        try:
            if file.stat().st_size > _LARGEST_FILE:
                return None
            trace = load_trace(file)
        except (OSError, TraceError):
            return None
        with self._lock:
            self._traces[file] = trace, chosen_device(trace)
            while len(self._traces) > _MOST_SHOWN:
                self._traces.popitem(last=False)
            return self._traces[file]

    def _draw(self, file: Path, trace: Trace, device: DeviceTrace, *, top: int) -> Picture:
        with self._lock:
            if (file, top) in self._drawn:
                return self._drawn[file, top]
        png = thumbnail(trace, device, width=_WIDTH, height=_HEIGHT, top=round(_HEADROOM * max(top, 1)))
        line = timeline(device)
        codes = np.unique(kinds(trace, device, live_rows(device, line.peak_event))).tolist()
        picture = Picture(
            data_address(png), line.peak_bytes, len(device.events), frozenset(KINDS[code] for code in codes)
        )
        with self._lock:
            self._drawn[file, top] = picture
            while len(self._drawn) > _MOST_KEPT:
                self._drawn.popitem(last=False)
        return picture


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
        tag("ul", *(_picture(variants[number], number, each) for number, each in pictures.items())),
        class_="mv-run-pictures",
    )


def _picture(variant: Variant, number: int, picture: Picture) -> Html:
    line = f"bottom:{100 / _HEADROOM:.3f}%"
    peak = f"{bytes_text(picture.live_bytes)} at the peak"
    words = f"{variant.label}: memory asked for over {count_text(picture.events)} events, {peak}"
    image = tag("img", src=picture.address, alt=words, width=_WIDTH, height=_HEIGHT)
    button = tag(
        "button",
        tag("span", image, tag("i", style=line, aria_hidden="true"), class_="mv-run-picture"),
        tag("b", cut(variant.label)),
        tag("small", rounded(picture.live_bytes), " asked for at the peak"),
        type="button",
        data_act="open",
        data_number=str(number),
        title=f"Open {variant.label} in Explore",
    )
    return tag("li", joined(button))
