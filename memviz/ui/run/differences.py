"""Output differences of a variant: a line per output on a logarithmic axis, and the band that rounding explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

from memviz.runner.jobs.service import Variant
from memviz.text import Html, cut, joined, tag

_MARGIN = 8.0
"""Allowed multiple of the expected rounding, as in the verdict; a test holds both to the same number."""
_LEAST, _MOST = 1e-9, 1.0
_TICKS = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
_MOST_OUTPUTS = 4


@dataclass(frozen=True)
class _Line:
    name: str
    relative: float
    """Relative L2 difference from the baseline; of losses, of the step that differs most."""
    explained: float
    """Difference that rounding and the noise between two equal runs explain."""
    where: str = ""


def differences_html(variant: Variant) -> Html:
    """Nothing for a variant without a comparison."""
    numerics = variant.run.numerics if variant.run is not None else None
    verdict = (numerics or {}).get("verdict")
    if numerics is None or not isinstance(verdict, dict):
        return Html("")
    caution = verdict.get("caution")
    words = [tag("b", str(verdict.get("words", "")), class_="mv-bad" if verdict.get("ok") is False else None)]
    words += [tag("small", f" {caution}", class_="mv-soft")] if caution else []
    lines = [] if verdict.get("short") == "not exercised" else list(_lines(numerics))
    ticks = [(f"left:{_place(tick):.2f}%", "1" if tick == 1 else f"1e{round(log10(tick))}") for tick in _TICKS]
    axis = [tag("i", tag("span", text), style=style) for style, text in ticks]
    scale = tag("p", tag("span", "identical"), tag("span", *axis), class_="mv-diff-axis", aria_hidden="true")
    title = f"{variant.label} against the baseline; grey: explained by rounding"
    is_plain = lines and verdict.get("ok") and not caution
    return tag(
        "section",
        tag("h2", "Output differences", title=title, class_="mv-h2"),
        "" if is_plain else tag("p", *words, class_="mv-diff-verdict"),
        joined(tag("ul", *map(_line_html, lines), class_="mv-diffs"), scale) if lines else "",
        tag("p", f"Reduced model: {numerics['on']}", class_="mv-soft") if "on" in numerics else "",
        class_="mv-differences",
    )


def _lines(numerics: Mapping[str, Any]) -> Iterator[_Line]:
    outputs = [output for output in numerics.get("outputs", ()) if isinstance(output, dict)]
    for output in outputs[:_MOST_OUTPUTS]:
        noise = _float(output.get("noise", {}).get("relative_l2"))
        yield _line(str(output.get("name", "output")), output, noise)
    losses = numerics.get("losses")
    if isinstance(losses, dict):
        yield from _loss_lines(losses, outputs)
    gradients = (numerics.get("gradients") or {}).get("parameters") or ()
    if gradients:
        worst = max(gradients, key=_relative)
        name = f"gradients ({len(gradients)})"
        yield _line(name, worst, _float(worst.get("noise")), f"at {worst.get('name', '')}")


def _line(name: str, place: Mapping[str, Any], noise: float, where: str = "") -> _Line:
    expected = _float((place.get("rounding") or {}).get("expected"))
    return _Line(name, _relative(place), _MARGIN * max(expected, noise), where)


def _loss_lines(losses: Mapping[str, Any], outputs: Sequence[Mapping[str, Any]]) -> Iterator[_Line]:
    """Losses of the steps, and what the steps did to the weights."""
    reference, again, own = (list(map(_float, losses.get(key) or ())) for key in ("reference", "again", "ours"))
    gaps = [abs(after - before) / abs(before) for before, after in zip(reference, own, strict=False) if before]
    noise = [abs(after - before) / abs(before) for before, after in zip(reference, again, strict=False) if before]
    expected = max((_float((output.get("rounding") or {}).get("expected")) for output in outputs), default=0.0)
    if gaps:
        explained = _MARGIN * max(expected, *noise)
        yield _Line(f"loss, {len(gaps)} steps", max(gaps), explained, f"at step {gaps.index(max(gaps)) + 1}")
    if losses.get("updates") is not None:
        yield _Line("weight updates", _float(losses["updates"]), 0.0)


def _relative(place: Mapping[str, Any]) -> float:
    return _float((place.get("difference") or {}).get("relative_l2"))


def _line_html(line: _Line) -> Html:
    is_beyond = 0 < line.explained < line.relative
    band = tag("i", class_="mv-diff-band", style=f"width:{_place(line.explained):.2f}%") if line.explained else Html("")
    dot = tag("i", class_=f"mv-diff-dot{' mv-beyond' if is_beyond else ''}", style=f"left:{_place(line.relative):.2f}%")
    text = "0" if not line.relative else f"{line.relative:.1e} relative"
    where = f" {cut(line.where)}" if line.where and line.relative else ""
    explained = f"; rounding explains up to {line.explained:.1e}" if line.explained else ""
    return tag(
        "li",
        tag("span", cut(line.name), class_="mv-diff-name"),
        tag("span", band, dot, class_="mv-diff-track", aria_hidden="true"),
        tag("span", text, tag("small", where), class_="mv-diff-figure"),
        title=f"{line.name}: {text}{where}{explained}",
    )


def _place(relative: float) -> float:
    """Percent from the left of a logarithmic axis, whose left end is equality."""
    if relative <= _LEAST:
        return 0.0
    return 100 * min(1.0, log10(relative / _LEAST) / log10(_MOST / _LEAST))


def _float(value: object) -> float:
    """Infinite figures travel as the text 'inf'."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
