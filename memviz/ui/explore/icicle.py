"""Live bytes by stack: callers on top, 21 px a row, as wide as their bytes. Plain HTML, widths in percent.

A box is coloured as most of its bytes are on the timeline, mixed toward the page the more the less that
one dominates. A caller whose only callee holds all of its bytes shares one box with it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from memviz.analysis.breakdown import Dominant, Path, StackBreakdown, path_text
from memviz.analysis.callstacks.stack_tree import OTHER, ROOT
from memviz.figures.theme import DARK, LIGHT, mixed, text_on
from memviz.text import Html, allocations, cut, joined, tag
from memviz.trace.model import Trace
from memviz.ui.explore.live_set import BYTES, CATEGORIES, Measure, Paint
from memviz.ui.html.elements import button
from memviz.ui.html.labels import FrameWords, frame_text
from memviz.units import percent_text

ROW_HEIGHT = 22
"""With the gap of 1 px."""
_LEAST_SHARE = 0.001
"""Share of the width; narrower boxes go into their caller's `(other)`."""
_LABEL_SHARE = 0.03
"""Least share of the width in which a label is readable."""
_CHAIN_SHARE = 0.3
"""Share of the width; narrower boxes name only the innermost of several frames."""
_LONGEST = 90
_WHITE = "#ffffff"
_NO_NODE = -1
_WORDS = {"bytes": "Live bytes", "count": "Live allocations", "lifetime": "Bytes on average"}


@dataclass(frozen=True)
class Box:
    path: Path | None
    """Path that a click opens; None for `(other)`."""
    frames: tuple[int, ...]
    """Outermost first; more than one where each holds all bytes of the one before."""
    left: float
    width: float
    """Shares of the whole width."""
    row: int
    bytes: int
    count: int
    dominant: Dominant | None


def icicle_html(
    trace: Trace, breakdown: StackBreakdown, *, paint: Paint = CATEGORIES, measure: Measure = BYTES
) -> Html:
    total = int(breakdown.tree.bytes[breakdown.node])
    crumbs: Html | str = ""
    if path := breakdown.path:
        # The way back out.
        names = ["all", *(_short(frame_text(trace, frame)) for frame in path)]
        back = [joined(button(names[i], "zoom", None, data_value=path_text(path[:i])), " › ") for i in range(len(path))]
        here = tag("b", names[-1], aria_current="true")
        crumbs = tag("nav", *back, here, class_="mv-crumbs", aria_label="Zoomed into")
    if not total:
        return joined(crumbs, tag("p", "Nothing is live here.", class_="mv-soft"))
    drawn = list(boxes(breakdown))
    height = ROW_HEIGHT * (1 + max(box.row for box in drawn))
    label = f"{_WORDS[measure.kind]} by stack, callers on top. Arrow keys move, Enter zooms in."
    nodes = tag("div", *(_box_html(trace, box, total, paint, measure) for box in drawn), style=f"height:{height}px")
    return joined(crumbs, tag("div", nodes, class_="mv-icicle", role="group", aria_label=label))


def boxes(breakdown: StackBreakdown) -> Iterator[Box]:
    """Level by level, left to right."""
    tree, children = breakdown.tree, defaultdict(list)
    for node, parent in enumerate(tree.parent.tolist()[1:], start=1):
        children[parent].append(node)
    total = max(int(tree.bytes[breakdown.node]), 1)
    waiting = deque([(_box(breakdown, [breakdown.node], breakdown.path, left=0.0, row=0), breakdown.node)])
    while waiting:
        box, node = waiting.popleft()
        yield box
        left, other_bytes, other_count = box.left, 0, 0
        for child in children[node]:
            size = int(tree.bytes[child])
            if tree.frame[child] == OTHER or size < _LEAST_SHARE * total:
                other_bytes, other_count = other_bytes + size, other_count + int(tree.count[child])
                continue
            chain = [child]
            while len(below := children[chain[-1]]) == 1:
                if tree.bytes[below[0]] != tree.bytes[child] or tree.frame[below[0]] == OTHER:
                    break
                chain.append(below[0])
            path = (*(box.path or ()), *(int(tree.frame[node]) for node in chain))
            waiting.append((_box(breakdown, chain, path, left=left, row=box.row + 1), chain[-1]))
            left += size / total
        if other_bytes:
            other = Box(None, (OTHER,), left, other_bytes / total, box.row + 1, other_bytes, other_count, None)
            waiting.append((other, _NO_NODE))


def _box(breakdown: StackBreakdown, chain: list[int], path: Path, *, left: float, row: int) -> Box:
    tree, last = breakdown.tree, chain[-1]
    size = int(tree.bytes[last])
    return Box(
        path=path,
        frames=tuple(int(tree.frame[node]) for node in chain),
        left=left,
        width=size / max(int(tree.bytes[breakdown.node]), 1),
        row=row,
        bytes=size,
        count=int(tree.count[last]),
        dominant=breakdown.dominant[last],
    )


def _box_html(trace: Trace, box: Box, total: int, paint: Paint, measure: Measure) -> Html:
    text = [frame_text(trace, frame) for frame in box.frames]
    place = f"left:{100 * box.left:.3f}%;width:{100 * box.width:.3f}%;top:{ROW_HEIGHT * box.row}px"
    named = text if box.width >= _CHAIN_SHARE else text[-1:]
    name = f"{' › '.join(map(_short, named))} {measure.text(box.bytes)}"
    label = name if box.width >= _LABEL_SHARE else ""
    title = _title(text, box, total, measure)
    if box.path is None or box.dominant is None:
        return tag("span", label, class_="mv-node mv-is-other", style=place, title=title)
    look, fill = _fill(box, paint)
    said = {"style": f"{fill}{place}", "title": title, "aria_label": None if label else name}
    lights = {"data_light_by": "path", "data_light_group": path_text(box.path)} if box.path else {}
    # The topmost box leads back out.
    back = {"data_value": path_text(box.path[:-1])} if box.row == 0 else {}
    return button(label, "zoom", look, **said, tabindex="0" if box.row == 0 else "-1", **lights, **back)


def _short(text: FrameWords) -> str:
    """The file comes first: it distinguishes the many functions named `forward`."""
    name = text.place.rpartition("/")[2].replace(".py:", ":", 1)
    return cut(f"{name} {text.function}" if name else text.function, _LONGEST)


def _title(words: list[FrameWords], box: Box, total: int, measure: Measure) -> str:
    frames = [cut(f"{frame.function} {frame.path}" if frame.place else frame.function, 300) for frame in words[-12:]]
    parts = [measure.exact(box.bytes), f"{percent_text(box.bytes, total)} of {measure.text(total)}"]
    figures = ", ".join(parts if measure.kind == "count" else [*parts, allocations(box.count)])
    mostly = [f"{box.dominant.kind} {percent_text(box.dominant.bytes, box.bytes)}"] if box.dominant else []
    return "\n".join([*frames, figures, *mostly])


def _fill(box: Box, paint: Paint) -> tuple[str, str]:
    """Class and style. Text is ink, or white where only that can be read, in each mode by itself."""
    if box.frames == (ROOT,) or box.dominant is None:
        return "mv-node mv-plain", ""
    # None for a pure box, else 50 to 70 % of the page's colour, more the less one category dominates.
    is_pure = box.dominant.bytes >= box.bytes
    share = 0.0 if is_pure else (70 - 5 * round(4 * box.dominant.bytes / box.bytes)) / 100
    style = ""
    shades = paint.shades[box.dominant.kind]
    for mode, look, shade in zip(("light", "dark"), (LIGHT, DARK), shades, strict=True):
        fill = mixed(shade, look.page, share)
        style += f"--mv-{mode}:{fill};"
        if text_on(fill) == _WHITE:
            style += f"--mv-on-{mode}:{_WHITE};"
    return "mv-node mv-kind", style
