"""Of a run on many GPUs: a row for each class of equal ranks, each with its timeline."""

from __future__ import annotations

from pathlib import Path

from memviz.headlines.run import gpus_of, ranks_text
from memviz.runner.jobs.order import Variant
from memviz.runner.parallel.parallelism import RankClass, file_of_rank
from memviz.runner.run import Run
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut
from memviz.units import bytes_text, count_text

_MOST = 64
_FITS = {"yes": ("✓ ", "fits", "mv-good"), "no": ("✗ ", "does not fit", "mv-bad"), "close": ("≈ ", "close", "mv-warn")}
_HEADS = ("Ranks", "allocated", "reserved", "weights", "", "")


def rank_classes_html(variant: Variant, number: int) -> Html:
    """Nothing of one GPU."""
    run = variant.run
    if run is None or not run.classes:
        return Html("")
    fullest = sorted(run.classes, key=lambda one: -one.peak_reserved_bytes)
    heads = [tag("th", head, scope="col", class_="mv-number" if 0 < at < 4 else None) for at, head in enumerate(_HEADS)]
    rows = [_row(one, run, variant.file, number) for one in fullest[:_MOST]]
    return tag(
        "section",
        tag("h2", f"Ranks: {cut(variant.label)}", class_="mv-h2"),
        tag("p", _words(run), class_="mv-soft"),
        tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="mv-table mv-rank-classes"),
    )


def _words(run: Run) -> str:
    count, classes = count_text(gpus_of(run)), len(run.classes)
    if classes == 1:
        return f"Predicted: one rank for all {count}, which take the same memory."
    more = f" The {_MOST} fullest classes are shown." if classes > _MOST else ""
    return (
        f"Predicted: one rank of each of {count_text(classes)} classes that take the same memory; what stands above is "
        f"of rank {count_text(run.rank or 0)}, which reserves most of {count}.{more}"
    )


def _row(one: RankClass, run: Run, file: Path | None, number: int) -> Html:
    sizes = (one.peak_allocated_bytes, one.peak_reserved_bytes, one.weights_bytes)
    figures = [tag("td", bytes_text(size), class_="mv-number") for size in sizes]
    mark, words, kind = _FITS.get(one.fit, ("", "", ""))
    fits = tag("td", tag("b", mark, class_=kind), words) if words else tag("td")
    text = cut(ranks_text(one.ranks))
    name = text[:1].upper() + text[1:]
    return tag("tr", tag("th", name, scope="row"), *figures, fits, tag("td", _open(one, run, file, number)))


def _open(one: RankClass, run: Run, file: Path | None, number: int) -> Html:
    there = file is not None and file_of_rank(file, one.shown, run.rank).exists()
    if not there:
        return Html("")
    label = f"Open the timeline of rank {one.shown}"
    data = {"data_act": "open", "data_number": str(number), "data_rank": str(one.shown)}
    return tag("button", "Open", type="button", class_="mv-link", aria_label=label, **data)
