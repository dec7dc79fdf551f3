"""What stands below the variants of a run: how equal the outputs are, what was not seen, and what to take away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memviz.runner.jobs.order import Variant
from memviz.ui.html.markup import Html, joined, tag
from memviz.ui.html.words import cut
from memviz.ui.run.rank_classes import rank_classes_html


def below_html(variants: Sequence[Variant], chosen: int) -> Html:
    parts = tag("div", _outputs(variants), _unseen(variants), class_="mv-run-below")
    return joined(rank_classes_html(variants[chosen], chosen), parts, _take_away(variants, chosen))


def verdict_of(numerics: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    verdict = (numerics or {}).get("verdict")
    return verdict if isinstance(verdict, dict) and "words" in verdict else None


def _outputs(variants: Sequence[Variant]) -> Html:
    """The noise floor once, then each variant's worst output."""
    compared = [(variant, variant.run.numerics) for variant in variants if variant.run and variant.run.numerics]
    if not compared:
        return Html("")
    good = [(variant, numbers) for variant, numbers in compared if numbers.get("outputs")]
    rows = [_noise_row(good[0][1])] if good else []
    rows += _output_rows(compared)
    head = [
        tag("th", words, scope="col", class_=None if at in (0, 4) else "mv-number")
        for at, words in enumerate(_OUTPUT_HEADS)
    ]
    on = "; ".join(dict.fromkeys(str(numbers["on"]) for _, numbers in compared if "on" in numbers))
    return tag(
        "section",
        tag("h2", "Outputs against the baseline", class_="mv-h2"),
        tag("p", f"computed on a reduced model: {on}" if on else "", class_="mv-soft"),
        tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="mv-table"),
    )


_OUTPUT_HEADS = ("Variant", "absmax", "of the largest", "relative L2", "Verdict")


def _noise_row(numbers: Mapping[str, Any]) -> Html:
    noise = _worst(numbers, "noise")
    cells = ("same run twice", *_sizes(noise), "noise floor")
    return _output_cells(cells, soft=True)


def _output_rows(compared: Sequence[tuple[Variant, Mapping[str, Any]]]) -> list[Html]:
    """Variants of which the same is to be said share a row."""
    alike: dict[tuple[str, str, str, Html], list[str]] = {}
    for variant, numbers in compared:
        alike.setdefault(_about_outputs(numbers), []).append(cut(variant.label))
    return [_output_cells((", ".join(labels), *said)) for said, labels in alike.items()]


def _about_outputs(numbers: Mapping[str, Any]) -> tuple[str, str, str, Html]:
    if "error" in numbers:
        return "–", "–", "–", joined(f"could not be compared: {cut(str(numbers['error']))}")
    worst, verdict = _worst(numbers, "difference"), verdict_of(numbers) or {}
    marks: dict[Any, Html] = {True: tag("b", "✓ ", class_="mv-good"), False: tag("b", "✗ ", class_="mv-bad")}
    mark = marks.get(verdict.get("ok"), Html(""))
    caution = verdict.get("caution")
    words = joined(
        mark, str(verdict.get("words", "")), tag("small", f" {caution}", class_="mv-soft") if caution else ""
    )
    return *(("–", "–", "–") if verdict.get("short") == "not exercised" else _sizes(worst)), words


def _sizes(values: Mapping[str, Any]) -> tuple[str, str, str]:
    """absmax alone says nothing: 1e-4 is much of an output of 1e-4. Older runs lack that key."""
    largest = _plain(values.get("reference_absmax"))
    scale = _plain(values.get("absmax")) / largest if largest else 0.0
    return _number(values, "absmax"), "0" if scale == 0 else f"{scale:.1e}", _number(values, "relative_l2")


def _output_cells(cells: Sequence[object], *, soft: bool = False) -> Html:
    kinds = ("", "mv-number", "mv-number", "mv-number", "mv-soft" if soft else "")
    return tag("tr", *(tag("td", cell, class_=kind or None) for cell, kind in zip(cells, kinds, strict=True)))


def _worst(numbers: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    differences = [
        output[key]
        for output in numbers.get("outputs", ())
        if isinstance(output, dict) and isinstance(output.get(key), dict)
    ]
    return max(differences, key=lambda output: _plain(output.get("relative_l2")), default={})


def _number(values: Mapping[str, Any], key: str) -> str:
    value = _plain(values.get(key))
    return "0" if value == 0 else f"{value:.1e}"


def _plain(value: object) -> float:
    """Infinite figures travel as the text 'inf'."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0


def _unseen(variants: Sequence[Variant]) -> Html:
    run = next((variant.run for variant in variants if variant.run is not None), None)
    if run is None or not run.notes:
        return Html("")
    title = "What a prediction cannot see" if run.mode == "predicted" else "What to know about this measurement"
    notes = [tag("li", note) for note in run.notes]
    return tag("section", tag("h2", title, class_="mv-h2"), tag("ul", *notes, class_="mv-unseen"))


def _take_away(variants: Sequence[Variant], chosen: int) -> Html:
    """The same choice in a script and on the command line, of one variant."""
    each = variants[chosen]
    run = each.run
    if run is None:
        return Html("")
    parts = [code_html(f"On the command line: {cut(each.label)}", run.command)]
    if run.code:
        parts.insert(0, code_html(f"In your own script: {cut(each.label)}", run.code))
    return tag("section", *parts, class_="mv-take-away", aria_live="polite")


def code_html(title: str, text: str) -> Html:
    copy = tag("button", "Copy", type="button", data_mv_copy=text)
    return tag("div", tag("p", tag("span", title), copy), tag("pre", text), class_="mv-code-block")
