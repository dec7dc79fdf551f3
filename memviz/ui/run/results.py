"""Results of runs: a row for each variant on one scale, memory over time, outputs, ranks, and the kept runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memviz.analysis.devices import choose_device
from memviz.analysis.purpose.categories import KINDS
from memviz.analysis.timeline import timeline
from memviz.errors import TraceError
from memviz.figures.packed_timeline import data_address, thumbnail_with_labels
from memviz.predictor.expected_error import Fit
from memviz.results.run import (
    base_of,
    close_fit_text,
    cost_change_text,
    gpus_of,
    is_training,
    optimizer_text,
    rank_list,
    rank_text,
    reserved_bytes,
    reserved_on_card,
    step_word,
    usable_text,
    variants_headline,
)
from memviz.runner.jobs.kept_runs import KeptRun
from memviz.runner.jobs.service import OrderStatus, Variant
from memviz.runner.parallel.parallelism import RankClass, file_of_rank
from memviz.runner.run import Run
from memviz.text import Html, cut, joined, rounded, tag
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.ui.html.elements import button, facts_html, fault_place, table
from memviz.ui.html.labels import colour_style, swatch
from memviz.units import bytes_text, count_text, percent_text

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
            picture = _draw_picture(load_trace(file))
        except (OSError, TraceError):
            return None
        with self._lock:
            self._drawn[file] = picture
            while len(self._drawn) > _MOST_KEPT:
                self._drawn.popitem(last=False)
        return picture


def _draw_picture(trace: Trace) -> Picture:
    device = choose_device(trace)
    line = timeline(device)
    png, kinds = thumbnail_with_labels(trace, device, width=_WIDTH, height=_HEIGHT)
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
    alt_text = f"{variant.label}: memory asked for over {count_text(picture.events)} events, {peak}"
    height = f"height:{100 * picture.live_bytes / (_HEADROOM * max(highest, 1)):.3f}%"
    image = tag("img", src=picture.address, alt=alt_text, style=height)
    content = joined(
        tag("span", image, tag("i", style=line, aria_hidden="true"), class_="mv-run-picture"),
        tag("b", cut(variant.label)),
        tag("small", rounded(picture.live_bytes), " asked for at the peak"),
    )
    return tag("li", button(content, "open", None, data_number=number, title=f"Open {variant.label} in Explore"))


_MOST = 64
_FITS = {"yes": ("✓ ", "fits", "mv-good"), "no": ("✗ ", "does not fit", "mv-bad"), "close": ("≈ ", "close", "mv-warn")}
_CLASS_HEADS = (
    ("Ranks", None),
    ("allocated", "mv-number"),
    ("reserved", "mv-number"),
    ("weights", "mv-number"),
    ("", None),
    ("", None),
)


def rank_classes_html(variant: Variant, number: int) -> Html:
    """Nothing of one GPU."""
    run = variant.run
    if run is None or not run.classes:
        return Html("")
    fullest = sorted(run.classes, key=lambda one: -one.peak_reserved_bytes)
    rows = [_class_row(one, run, variant.file, number) for one in fullest[:_MOST]]
    return tag(
        "section",
        tag("h2", f"Ranks: {cut(variant.label)}", class_="mv-h2"),
        tag("p", _classes_text(run), class_="mv-soft"),
        table(_CLASS_HEADS, rows, "mv-table mv-rank-classes"),
    )


def _classes_text(run: Run) -> str:
    count, classes = count_text(gpus_of(run)), len(run.classes)
    if classes == 1:
        return f"Predicted: one rank for all {count}, which take the same memory."
    more = f" The {_MOST} fullest classes are shown." if classes > _MOST else ""
    return (
        f"Predicted: one rank of each of {count_text(classes)} classes that take the same memory; what stands above is "
        f"of rank {count_text(run.rank or 0)}, which reserves most of {count}.{more}"
    )


def _class_row(one: RankClass, run: Run, file: Path | None, number: int) -> Html:
    sizes = (one.peak_allocated_bytes, one.peak_reserved_bytes, one.weights_bytes)
    figures = [tag("td", bytes_text(size), class_="mv-number") for size in sizes]
    fits = _fits_cell(one.fit)
    text = cut(rank_list(one.ranks))
    name = text[:1].upper() + text[1:]
    return tag("tr", tag("th", name, scope="row"), *figures, fits, tag("td", _open_class(one, run, file, number)))


def _fits_cell(fit: str) -> Html:
    mark, words, kind = _FITS.get(fit, ("", "", ""))
    return tag("td", tag("b", mark, class_=kind), words) if words else tag("td")


def _open_class(one: RankClass, run: Run, file: Path | None, number: int) -> Html:
    there = file is not None and file_of_rank(file, one.shown, run.rank).exists()
    if not there:
        return Html("")
    label = f"Open the timeline of rank {one.shown}"
    return button("Open", "open", "mv-link", data_number=number, data_rank=one.shown, aria_label=label)


def details_html(variants: Sequence[Variant], chosen: int) -> Html:
    parts = tag("div", _outputs(variants), _notes_html(variants), class_="mv-run-below")
    return joined(rank_classes_html(variants[chosen], chosen), parts, _commands(variants, chosen))


def verdict_of(numerics: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    verdict = (numerics or {}).get("verdict")
    return verdict if isinstance(verdict, dict) and "words" in verdict else None


def _outputs(variants: Sequence[Variant]) -> Html:
    """The noise floor once, then each variant's worst output."""
    compared = [(variant, variant.run.numerics) for variant in variants if variant.run and variant.run.numerics]
    if not compared:
        return Html("")
    good = [(variant, numbers) for variant, numbers in compared if numbers.get("outputs")]
    rows = []
    if good:
        noise = _sizes(_worst(good[0][1], "noise"))
        rows.append(_output_cells(("same run twice", *noise, "noise floor"), soft=True))
    # Variants with the same figures share a row.
    labels: dict[tuple[str, str, str, Html], list[str]] = {}
    for variant, numbers in compared:
        labels.setdefault(_output_facts(numbers), []).append(cut(variant.label))
    rows += [_output_cells((", ".join(same), *facts)) for facts, same in labels.items()]
    on = "; ".join(dict.fromkeys(str(numbers["on"]) for _, numbers in compared if "on" in numbers))
    return tag(
        "section",
        tag("h2", "Outputs against the baseline", class_="mv-h2"),
        tag("p", f"computed on a reduced model: {on}" if on else "", class_="mv-soft"),
        table(_OUTPUT_HEADS, rows),
    )


_OUTPUT_HEADS = (
    ("Variant", None),
    ("absmax", "mv-number"),
    ("of the largest", "mv-number"),
    ("relative L2", "mv-number"),
    ("Verdict", None),
)


def _output_facts(numbers: Mapping[str, Any]) -> tuple[str, str, str, Html]:
    if "error" in numbers:
        return "–", "–", "–", joined(f"could not be compared: {cut(str(numbers['error']))}")
    worst, verdict = _worst(numbers, "difference"), verdict_of(numbers) or {}
    marks: dict[Any, Html] = {True: tag("b", "✓ ", class_="mv-good"), False: tag("b", "✗ ", class_="mv-bad")}
    mark = marks.get(verdict.get("ok"), Html(""))
    caution = verdict.get("caution")
    verdict_html = joined(
        mark, str(verdict.get("words", "")), tag("small", f" {caution}", class_="mv-soft") if caution else ""
    )
    return *(("–", "–", "–") if verdict.get("short") == "not exercised" else _sizes(worst)), verdict_html


def _sizes(values: Mapping[str, Any]) -> tuple[str, str, str]:
    """absmax alone is not enough: 1e-4 is large for an output of 1e-4. Older runs lack reference_absmax."""
    largest = _float(values.get("reference_absmax"))
    scale = _float(values.get("absmax")) / largest if largest else 0.0
    absmax, relative = (_float(values.get(key)) for key in ("absmax", "relative_l2"))
    return _size_text(absmax), _size_text(scale), _size_text(relative)


def _output_cells(cells: Sequence[object], *, soft: bool = False) -> Html:
    kinds = ("", "mv-number", "mv-number", "mv-number", "mv-soft" if soft else "")
    return tag("tr", *(tag("td", cell, class_=kind or None) for cell, kind in zip(cells, kinds, strict=True)))


def _worst(numbers: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    differences = [
        output[key]
        for output in numbers.get("outputs", ())
        if isinstance(output, dict) and isinstance(output.get(key), dict)
    ]
    return max(differences, key=lambda output: _float(output.get("relative_l2")), default={})


def _size_text(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def _float(value: object) -> float:
    """Infinite figures travel as the text 'inf'."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0


def _notes_html(variants: Sequence[Variant]) -> Html:
    run = next((variant.run for variant in variants if variant.run is not None), None)
    if run is None or not run.notes:
        return Html("")
    title = "What a prediction cannot see" if run.mode == "predicted" else "What to know about this measurement"
    notes = [tag("li", note) for note in run.notes]
    return tag("section", tag("h2", title, class_="mv-h2"), tag("ul", *notes, class_="mv-unseen"))


def _commands(variants: Sequence[Variant], chosen: int) -> Html:
    """One variant as code for a script and as a command."""
    variant = variants[chosen]
    run = variant.run
    if run is None:
        return Html("")
    parts = [code_html(f"On the command line: {cut(variant.label)}", run.command)]
    if run.code:
        parts.insert(0, code_html(f"In your own script: {cut(variant.label)}", run.code))
    return tag("section", *parts, class_="mv-take-away", aria_live="polite")


def code_html(title: str, text: str) -> Html:
    copy = tag("button", "Copy", type="button", data_mv_copy=text)
    return tag("div", tag("p", tag("span", title), copy), tag("pre", text), class_="mv-code-block")


_WEIGHTS, _REST = "parameter", "activation"
_MOST_WORDS = 400


def results_html(
    status: OrderStatus | None, chosen: int | None = None, pictures: Mapping[int, Picture] | None = None
) -> Html:
    """`chosen` is the variant whose code and command are shown; by default that of the headline."""
    if status is None:
        return _empty_html()
    variants = status.variants
    selected = variants_headline(variants).number if chosen is None or chosen >= len(variants) else chosen
    usable, most_usable = _usable(variants)
    scale = _HEADROOM * max((most_usable, *(reserved_bytes(variant.run) for variant in variants if variant.run)))
    rows = [
        _row(variants, number, _ByteScale(scale or 1, usable, most_usable), is_chosen=number == selected)
        for number in range(len(variants))
    ]
    return joined(
        _legend(variants, status),
        tag("ol", *rows, class_="mv-variants", aria_label="Variants, the baseline first"),
        pictures_html(variants, pictures or {}),
        details_html(variants, selected),
    )


def head_html(status: OrderStatus | None) -> Html:
    """The verdict, and what the figures are of."""
    if status is None:
        return tag("header", tag("h1", "Run a model here, or predict it for any card.", class_="mv-verdict"))
    headline = variants_headline(status.variants).headline
    done = sum(variant.is_over for variant in status.variants)
    answer = headline.answer or _progress_text(status, done)
    title = tag("h1", answer, " ", tag("span", headline.reason), class_="mv-verdict")
    return tag("header", title, facts_html(_facts(status)), _accuracy(status))


def _accuracy(status: OrderStatus) -> Html:
    """Expected errors of the predictions, each sentence once."""
    errors = [variant.run.expected_error for variant in status.variants if variant.run and variant.run.expected_error]
    sentences = dict.fromkeys(error.sentence for error in errors)
    warnings = dict.fromkeys(text for variant in status.variants if variant.run for text in variant.run.warnings)
    return joined(
        *(tag("p", text, class_="mv-note mv-warning") for text in warnings),
        *(tag("p", sentence, class_="mv-soft mv-truth") for sentence in sentences),
    )


def _progress_text(status: OrderStatus, done: int) -> str:
    if status.before:
        others = "order" if status.before == 1 else "orders"
        return f"Waiting for the device: {count_text(status.before)} {others} of others first."
    return f"Running variant {min(done + 1, len(status.variants))} of {len(status.variants)}."


def _facts(status: OrderStatus) -> list[tuple[str, str]]:
    run = next((variant.run for variant in status.variants if variant.run is not None), None)
    if run is None:
        return []
    where = "predicted for" if run.mode == "predicted" else "measured on"
    usable = f", {usable_text(run.fit)}" if run.fit else ""
    count = len(status.variants)
    facts = [(where, f"{run.device}{usable}"), (run.describes, ""), (f"counted: {run.window}", "")]
    if is_training(run):
        facts.append(("the step has", optimizer_text(run)))
    over = f"{count} variant{'s' if count > 1 else ''} in"
    return [*facts, (over, f"{status.seconds:.1f} s")] if status.is_over else facts


def _empty_html() -> Html:
    text = (
        "Choose a workload on the left, switch on what you would try, and press the button. Several values of a knob, "
        "as in 1, 2, 4, make several variants; the baseline is always there. Or take one of the four examples."
    )
    return tag("p", text, class_="mv-soft mv-run-empty")


def _fit_of(variants: Sequence[Variant]) -> Fit | None:
    """The card is the same for all."""
    return next((variant.run.fit for variant in variants if variant.run and variant.run.fit), None)


def _usable(variants: Sequence[Variant]) -> tuple[int, int]:
    fit = _fit_of(variants)
    return (fit.usable_bytes, fit.most_usable_bytes) if fit else (0, 0)


def _legend(variants: Sequence[Variant], status: OrderStatus) -> Html:
    fit = _fit_of(variants)
    parts = [
        tag("span", swatch(_WEIGHTS), "weights"),
        tag("span", swatch(_REST), "everything else allocated"),
        tag("span", tag("i", class_="mv-square mv-striped", aria_hidden="true"), "cached, up to reserved"),
    ]
    if any(map(_doubt, variants)):
        parts.append(tag("span", tag("i", class_="mv-doubt-key", aria_hidden="true"), "how far it may be off"))
    if fit is not None:
        parts.append(tag("span", tag("i", class_="mv-limit-key", aria_hidden="true"), usable_text(fit)))
    ready = [variant for variant in status.variants if variant.file is not None and variant.run is not None]
    compare = Html("")
    if len(ready) > 1:
        compare = button(f"Compare {_ALL.get(len(ready), 'the first eight')}", "compare", "mv-primary")
    return tag("div", tag("p", *parts), compare, class_="mv-run-legend")


_ALL = {2: "both", 3: "all three", 4: "all four", 5: "all five", 6: "all six", 7: "all seven", 8: "all eight"}


@dataclass(frozen=True)
class _ByteScale:
    bytes: float
    usable: int
    most_usable: int
    """Usable bytes with the smallest CUDA context overhead that was measured."""

    def share(self, count: float) -> str:
        return f"{100 * count / self.bytes:.3f}%"


def _row(variants: Sequence[Variant], number: int, scale: _ByteScale, *, is_chosen: bool) -> Html:
    variant, at = variants[number], base_of(variants, number)
    run, base = variant.run, None if at == number else variants[at].run
    saving = "baseline" if at == number else _saving(run, base)
    rank = "" if run is None else rank_text(run)
    notes = [tag("small", text) for text in (saving, rank) if text]
    name = tag("div", _chooser(variant, number, is_chosen), *notes, class_="mv-variant-name")
    limit = _limit(scale) if scale.usable else Html("")
    bar = tag("div", _bar(run, scale) if run else Html(""), _whisker(variant, scale), limit, class_="mv-variant-bar")
    figures = _figures(run) if run else Html("")
    choose = {"data_act": "choose", "data_number": str(number)} if run else {}
    middle = tag("div", bar, figures, class_="mv-variant-middle", **choose)
    last = _state(variant, number) if run is None or variant.state == "failed" else _answers(variant, number, run, base)
    return tag("li", name, middle, last, class_=f"mv-variant mv-is-{variant.state}{' mv-chosen' if is_chosen else ''}")


def _chooser(variant: Variant, number: int, is_chosen: bool) -> Html:
    """A button that shows the variant's code and command below."""
    if variant.run is None:
        return tag("b", cut(variant.label), title=variant.label)
    title = f"{variant.label}: show its code and its command below"
    pressed = "true" if is_chosen else "false"
    return button(cut(variant.label), "choose", "mv-choose", data_number=number, aria_pressed=pressed, title=title)


def _saving(run: Run | None, base: Run | None) -> str:
    if run is None or base is None:
        return ""
    saved = base.peak_reserved_bytes - run.peak_reserved_bytes
    sign = "\N{MINUS SIGN}" if saved >= 0 else "+"
    return f"{sign}{bytes_text(abs(saved))} reserved"


def _limit(scale: _ByteScale) -> Html:
    """Return the band that the unknown CUDA context overhead spans."""
    band = f"left:{scale.share(scale.usable)};width:{scale.share(scale.most_usable - scale.usable)}"
    return tag("i", class_="mv-limit", style=band)


def _doubt(variant: Variant) -> tuple[int, int] | None:
    """The least and the most bytes that are expected to be reserved, where these differ."""
    run = variant.run
    if run is None or run.expected_error is None:
        return None
    least, most = run.expected_error.reserved_interval(reserved_bytes(run))
    return (least, most) if most > least else None


def _whisker(variant: Variant, scale: _ByteScale) -> Html:
    doubt = _doubt(variant)
    if doubt is None:
        return Html("")
    low, high = doubt[0], min(doubt[1], scale.bytes)
    style = f"left:{scale.share(low)};width:{scale.share(high - low)}"
    interval = f"{bytes_text(low)} to {bytes_text(doubt[1])}"
    return tag("i", class_="mv-doubt", style=style, title=f"Likely reserved: {interval}")


def _bar(run: Run, scale: _ByteScale) -> Html:
    there = run.weights_bytes if run.weights_at_peak_bytes is None else run.weights_at_peak_bytes
    weights = min(there, run.peak_allocated_bytes)
    rest = run.peak_allocated_bytes - weights
    cached = max(0, reserved_bytes(run) - run.peak_allocated_bytes)
    return joined(
        tag("i", class_="mv-kind", style=f"{colour_style(_WEIGHTS)};width:{scale.share(weights)}"),
        tag("i", class_="mv-kind", style=f"{colour_style(_REST)};width:{scale.share(rest)}"),
        tag("i", class_="mv-striped mv-cached", style=f"width:{scale.share(cached)}"),
    )


def _figures(run: Run) -> Html:
    gap = percent_text(run.peak_reserved_bytes - run.peak_allocated_bytes, run.peak_reserved_bytes)
    reserved = [tag("span", "reserved ", tag("b", rounded(run.peak_reserved_bytes)))]
    squeezed = reserved_on_card(run)
    if squeezed is not None:
        without = tag("span", "without a limit ", tag("b", rounded(run.peak_reserved_bytes)))
        reserved = [tag("span", "reserved on the card ", tag("b", rounded(squeezed))), without]
    loading = " while loading" if run.peak_while_loading else ""
    pinned_bytes = run.pinned_host_bytes
    pinned = [tag("span", "pinned on the host ", tag("b", rounded(pinned_bytes)))] if pinned_bytes else []
    return tag(
        "p",
        tag("span", "allocated ", tag("b", rounded(run.peak_allocated_bytes)), loading),
        *reserved,
        tag("span", f"gap {gap}"),
        *pinned,
        class_="mv-variant-figures",
    )


def _open_button(label: str, variant: Variant, number: int) -> Html:
    if variant.file is None:
        return Html("")
    return button(label, "open", "mv-link", data_number=number, aria_label=f"{label}: {variant.label}")


def _answers(variant: Variant, number: int, run: Run, base: Run | None) -> Html:
    change = f"one {step_word(run)}" if base is None else cost_change_text(base, run)
    spread = tag("small", run.seconds.spread_words) if run.seconds else None
    cost = tag("div", *filter(None, (tag("b", _work(run)), spread, tag("small", change))), class_="mv-variant-cost")
    parts = [_open_button("Open", variant, number), _fit(run), _output_html(run)]
    if variant.state == "running":
        parts.append(tag("small", f"{variant.phase} …", class_="mv-phase"))
    if variant.amiss:
        parts.append(tag("small", cut(variant.amiss, _MOST_WORDS), class_="mv-amiss"))
    return joined(cost, tag("div", *filter(None, parts), class_="mv-variant-says"))


def _work(run: Run) -> str:
    if run.seconds is not None:
        return f"{run.seconds.median * 1000:,.1f} ms" if run.seconds.median < 10 else f"{run.seconds.median:,.2f} s"
    return f"{run.flops / 1e12:,.1f} TFLOP" if run.flops else "–"


def _fit(run: Run) -> Html | None:
    fit = run.fit
    if fit is None:
        return None
    if fit.word == "close":
        return joined(tag("b", "≈ ", class_="mv-warn"), tag("b", "close"), tag("small", close_fit_text(run)))
    if fit.fits:
        spare = bytes_text(max(0, fit.usable_bytes - fit.peak_reserved_bytes))
        detail = f"{spare} to spare{', no optimizer' if optimizer_text(run) == 'no optimizer' else ''}"
        return joined(tag("b", "✓ ", class_="mv-good"), tag("b", "fits"), tag("small", detail))
    too_much = max(fit.too_much_bytes, 0)
    detail = f"{bytes_text(too_much)} too much" if too_much else f"runs out at event {count_text(fit.event or 0)}"
    return joined(tag("b", "✗ ", class_="mv-bad"), tag("b", "does not fit"), tag("small", detail))


def _output_html(run: Run) -> Html | None:
    verdict = verdict_of(run.numerics)
    if verdict is None:
        return None
    sentence = str(verdict["words"])
    short = str(verdict.get("short") or sentence.removesuffix(", as claimed"))
    return tag("small", f"output {cut(short)}", class_="mv-bad" if verdict.get("ok") is False else None, title=sentence)


def _state(variant: Variant, number: int) -> Html:
    """Return the phase of a variant without results, or its failure."""
    if variant.state == "waiting":
        return tag("div", tag("small", "waiting"), class_="mv-variant-says mv-wide-says")
    if variant.state == "running":
        phase = tag("small", f"{variant.phase} …", class_="mv-phase")
        return tag("div", phase, tag("i", class_="mv-working"), class_="mv-variant-says mv-wide-says")
    return _failed(variant, number)


_ENDS = {
    "cancelled": "cancelled",
    "refused": "not run",
    "timeout": "stopped",
    "host memory": "stopped",
    "out of memory": "ran out of memory",
    "killed": "its process died",
}


def _failed(variant: Variant, number: int) -> Html:
    parts = [
        tag("b", "✗ ", class_="mv-bad"),
        tag("b", _ENDS.get(variant.what, "failed")),
        tag("small", cut(variant.phase, _MOST_WORDS)),
    ]
    if variant.where and variant.what in ("exception", "killed"):
        parts.append(tag("details", tag("summary", "Where"), tag("pre", cut(variant.where, 4 * _MOST_WORDS))))
    if variant.run is None:
        parts.append(_open_button("Open what was recorded", variant, number))
    return tag(
        "div", *parts, class_="mv-variant-says mv-wide-says", role="alert" if variant.what != "cancelled" else None
    )


_SHOWN = 50


def kept_runs_value(runs: Sequence[KeptRun], fault: str = "") -> dict[str, Any]:
    version = "|".join([fault, *(f"{run.id}{run.name}" for run in runs)])
    return {"version": version, "html": _kept_runs_html(runs) if runs else "", "faults": {"kept": fault}, "parts": {}}


def _kept_runs_html(runs: Sequence[KeptRun]) -> Html:
    rows = [tag("tr", *_kept_run_cells(run)) for run in runs[:_SHOWN]]
    return tag(
        "details",
        tag("summary", tag("h2", f"Kept runs, {len(runs)}", class_="mv-h2")),
        tag("p", "Only this browser sees them. A run is deleted 30 days after it was last seen.", class_="mv-soft"),
        fault_place("kept"),
        table(_KEPT_HEADS, rows, "mv-table mv-kept-runs"),
    )


_KEPT_HEADS = (
    ("Name", None),
    ("Workload", None),
    ("Allocated", "mv-number"),
    ("Reserved", "mv-number"),
    ("Fits", None),
    (tag("span", "Actions", class_="mv-hidden"), None),
)
_ACTS = (("Open", "reopen"), ("Rename", "rename"), ("Delete", "delete"))


def _kept_run_cells(stored: KeptRun) -> list[Html]:
    name = tag("input", type="text", name_=f"name:{stored.id}", value=stored.name, aria_label=f"Name of {stored.name}")
    run = stored.run
    where = f"{run.mode} {'for' if run.mode == 'predicted' else 'on'} {run.device}"
    return [
        tag("td", name),
        tag("td", f"{run.request.workload}, {where}"),
        *(_kept_figures(run) if stored.is_current else [tag("td", _EARLIER, colspan=3, class_="mv-soft")]),
        tag("td", *(button(text, act, data_id=stored.id, aria_label=f"{text} {stored.name}") for text, act in _ACTS)),
    ]


_EARLIER = "Made by an earlier version. Open it for its peak."


def _kept_figures(run: Run) -> list[Html]:
    """The peaks of the timeline; beside them what is reserved on the card, where less is."""
    squeezed = reserved_on_card(run)
    limited = tag("small", f" on the card {bytes_text(squeezed)}") if squeezed is not None else ""
    return [
        tag("td", rounded(run.peak_allocated_bytes), class_="mv-number"),
        tag("td", rounded(run.peak_reserved_bytes), limited, class_="mv-number"),
        _fits_cell("" if run.fit is None else run.fit.word),
    ]
