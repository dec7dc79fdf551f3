"""The answer of the Run tab in two sentences: what it buys, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memviz.runner.run import Run
from memviz.runner.standing import Variant
from memviz.units import bytes_text, percent_text


def base_of(variants: Sequence[Variant], number: int) -> int:
    """Which variant this one is held against: the same workload with nothing switched on, or else the first."""
    if not any(each.request.optimizations for each in variants):
        return 0
    settings = variants[number].request.settings
    plain = (at for at, each in enumerate(variants) if not each.request.optimizations)
    return next((at for at in plain if variants[at].request.settings == settings), 0)


def run_verdict(variants: Sequence[Variant]) -> tuple[str, str]:
    """Of what is known by now; the baseline is the first."""
    bad = next((each for each in variants if is_bug(each.run)), None)
    if bad is not None and bad.run is not None:
        return f"{bad.label} does not keep its word.", _finding(bad.run)
    known = [(each.label, each.run) for each in variants if each.run is not None]
    if not known:
        failed = [each for each in variants if each.state == "failed"]
        return (failed[0].phase.split("\n")[0], "") if failed else ("", "")
    pairs = list(_pairs(variants))
    if not pairs:
        return _alone(known[0][1])
    pressed = [pair for pair in pairs if pair.base.fit is not None and not pair.base.fit.fits]
    if pressed:
        return _made_to_fit(pressed)
    best = max(pairs, key=lambda each: each.saved / each.base.peak_reserved_bytes)
    if best.saved <= 0:
        return f"Nothing here saves memory: the baseline reserves {bytes_text(best.base.peak_reserved_bytes)}.", ""
    share = percent_text(best.saved, best.base.peak_reserved_bytes)
    return f"{best.label} saves {bytes_text(best.saved)}, {share} of what is reserved.", _cost(best.base, best.run)


@dataclass(frozen=True)
class _Pair:
    label: str
    base: Run
    run: Run

    @property
    def saved(self) -> int:
        return self.base.peak_reserved_bytes - self.run.peak_reserved_bytes


def _pairs(variants: Sequence[Variant]) -> Iterator[_Pair]:
    for number, each in enumerate(variants):
        at = base_of(variants, number)
        base = variants[at].run
        if at != number and base is not None and base.peak_reserved_bytes and each.run is not None:
            yield _Pair(each.label, base, each.run)


def step_word(run: Run) -> str:
    return "forward pass" if "forward pass" in run.window else "step"


def _alone(run: Run) -> tuple[str, str]:
    first = f"This {step_word(run)} reserves {bytes_text(run.peak_reserved_bytes)} at its peak."
    if run.fit is None:
        return first, ""
    usable = bytes_text(run.fit.usable_bytes)
    return first, f"It fits in {usable}." if run.fit.fits else f"It does not fit in {usable}."


def _made_to_fit(pairs: Sequence[_Pair]) -> tuple[str, str]:
    """Of what fits the one that costs least."""
    fitting = [each for each in pairs if each.run.fit is not None and each.run.fit.fits]
    step, usable = step_word(pairs[0].base), pairs[0].base.fit
    if not fitting:
        least = bytes_text(min(each.run.peak_reserved_bytes for each in pairs))
        words = bytes_text(usable.usable_bytes) if usable else "this card"
        return f"Nothing here makes the {step} fit in {words}.", f"The least that any variant reserves is {least}."
    best = min(fitting, key=lambda each: (each.run.flops or 0, each.run.peak_reserved_bytes))
    return (
        f"{best.label} makes the {step} fit.",
        f"It saves {bytes_text(best.saved)}{_for(best.base, best.run)}.",
    )


def _cost(base: Run, run: Run) -> str:
    words = _for(base, run)
    return f"It costs{words.removeprefix(' for')}." if words else ""


def _for(base: Run, run: Run) -> str:
    if base.seconds and run.seconds and base.seconds.median:
        return f" for {_change(run.seconds.median / base.seconds.median - 1, 'time')}"
    if base.flops and run.flops:
        return f" for {_change(run.flops / base.flops - 1, 'work')}"
    return ""


def _change(share: float, what: str) -> str:
    if abs(share) < 0.0005:
        return f"no more {what}"
    return f"{percent_text(abs(share), 1)} {'more' if share > 0 else 'less'} {what}"


def change_words(base: Run, run: Run) -> str:
    """'+8 % work' for a row."""
    if base.seconds and run.seconds and base.seconds.median:
        return _signed(run.seconds.median / base.seconds.median - 1, "time")
    if base.flops and run.flops:
        return _signed(run.flops / base.flops - 1, "work")
    return ""


def _signed(share: float, what: str) -> str:
    if abs(share) < 0.0005:
        return f"the same {what}"
    sign = "+" if share > 0 else "\N{MINUS SIGN}"
    return f"{sign}{percent_text(abs(share), 1)} {what}"


def is_bug(run: Run | None) -> bool:
    verdict = (run.numerics or {}).get("verdict") if run is not None else None
    return isinstance(verdict, dict) and verdict.get("ok") is False


def _finding(run: Run) -> str:
    verdict = (run.numerics or {}).get("verdict", {})
    return f"It {verdict['finding']}" if verdict.get("finding") else f"{verdict.get('words', '')}."
