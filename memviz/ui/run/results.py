"""Results of runs: the headline, a table of variants, ranks, notes and code, and the kept runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memviz.analysis.comparing.changes import scores
from memviz.figures.colouring import colouring
from memviz.predictor.cards import short_name
from memviz.predictor.expected_error import ExpectedError
from memviz.results.run import (
    base_of,
    bill_of_run,
    close_fit_text,
    cost_change_text,
    gpus_of,
    host_sizes,
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
from memviz.runner.prices import run_cost
from memviz.runner.request import RankClass, Run, file_of_rank
from memviz.text import Html, cut, joined, rounded, tag
from memviz.ui.html.elements import button, fault_place, table
from memviz.ui.html.elements import number as number_cell
from memviz.ui.html.labels import RESERVED_KEYS, colour_style, mark
from memviz.ui.payloads.timelines import LinkedTrace
from memviz.ui.run.differences import differences_html
from memviz.ui.run.form_html import change_text
from memviz.ui.run.predictions import request_key
from memviz.ui.shell.session import MOST_COMPARED
from memviz.units import bytes_text, count_text, duration_text, work_text

_MOST = 64
_FITS = {"yes": ("✓ ", "fits", "mv-good"), "no": ("✗ ", "does not fit", "mv-bad"), "close": ("≈ ", "close", "mv-warn")}


def rank_classes_html(variant: Variant, number: int) -> Html:
    """Nothing of one GPU."""
    run = variant.run
    if run is None or not run.classes:
        return Html("")
    fullest = sorted(run.classes, key=lambda one: -one.peak_reserved_bytes)
    rows = [_class_row(one, run, variant.file, number) for one in fullest[:_MOST]]
    count, classes = count_text(gpus_of(run)), len(run.classes)
    text = f"Predicted: one rank for all {count}, which take the same memory."
    if classes > 1:
        more = f" The {_MOST} fullest classes are shown." if classes > _MOST else ""
        text = (
            f"Predicted: one rank of each of {count_text(classes)} classes that take the same memory; what stands "
            f"above is of rank {count_text(run.rank or 0)}, which reserves most of {count}.{more}"
        )
    heads = (
        ("Ranks", None),
        *((name, "mv-number") for name in ("allocated", "reserved", "weights")),
        *[("", None)] * 2,
    )
    return tag(
        "section",
        tag("h2", f"Ranks: {cut(variant.label)}", class_="mv-h2"),
        tag("p", text, class_="mv-soft"),
        table(heads, rows, "mv-table mv-rank-classes"),
    )


def _class_row(one: RankClass, run: Run, file: Path | None, number: int) -> Html:
    sizes = (one.peak_allocated_bytes, one.peak_reserved_bytes, one.weights_bytes)
    text = cut(rank_list(one.ranks))
    opens = Html("")
    if file is not None and file_of_rank(file, one.predicted_rank, run.rank).exists():
        label = f"Open the timeline of rank {one.predicted_rank}"
        opens = button("Open", "open", "mv-link", data_number=number, data_rank=one.predicted_rank, aria_label=label)
    name = tag("th", text[:1].upper() + text[1:], scope="row")
    return tag("tr", name, *(number_cell(bytes_text(size)) for size in sizes), _fits_cell(one.fit), tag("td", opens))


def _fits_cell(fit: str) -> Html:
    mark, words, kind = _FITS.get(fit, ("", "", ""))
    return tag("td", tag("b", mark, class_=kind), words) if words else tag("td")


def _notes_html(variants: Sequence[Variant]) -> Html:
    """Say for which run the figures are, how far they may be off, and what they leave out."""
    run = next((variant.run for variant in variants if variant.run is not None), None)
    if run is None:
        return Html("")
    usable = f" ({usable_text(run.fit)})" if run.fit else ""
    about = [run.describes, f"{run.device.removeprefix('NVIDIA ')}{usable}", f"Counted: {run.window}"]
    errors = {each.label: each.run.expected_error.sentence for each in variants if each.run and each.run.expected_error}
    if len(set(errors.values())) > 1:
        errors = {label: f"{label}. {sentence}" for label, sentence in errors.items()}
    is_predicted = run.mode == "predicted"
    left_out = "Not included in the prediction" if is_predicted else "Notes on this measurement"
    notes = [tag("li", note) for note in run.notes]
    bill = bill_of_run(run).headline
    sentences = (" · ".join(about), *dict.fromkeys(errors.values()), f"{bill.answer} {bill.reason}")
    return tag(
        "details",
        tag("summary", tag("h2", f"About this {'prediction' if is_predicted else 'measurement'}", class_="mv-h2")),
        *(tag("p", text, class_="mv-soft") for text in sentences),
        *([tag("h3", left_out), tag("ul", *notes, class_="mv-unseen")] if notes else []),
        class_="mv-about-run mv-more-of-run",
    )


def _commands(variant: Variant) -> Html:
    """One variant as code for a script and as a command."""
    run = variant.run
    if run is None:
        return Html("")
    label = cut(variant.label)
    parts = [code_html(f"In your own script: {label}", run.code)] if run.code else []
    parts.append(code_html(f"On the command line: {label}", run.command))
    if run.library_code:
        parts.insert(1, code_html("With libraries", run.library_code))
    return tag(
        "details",
        tag("summary", tag("h2", "Code and command", class_="mv-h2")),
        tag("div", *parts, class_="mv-take-away", aria_live="polite"),
        class_="mv-more-of-run",
    )


def code_html(title: str, text: str) -> Html:
    copy = tag("button", "Copy", type="button", data_mv_copy=text)
    return tag("div", tag("p", tag("span", title), copy), tag("pre", text, tabindex="0"), class_="mv-code-block")


_MOST_WORDS = 400


def results_html(status: OrderStatus, shown: int, *, has_code: bool = True) -> Html:
    """`shown` is the variant beside the baseline, whose outputs, notes, code and command follow the table."""
    variants = status.variants
    selected = variants[min(shown, len(variants) - 1)]
    ready = sum(variant.file is not None and variant.run is not None for variant in variants)
    words = "Compare both" if ready == 2 else f"Compare {min(ready, MOST_COMPARED)}"
    compare = button("Compare", "compare", "mv-link", aria_label=words, title=words)
    return joined(
        variants_table(variants, shown),
        tag("p", compare, class_="mv-run-compare") if ready > 1 else Html(""),
        differences_html(selected),
        rank_classes_html(selected, variants.index(selected)),
        *((_commands(selected), _notes_html(variants)) if has_code else ()),
    )


def head_html(status: OrderStatus) -> Html:
    """The verdict, and in one line for which card, and how far a prediction may be off; `_notes_html` has the rest."""
    best = variants_headline(status.variants)
    headline = best.headline
    if not headline.answer:
        # The line above says what is running.
        return Html("")
    run = status.variants[best.number].run
    is_too_much = run is not None and run.fit is not None and run.fit.word == "no"
    kind = "mv-verdict mv-does-not-fit" if is_too_much else "mv-verdict"
    title = tag("h1", headline.answer, " ", tag("span", headline.reason), class_=kind)
    runs = [variant.run for variant in status.variants if variant.run is not None]
    if not runs:
        return tag("header", title)
    where = "predicted for" if runs[0].mode == "predicted" else "measured on"
    facts = [tag("span", f"{where} {short_name(runs[0].device)}", title=f"Counted: {runs[0].window}")]
    if errors := [run.expected_error for run in runs if run.expected_error]:
        error = max(errors, key=lambda one: (one.is_lower_bound, not one.covered, one.share))
        facts.append(tag("span", _error_text(error), title=error.sentence))
    warnings = dict.fromkeys(text for run in runs for text in run.warnings)
    notes = [tag("p", text, class_="mv-note mv-warning") for text in warnings]
    return tag("header", title, tag("p", *facts, class_="mv-facts"), *notes)


def progress_text(status: OrderStatus) -> str:
    done = sum(variant.is_over for variant in status.variants)
    if status.before:
        others = "order" if status.before == 1 else "orders"
        return f"Waiting for the device: {count_text(status.before)} {others} of others first."
    now = next((f": {each.label}, {each.phase}" for each in status.variants if each.state == "running"), "")
    return f"Running variant {min(done + 1, len(status.variants))} of {len(status.variants)}{now}"


def _error_text(error: ExpectedError) -> str:
    """The widest error of the recordings like this, unless something in the run is in none of them."""
    if error.is_lower_bound:
        return "lower bound"
    if not error.recordings and not error.published:
        return "expected error unknown"
    text = f"± {100 * error.share:.1f} %"
    return text if error.covered else f"{text} of recordings"


def legend_html(traces: Sequence[LinkedTrace]) -> Html:
    """The kinds that are visible in the timelines, from the bottom of the stack up; lines have their labels."""
    pairs = [trace.pair for trace in traces]
    shown = {kind for score in scores(pairs) for kind in score.visible}
    order = colouring(*pairs[0]).labels
    keys = [mark("mv-kind mv-square", kind, colour_style(kind)) for kind in order if kind in shown]
    return tag("div", *keys, RESERVED_KEYS[0], class_="mv-legend")


def variants_table(variants: Sequence[Variant], shown: int) -> Html:
    # The card is the same for all.
    fit = next((variant.run.fit for variant in variants if variant.run and variant.run.fit), None)
    run = next((variant.run for variant in variants if variant.run is not None), None)
    step = step_word(run) if run else "step"
    is_estimated = not any(variant.run.seconds for variant in variants if variant.run)
    heads = (
        ("Variant", None),
        ("Reserved", "mv-number"),
        (f"Fits {bytes_text(fit.usable_bytes)}" if fit else "Fits", None),
        # What decides comes first: a narrow window shows the other columns by scrolling.
        ("Outputs", None),
        ("Allocated", "mv-number"),
        ("Compute", "mv-number"),
        (f"{step[:1].upper()}{step[1:]}{' (est.)' if is_estimated else ''}", "mv-number"),
    )
    rows = [_row(variants, at, is_shown=at == shown, is_marked=not is_estimated) for at in range(len(variants))]
    return tag("div", table(heads, rows, "mv-table mv-variants"), class_="mv-variants-frame")


def _row(variants: Sequence[Variant], number: int, *, is_shown: bool, is_marked: bool) -> Html:
    """With `is_marked` an estimated time says that it is one."""
    variant, at = variants[number], base_of(variants, number)
    run, base = variant.run, None if at == number else variants[at].run
    if run is not None and variant.state != "failed":
        cells = _cells(variant, run, base, _predicted(variants, variant), is_marked=is_marked)
    elif variant.state == "failed":
        cells = [_failed(variant, number)]
    elif variant.state == "waiting":
        cells = [tag("td", tag("small", "waiting"), colspan=6)]
    else:
        cells = [tag("td", tag("small", f"{variant.phase} …", class_="mv-phase"), colspan=6)]
    rank = tag("small", rank_text(run)) if run is not None and rank_text(run) else Html("")
    # Beside one variant the baseline is drawn already, so there is nothing to choose.
    is_beside = len(variants) == 2 and at == number and not is_shown
    if is_beside:
        name = tag("span", cut(variant.label))
    elif run is None:
        name = tag("b", cut(variant.label), title=variant.label)
    else:
        title = f"{variant.label}: show its timeline, outputs and code"
        pressed = {"aria_pressed": "true" if is_shown else "false", "title": title}
        name = button(cut(variant.label), "choose", "mv-choose", data_number=number, **pressed)
    acts = _actions(variant, number, is_baseline=at == number, is_shown=is_shown)
    actions = tag("small", *acts, class_="mv-variant-actions") if acts else Html("")
    return tag(
        "tr",
        tag("th", name, rank, actions, scope="row"),
        *cells,
        class_=f"mv-variant mv-is-{variant.state}{' mv-chosen' if is_shown else ''}",
    )


def _predicted(variants: Sequence[Variant], measured: Variant) -> Run | None:
    """Return the prediction of the same run, of one that was measured."""
    if measured.request.on != "cuda":
        return None
    key = request_key(measured.request)
    same = (variant.run for variant in variants if variant.request.on != "cuda" and request_key(variant.request) == key)
    return next(same, None)


def _difference(run: Run, predicted: Run, name: str) -> Html:
    """Show how far a measured figure is from the predicted one."""
    measured, expected = getattr(run, name), getattr(predicted, name)
    return tag("small", f"{100 * (measured - expected) / expected:+.1f} % of predicted") if expected else Html("")


def _cells(variant: Variant, run: Run, base: Run | None, predicted: Run | None, *, is_marked: bool) -> list[Html]:
    reserved = [tag("b", rounded(reserved_bytes(run)))]
    if predicted is not None:
        reserved.append(_difference(run, predicted, "peak_reserved_bytes"))
    elif base is not None:
        reserved.append(tag("small", change_text(run.peak_reserved_bytes - base.peak_reserved_bytes)))
    if reserved_on_card(run) is not None:
        reserved.append(tag("small", "without a limit ", rounded(run.peak_reserved_bytes)))
    allocated = [rounded(run.peak_allocated_bytes)]
    allocated += [tag("small", "while loading")] if run.peak_while_loading else []
    allocated += [_difference(run, predicted, "peak_allocated_bytes")] if predicted is not None else []
    if run.pinned_host_bytes:
        allocated.append(tag("small", "pinned on the host ", rounded(run.pinned_host_bytes)))
    # The column says already that it is compute.
    change = cost_change_text(base, run).removesuffix(" compute") if base is not None else ""
    outputs = [tag("small", cut(variant.amiss, _MOST_WORDS), class_="mv-amiss")] if variant.amiss else []
    if variant.state == "running":
        outputs.append(tag("small", f"{variant.phase} …", class_="mv-phase"))
    likely = None
    if run.expected_error is not None:
        least, most = run.expected_error.reserved_interval(reserved_bytes(run))
        likely = f"Likely reserved: {bytes_text(least)} to {bytes_text(most)}" if most > least else None
    return [
        number_cell(*reserved, title=likely),
        tag("td", _fit(run)),
        tag("td", _output_html(run, base), *outputs),
        number_cell(*allocated),
        number_cell(work_text(run.flops) if run.flops else "–", tag("small", change)),
        number_cell(*_time(run, is_marked=is_marked)),
    ]


def _actions(variant: Variant, number: int, *, is_baseline: bool, is_shown: bool) -> list[Html]:
    """Those of the row that is shown; what is pinned can always be taken out."""
    if variant.run is None or variant.file is None:
        return []
    actions = [_open_button("Open", variant, number)] if is_shown else []
    if variant.is_pinned:
        actions.append(button("Unpin", "unpin", "mv-link", data_number=number, aria_label=f"Unpin {variant.label}"))
    elif not is_baseline and is_shown and variant.request.on != "cuda":
        title = "Keep this row and its run when settings change"
        actions.append(button("Pin", "pin", "mv-link", data_number=number, title=title))
    return actions


def _open_button(label: str, variant: Variant, number: int) -> Html:
    return button(label, "open", "mv-link", data_number=number, aria_label=f"{label}: {variant.label}")


def _time(run: Run, *, is_marked: bool) -> list[Html | str]:
    """Measured, or the estimate's interval."""
    if run.seconds is not None:
        median = run.seconds.median
        text = f"{median * 1000:,.1f} ms" if median < 10 else f"{median:,.2f} s"
        return [text, tag("small", run.seconds.spread_words)]
    cost = run_cost(run) if run.flops else None
    if cost is None or cost.seconds_low is None or cost.seconds_high is None:
        return [tag("span", "–", title=f"The speed of {short_name(run.device)} is not known" if run.flops else None)]
    low, high = (duration_text(round(seconds * 1e6)) for seconds in (cost.seconds_low, cost.seconds_high))
    return [f"{low}–{high}", *([tag("small", "estimated")] if is_marked else [])]


def _fit(run: Run) -> Html:
    fit = run.fit
    if fit is None:
        return Html("")
    mark, words, kind = _FITS[fit.word]
    if run.fits_host is False and fit.word != "no":
        (mark, words, kind), detail = _FITS["no"], ""
    elif fit.word == "close":
        detail = close_fit_text(run)
    elif fit.fits:
        spare = bytes_text(max(0, fit.usable_bytes - fit.peak_reserved_bytes))
        detail = f"{spare} free{', no optimizer' if optimizer_text(run) == 'no optimizer' else ''}"
    else:
        too_much = max(fit.too_much_bytes, 0)
        detail = f"{bytes_text(too_much)} over" if too_much else f"out of memory at event {count_text(fit.event or 0)}"
    sizes = host_sizes(run)
    details = (tag("small", text) for text in (detail, sizes and f"host {sizes}") if text)
    return joined(tag("b", mark, class_=kind), tag("b", words), *details)


CHECKING = tag("small", "checking …")


def _output_html(run: Run, base: Run | None) -> Html:
    numerics = run.numerics or {}
    verdict = numerics.get("verdict")
    if not isinstance(verdict, dict) or "words" not in verdict:
        error = numerics.get("error")
        if error:
            return tag("small", f"could not be compared: {cut(str(error))}")
        return Html("–") if base is None or not run.request.optimizations else CHECKING
    sentence = str(verdict["words"])
    short = str(verdict.get("short") or sentence.removesuffix(", as claimed"))
    kind = {True: "mv-good", False: "mv-bad"}.get(verdict.get("ok"))  # type: ignore[arg-type]
    return tag("span", cut(short), class_=kind, title=sentence)


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
    if variant.run is None and variant.file is not None:
        parts.append(_open_button("Open what was recorded", variant, number))
    return tag("td", *parts, colspan=6, role="alert" if variant.what != "cancelled" else None)


_SHOWN = 50


def kept_runs_value(runs: Sequence[KeptRun], fault: str = "") -> dict[str, Any]:
    version = "|".join([fault, *(f"{run.id}{run.name}" for run in runs)])
    html = tag(
        "details",
        tag("summary", tag("h2", f"Kept runs, {len(runs)}", class_="mv-h2")),
        tag("p", "Only this browser sees them. A run is deleted 30 days after its last view.", class_="mv-soft"),
        fault_place("kept"),
        table(_KEPT_HEADS, [tag("tr", *_kept_run_cells(run)) for run in runs[:_SHOWN]], "mv-table mv-kept-runs"),
    )
    return {"version": version, "html": html if runs else "", "faults": {"kept": fault}, "parts": {}}


_KEPT_HEADS = (
    *(("Name", None), ("Workload", None), ("Allocated", "mv-number"), ("Reserved", "mv-number"), ("Fits", None)),
    (tag("span", "Actions", class_="mv-hidden"), None),
)
_ACTS = (("Open", "reopen"), ("Rename", "rename"), ("Delete", "delete"))


def _kept_run_cells(stored: KeptRun) -> list[Html]:
    name = tag("input", type="text", name_=f"name:{stored.id}", value=stored.name, aria_label=f"Name of {stored.name}")
    run = stored.run
    where = f"{run.mode} {'for' if run.mode == 'predicted' else 'on'} {run.device}"
    figures = [tag("td", "Made by an earlier version. Open it for its peak.", colspan=3, class_="mv-soft")]
    if stored.is_current:
        # The peaks of the timeline; beside them what is reserved on the card, where less is.
        squeezed = reserved_on_card(run)
        limited = tag("small", f" on the card {bytes_text(squeezed)}") if squeezed is not None else ""
        figures = [
            number_cell(rounded(run.peak_allocated_bytes)),
            number_cell(rounded(run.peak_reserved_bytes), limited),
            _fits_cell("" if run.fit is None else "no" if run.fits_host is False else run.fit.word),
        ]
    buttons = [button(text, act, data_id=stored.id, aria_label=f"{text} {stored.name}") for text, act in _ACTS]
    return [tag("td", name), tag("td", f"{run.request.workload}, {where}"), *figures, tag("td", *buttons)]
