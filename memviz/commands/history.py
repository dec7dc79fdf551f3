"""The peak from commit to commit, from files that CI keeps: as text, JSON, or a page of one file."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from memviz.commands.command import Command, add_json, add_top, print_json, print_table, printable, shown_progress
from memviz.commands.diff import share_or_bytes
from memviz.errors import UsageError
from memviz.ranks.summary import REST
from memviz.results.history import History, HistoryPoint, HistoryRequest, read_history
from memviz.text import Html, cut, joined, rounded, tag
from memviz.trace.write import replacing
from memviz.units import bytes_text, count_text, delta_text

_MOST_ROWS = 500
_WIDE, _HIGH, _LEFT, _TOP = 1000, 240, 80, 16
_MOST_DOTS = 2000
_STYLE = """
.mv-history { overflow-x: auto; }
.mv-history svg { display: block; width: 100%; min-width: 40rem; height: auto; margin: 1.5rem 0; font-size: 12px; }
.mv-history table { border-collapse: collapse; width: auto; min-width: 40rem; }
.mv-history th, .mv-history td { padding: 0.25rem 1.5rem 0.25rem 0; text-align: left; vertical-align: top; }
.mv-history td.mv-number, .mv-history th.mv-number { text-align: right; white-space: nowrap; }
"""


def _cause(point: HistoryPoint) -> str:
    """Return the largest category and the largest site of the change, as far as the files say them."""
    if not point.is_comparable:
        return f"not compared: {point.origin}"
    # Of sites that tie the first stands for them.
    site = point.chief_site or next((one for one in point.because if one.name != REST), None)
    causes = filter(None, (point.chief_category, site))
    text = ", ".join(f"{delta_text(cause.delta_bytes)} {cause.words}" for cause in causes)
    return text or ("not recorded" if point.is_move else "")


def _shown(history: History, top: int) -> list[HistoryPoint]:
    """Return all points; of more than `top` the first, the last and the latest that moved the peak."""
    if not top or len(history.points) <= top:
        return list(history.points)
    ends = (history.points[0], history.points[-1])
    inner = [point for point in history.moves if point not in ends]
    return [ends[0], *inner[-max(top - 2, 1) :], ends[1]]


def _reserved(point: HistoryPoint) -> str:
    return "" if point.reserved_peak_bytes is None else bytes_text(point.reserved_peak_bytes)


def _print(history: History, top: int) -> None:
    print(f"{printable(str(history.headline))}\n")
    shown = _shown(history, top)
    rows = [
        [
            bytes_text(point.peak_bytes),
            _reserved(point),
            delta_text(point.delta_bytes) if point.delta_bytes else "",
            "*" if point.is_move else "",
            f"{point.name}{' (out of memory)' if point.ran_out else ''}",
            " ".join(filter(None, (_cause(point) if point.delta_bytes else "", point.commit))),
        ]
        for point in shown
    ]
    print_table(["peak", "reserved", "change", "", "file", "why"], rows, number_columns=3)
    if left := len(history.points) - len(shown):
        print(f"... and {count_text(left)} more: earlier, or without a change (--top 0)")
    print(f"\n{_origins(history)} * changed the peak.")
    for skipped in history.skipped:
        print(f"\n! {printable(skipped.place)}\n  {printable(skipped.reason)}")


def _origins(history: History) -> str:
    counts = Counter(printable(point.origin or "of unknown origin") for point in history.points)
    return f"Read: {', '.join(f'{count_text(many)} {origin}' for origin, many in counts.items())}."


def history_page(history: History) -> str:
    """A page of one file, as `report` makes them."""
    from memviz.ui.html.labels import headline_html
    from memviz.ui.saved.document import Document, html_text

    body = joined(
        tag("style", Html(_STYLE)),
        tag("header", headline_html(history.headline), class_="mv-answer"),
        _chart(history.points),
        _table(history),
        tag("p", _origins(history), class_="mv-soft"),
        _skipped(history),
    )
    return html_text(Document(history.headline.answer, tag("section", body, class_="mv-history")))


def _chart(points: Sequence[HistoryPoint]) -> Html:
    """The peaks as a line of steps from zero; points that moved the peak are filled."""
    top = max(max(point.peak_bytes for point in points), 1)
    step = (_WIDE - _LEFT - 20) / max(len(points) - 1, 1)

    def spot(number: int, size: int) -> tuple[str, str]:
        return f"{_LEFT + number * step:.1f}", f"{_TOP + _HIGH * (1 - size / top):.1f}"

    path = "M" + "L".join(" ".join(spot(number, point.peak_bytes)) for number, point in enumerate(points))
    marks = []
    for part in range(5):
        size = top * part // 4
        y = spot(0, size)[1]
        marks.append(tag("line", x1=_LEFT, x2=_WIDE - 20, y1=y, y2=y, stroke="currentColor", opacity="0.15"))
        label = bytes_text(size)
        marks.append(tag("text", label, x=_LEFT - 8, y=y, text_anchor="end", dy="4", fill="currentColor"))
    numbers = [number for number, point in enumerate(points) if point.is_move or len(points) <= _MOST_DOTS]
    for number in numbers[-_MOST_DOTS:]:
        point = points[number]
        x, y = spot(number, point.peak_bytes)
        change = f"{delta_text(point.delta_bytes)} {_cause(point)}" if point.delta_bytes else ""
        lines = (point.name, point.commit, bytes_text(point.peak_bytes), point.origin, change)
        words = tag("title", "\n".join(cut(line) for line in lines if line))
        colour = "grew" if point.delta_bytes > 0 else "shrank"
        fill = f"var(--mv-{colour})" if point.is_move else "var(--mv-bg)"
        marks.append(tag("circle", words, cx=x, cy=y, r="4.5", fill=fill, stroke="currentColor"))
    line = tag("path", d=path, fill="none", stroke="currentColor", stroke_width="1.5")
    names = (cut(points[0].name, 40), _LEFT, "start"), (cut(points[-1].name, 40), _WIDE - 20, "end")
    for name, place, anchor in names if len(points) > 1 else ():
        marks.append(tag("text", name, x=place, y=_HIGH + 2 * _TOP, text_anchor=anchor, fill="currentColor"))
    label = f"Peak of {count_text(len(points))} files, in order"
    return tag("svg", line, *marks, viewBox=f"0 0 {_WIDE} {_HIGH + 2 * _TOP + 6}", role="img", aria_label=label)


def _table(history: History) -> Html:
    heads = [tag("th", head, class_="mv-number") for head in ("peak", "reserved", "change")]
    texts = ("file", "why", "commit") if any(point.commit for point in history.points) else ("file", "why")
    head = tag("tr", *heads, *(tag("th", head) for head in texts))
    shown = _shown(history, _MOST_ROWS)
    rows = [
        tag(
            "tr",
            tag("td", rounded(point.peak_bytes), class_="mv-number"),
            tag("td", _reserved(point), class_="mv-number"),
            tag("td", delta_text(point.delta_bytes) if point.delta_bytes else "", class_="mv-number"),
            tag("td", tag("b", cut(point.name)) if point.is_move else cut(point.name)),
            tag("td", cut(_cause(point)) if point.delta_bytes else ""),
            tag("td", cut(point.commit)) if "commit" in texts else "",
        )
        for point in reversed(shown)
    ]
    return tag("table", tag("thead", head), tag("tbody", *rows))


def _skipped(history: History) -> Html:
    if not history.skipped:
        return Html("")
    rows = [tag("li", tag("b", cut(one.place)), " ", cut(one.reason)) for one in history.skipped[:_MOST_ROWS]]
    return tag("details", tag("summary", f"Skipped: {count_text(len(history.skipped))}"), tag("ul", *rows))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path,
        help="folder with one file per commit: the output of predict, peak or diff --json, or a snapshot",
    )  # fmt: skip
    parser.add_argument(
        "--order", choices=("name", "time"), default="name",
        help="order by name (2 before 10) or by modification time (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--commits", type=Path, metavar="FILE",
        help='output of git log --format="%%h %%s", for order and titles; file names contain the hashes',
    )  # fmt: skip
    parser.add_argument(
        "--moved", type=share_or_bytes, default=(0.01, "share"), metavar="1%|10MiB",
        help="list files that change the peak by more (default: 1%%)",
    )  # fmt: skip
    add_top(parser)
    add_json(parser)
    parser.add_argument("--html", type=Path, metavar="PAGE.html", help="write a self-contained HTML page")


def _run(args: argparse.Namespace) -> int:
    if args.html is not None and args.html.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{args.html.name}: a history is an HTML page. Use a name with .html.")
    wanted = HistoryRequest(args.folder, args.order == "time", args.commits, args.moved)
    with shown_progress(lambda done, total: f"Reading {count_text(done)} of {count_text(total)} files") as show:
        history = read_history(wanted, show)
    if args.html is not None:
        with replacing(args.html) as file:
            file.write(history_page(history).encode("utf-8", "replace"))
    print_json(history.as_json()) if args.json else _print(history, args.top)
    return 0


COMMANDS = {"history": Command(_add_arguments, _run)}
