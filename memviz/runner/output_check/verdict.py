"""The verdict on one change: whether it keeps the outputs as it claims, and the first place where it does not.

Rounding is derived (`difference.py`), never tuned. An output whose signal has died out in the layers before proves
nothing, and the verdict says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from memviz.runner.output_check.difference import (
    MARGIN,
    Difference,
    Gradients,
    LayerDifference,
    LossCurve,
    Rounding,
    one_rounding,
    unit_roundoff,
)
from memviz.runner.output_check.model_runs import NotExercised
from memviz.runner.plan import Claim
from memviz.units import percent_text

_PLACE = re.compile(r"(?:^|\.)(?:(?P<list>[A-Za-z_]\w*)\.)?(?P<index>\d+)(?:\.(?P<inside>[^\d].*))?$")


def scientific(value: float | None) -> str:
    """'1.3e-07'; nothing at all is '0'."""
    if value is None:
        return "–"
    if math.isnan(value) or math.isinf(value):
        return "not a number" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"
    return "0" if value == 0 else f"{value:.1e}"


def share_text(value: float) -> str:
    """A relative difference: '139 %', '2.8 %', and '2.1e-07' where a percentage would have too many zeros."""
    return percent_text(value, 1) if 0.001 <= abs(value) < math.inf else scientific(value)


def layer_title(path: str) -> str:
    """'layers.0' is 'layer 0', 'transformer_blocks.3.ff' is 'ff of transformer block 3', '' the output."""
    if not path:
        return "the output"
    match = _PLACE.search(path)
    if match is None:
        return path
    list_name = (match["list"] or "").replace("_", " ").strip()
    name = "layer" if len(list_name) < 3 else list_name.removesuffix("s")
    block = f"{name} {match['index']}"
    return f"{match['inside']} of {block}" if match["inside"] else block


HIDDEN_DIGIT = 0.1
"""Below this share an error in what varies shows ten times smaller in the whole: a decimal digit is hidden."""


@dataclass(frozen=True)
class Signal:
    input_std: float | None
    """Standard deviation of the largest floating point input; None if there is none."""
    output_std: float
    varying: float
    """Norm of what differs between the rows of the output, over its whole norm; 1 where there is one row."""

    @property
    def words(self) -> str:
        """Why equal outputs prove little; nothing where they do."""
        if self.varying < HIDDEN_DIGIT:
            return (
                f"Only {share_text(self.varying)} of the output varies from row to row, the rest is constant, like a "
                f"bias, so equal outputs prove little."
            )
        if self.input_std is not None and self.output_std < HIDDEN_DIGIT**2 * self.input_std:
            return (
                f"The output's standard deviation is {scientific(self.output_std)}, its input's "
                f"{scientific(self.input_std)}; such a small output proves little."
            )
        return ""


def signal_of(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> Signal | None:
    """Measure the signal in the largest floating point output; None if there is none."""
    output = _largest_tensor(outputs)
    if output is None:
        return None
    largest_input = _largest_tensor(inputs)
    rows = output.to(torch.float64).reshape(-1, output.shape[-1] if output.dim() else 1)
    total, spread = float(rows.norm()), float((rows - rows.mean(dim=0)).norm())
    share = spread / total if len(rows) > 1 and total else 1.0
    return Signal(_std(largest_input) if largest_input is not None else None, _std(output), share)


def _largest_tensor(tensors: Iterable[Tensor]) -> Tensor | None:
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    return max(floating, key=Tensor.numel, default=None)


def _std(values: Tensor) -> float:
    deviation = float(values.to(torch.float64).std(correction=0))
    return deviation if math.isfinite(deviation) else 0.0


CLAIMS = {
    "bitwise": "bitwise equal output",
    "rounding": "equal output up to rounding",
    "training": "equal output up to rounding for the same weights",
    "lossy": "no more error than its storage dtype explains",
}
BUG = "This is a bug, not rounding."
NOT_EXERCISED = "not exercised"


@dataclass(frozen=True)
class Verdict:
    ok: bool | None
    """None if undecided."""
    words: str
    place: str
    """Path of the layer, name of the output or of the gradient, where something is wrong; else empty."""
    finding: str
    """Problem found there, as the end of a sentence; empty where nothing is wrong."""
    caution: str
    """Why this proves less than it seems; empty where it does not."""
    short: str = ""
    """The words for a narrow column: 'bitwise equal', 'not exercised'."""

    def sentence(self, title: str) -> str:
        """'Split feed-forward claims equal output up to rounding, but layer 0 differs by 139 %. This is ...'"""
        return f"{title} {self.finding}" if self.finding else f"{title}: {self.words}."


@dataclass(frozen=True)
class OutputDifference:
    name: str
    difference: Difference
    noise: Difference
    """Difference between two equal runs: smaller differences are not significant."""
    rounding: Rounding


@dataclass(frozen=True)
class LaterGap:
    """Between both models once more, after the same weights have moved in both."""

    kind: Literal["output", "gradient"]
    name: str
    gap: float
    """Relative L2; of a gradient, relative to all of them as one vector."""


@dataclass(frozen=True)
class Numerics:
    claim: Claim
    outputs: tuple[OutputDifference, ...]
    layers: tuple[LayerDifference, ...]
    """Each block, then its parts, in the model's order. Empty where bitwise equal outputs left nothing to find."""
    gradients: Gradients | None
    losses: LossCurve | None
    signal: Signal | None
    stored: str | None
    """For a lossy change, the type that weights are stored in, as in 'float8_e4m3fn'."""
    stored_loss: float | None
    """Relative RMS change of the whole model's weights from storing them in that dtype."""
    notes: tuple[str, ...]
    beside_stored: Numerics | None = None
    """For a lossy change, the same against the reference with its weights rounded as they are stored: what storing
    explains is taken off there, and what is left must be rounding. None where no type of storage was found."""
    later: tuple[LaterGap, ...] = ()
    """Empty where the changed model has not the same weights, by name and type."""
    changes: int = 1
    """How many the compared change consists of."""
    not_exercised: tuple[NotExercised, ...] = ()
    """Those of them that computed nothing here."""
    sees_less: bool = False
    """A change has the model compute from a part of what it computed from: however far outputs part, that is no bug."""
    adapters: bool = False
    """Both train the same adapters, which the reference computes merged into its weights."""

    @property
    def same(self) -> bool:
        """No bit of any result differs."""
        bitwise = all(place.difference.bitwise for place in _findings(self))
        return bitwise and (self.losses is None or self.losses.bitwise)

    @cached_property
    def verdict(self) -> Verdict:
        places = list(_findings(self))
        wrong = _broken_verdict(self, places)
        if wrong is not None:
            return wrong
        decide = {"bitwise": _bitwise, "rounding": _rounding, "training": _training, "lossy": _lossy}[self.claim]
        verdict = decide(self, places)
        return verdict if verdict.finding else _of_before(self, places) or _as_exercised(self, verdict)

    def as_json(self) -> dict[str, Any]:
        """Plain values with every digit; infinite floats as the text 'inf'."""
        return {"verdict": to_plain(self.verdict), **to_plain(self)}


def to_plain(value: Any) -> Any:
    """JSON has no infinity: such floats travel as the texts that float() reads."""
    if is_dataclass(value) and not isinstance(value, type):
        return {attribute.name: to_plain(getattr(value, attribute.name)) for attribute in fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@dataclass(frozen=True)
class _Finding:
    kind: Literal["layer", "output", "gradient"]
    place: str
    title: str
    """'layer 0', 'the output', 'the gradient of proj.weight'."""
    difference: Difference
    rounding: Rounding
    noise: float
    """Relative L2 between two runs of the reference."""

    @property
    def gap(self) -> float:
        return self.difference.relative_l2


def _as_exercised(numerics: Numerics, verdict: Verdict) -> Verdict:
    """Nothing is called equal that computed nothing."""
    idle = numerics.not_exercised
    if not idle:
        return verdict
    if len(idle) >= numerics.changes:
        reasons = "; ".join(dict.fromkeys(change.reason for change in idle))
        return Verdict(None, f"{NOT_EXERCISED}: {reasons}", "", "", "", NOT_EXERCISED)
    idle_text = "; ".join(f"{change.title} ({change.reason})" for change in idle)
    text = f"{NOT_EXERCISED}: {idle_text}. The rest: {verdict.words}"
    return replace(verdict, ok=None, words=text, short="partly exercised")


def _findings(numerics: Numerics) -> Iterator[_Finding]:
    """In the order in which a fault is to be looked for: layers from the first, then outputs, then gradients."""
    for layer in numerics.layers:
        yield _Finding("layer", layer.path, layer_title(layer.path), layer.alone, layer.rounding, 0.0)
    for output in numerics.outputs:
        title = "the output" if len(numerics.outputs) == 1 else f"output {output.name}"
        yield _Finding("output", output.name, title, output.difference, output.rounding, output.noise.relative_l2)
    for gradient in numerics.gradients.parameters if numerics.gradients else ():
        title = f"the gradient of {gradient.name}"
        yield _Finding("gradient", gradient.name, title, gradient.difference, gradient.rounding, gradient.noise)


def _broken_verdict(numerics: Numerics, places: list[_Finding]) -> Verdict | None:
    """Return a verdict on differences that no claim allows."""
    for place in places:
        if count := place.difference.nonfinite_differ:
            what = f"{count:,} values of {place.title} are finite on one side only."
            return _suspicious_verdict(numerics, place.place, what)
    if numerics.losses is not None and not numerics.losses.finite:
        return _suspicious_verdict(numerics, "loss", "the loss is not finite, but the reference's is.")
    missing = numerics.gradients.only_reference if numerics.gradients else ()
    if missing and numerics.gradients and not numerics.gradients.only_ours and numerics.gradients.parameters:
        return _suspicious_verdict(numerics, missing[0], f"{missing[0]} gets no gradient.")
    return None


def _of_before(numerics: Numerics, places: list[_Finding]) -> Verdict | None:
    """Weights or sums of an earlier step show in the next: far more than there was between the two before."""
    before = {(finding.kind, finding.place): finding for finding in places}
    for later in numerics.later:
        place = before.get((later.kind, later.name))
        if place is None:
            continue
        if later.gap > MARGIN * max(place.rounding.expected, _relative_gap(place, numerics), place.noise):
            of = " of all gradients" if later.kind == "gradient" else ""
            what = f"after the weights changed, {place.title} differs by {share_text(later.gap)}{of}"
            return _suspicious_verdict(numerics, later.name, f"{what}: stale values are in it. {BUG}")
    return None


def _bitwise(numerics: Numerics, places: list[_Finding]) -> Verdict:
    """The claim is about outputs; gradients that are added up in another type may differ by rounding."""
    noisy = any(place.noise > 0 for place in places)
    rounded = False
    for place in places:
        # Layers run once only; where outputs are not the same twice, theirs need not be.
        within_noise = place.gap <= MARGIN * place.noise or (noisy and place.kind == "layer")
        if place.difference.bitwise or within_noise:
            continue
        if _is_wrong(place, numerics):
            return _suspicious_verdict(numerics, place.place, f"{place.title} differs by {_size_text(place)}. {BUG}")
        if place.kind != "gradient":
            reason = "That is rounding, but it claims equality."
            return _suspicious_verdict(numerics, place.place, f"{place.title} differs by {_size_text(place)}. {reason}")
        rounded = True
    losses = numerics.losses
    if losses is not None and not rounded and losses.worst > MARGIN * losses.noise:
        return _suspicious_verdict(
            numerics, "loss", f"the losses of {len(losses.ours)} steps drift apart by {share_text(losses.worst)}."
        )
    if all(place.difference.bitwise for place in places if place.kind != "gradient"):
        more = "; gradients equal up to rounding" if rounded else ""
        return _fine_verdict(numerics, f"bitwise equal, as claimed{more}", short="bitwise equal")
    largest = max(place.noise for place in places)
    text = f"as equal as two runs without it, which differ by up to {scientific(largest)}"
    return _fine_verdict(numerics, text, short="as equal as two runs without it")


def _rounding(numerics: Numerics, places: list[_Finding]) -> Verdict:
    beyond = _beyond_rounding(numerics, places)
    if beyond is not None:
        return _suspicious_verdict(numerics, beyond.place, f"{beyond.what}{beyond.why}", ok=beyond.ok)
    if numerics.adapters:
        text = "after training, equal up to rounding to adapters merged into the weights"
        return _fine_verdict(numerics, text, short="equal up to rounding, adapters trained")
    if all(place.difference.bitwise for place in places):
        return _fine_verdict(numerics, "bitwise equal, more than claimed", short="bitwise equal")
    return _fine_verdict(numerics, "equal up to rounding, as claimed", short="equal up to rounding")


def _training(numerics: Numerics, places: list[_Finding]) -> Verdict:
    """Judge outputs for the same weights; the divergence of training steps is reported, not judged."""
    verdict, losses = _rounding(numerics, places), numerics.losses
    if verdict.finding or losses is None or losses.updates is None:
        return verdict
    steps = f"{len(losses.ours)} optimizer steps"
    if losses.updates > 1:
        what = f"{steps} change the weights differently, by {share_text(losses.updates)} of the baseline's change."
        return _suspicious_verdict(numerics, "loss", what)
    parted = f"{steps} change the weights differently from the baseline, by {share_text(losses.updates)}"
    # For the same weights nothing else is computed, unless something else was applied too.
    text = parted if numerics.changes == 1 else f"{verdict.words}; {parted}"
    short = f"steps differ by {share_text(losses.updates)}"
    return replace(verdict, words=text, short=short)


@dataclass(frozen=True)
class _Beyond:
    """A difference that rounding does not explain."""

    place: str
    what: str
    why: str
    ok: bool | None


def _beyond_rounding(numerics: Numerics, places: list[_Finding]) -> _Beyond | None:
    wrong = [place for place in places if _is_wrong(place, numerics)]
    if wrong:
        first = _innermost_finding(wrong)
        return _Beyond(first.place, f"{first.title} differs by {_size_text(first)}", f". {BUG}", ok=False)
    for place in places:
        dtypes = [getattr(torch, name) for name in place.difference.dtypes]
        roundings = [one_rounding(dtype) for dtype in dtypes if dtype.is_floating_point]
        rounding, floor = place.rounding, max([place.rounding.floor or 0.0, *roundings])
        beyond_noise = place.gap > MARGIN * max(rounding.fine, place.noise)
        if rounding.exact is not None and beyond_noise and place.gap > MARGIN * floor:
            what = f"{place.title} loses {place.gap / floor:.0f} times as much as the reference to rounding"
            return _Beyond(place.place, what, "; in float64 both agree.", ok=None)
    return None


def _is_wrong(place: _Finding, numerics: Numerics) -> bool:
    """Further apart than rounding explains, and still so in float64 where that could be tried."""
    rounding = place.rounding
    if place.gap <= MARGIN * max(rounding.fine, place.noise):
        return False
    if rounding.exact is not None:
        return rounding.exact > MARGIN * rounding.fine
    return _relative_gap(place, numerics) > MARGIN * rounding.expected


def _relative_gap(place: _Finding, numerics: Numerics) -> float:
    """Relative difference, for gradients to the norm of all: one that is zero up to rounding has no scale."""
    total = numerics.gradients.size if place.kind == "gradient" and numerics.gradients else 0.0
    return place.difference.l2 / total if total else place.gap


def _innermost_finding(wrong: list[_Finding]) -> _Finding:
    """The first block that is wrong, and of its wrong parts the worst."""
    first = wrong[0]
    parts = [part for part in wrong[1:] if part.kind == "layer" and part.place.startswith(f"{first.place}.")]
    return max(parts, key=lambda part: part.gap, default=first)


def _lossy(numerics: Numerics, places: list[_Finding]) -> Verdict:
    if all(place.difference.bitwise for place in places):
        return _fine_verdict(numerics, "bitwise equal, more than claimed", short="bitwise equal")
    against_stored = numerics.beside_stored
    beyond = _beyond_rounding(against_stored, list(_findings(against_stored))) if against_stored is not None else None
    if beyond is not None:
        what = f"{beyond.what} from the same model with weights rounded to {numerics.stored}{beyond.why}"
        return _suspicious_verdict(numerics, beyond.place, what, ok=beyond.ok)
    later = _of_before(against_stored, list(_findings(against_stored))) if against_stored is not None else None
    if later is not None:
        return _suspicious_verdict(numerics, later.place, later.words.removeprefix("suspicious: "))
    for place in places:
        if _relative_gap(place, numerics) > 1 and not numerics.sees_less:
            what = f"{place.title} differs by {_size_text(place)}, more than the signal itself."
            return _suspicious_verdict(numerics, place.place, what)
    size = max((output.difference.relative_l2 for output in numerics.outputs), default=0.0)
    if numerics.stored is None:
        text = f"the output differs by {share_text(size)}, and no storage dtype gives an expected error"
        return _fine_verdict(numerics, f"lossy, as claimed: {text}", ok=None, short=f"differs by {share_text(size)}")
    one = unit_roundoff(getattr(torch, numerics.stored))
    text = (
        f"expected error for {numerics.stored}: storage changes a weight by up to {share_text(one)}, "
        f"the output by {share_text(size)}"
    )
    return _fine_verdict(numerics, text, short=f"expected error for {numerics.stored}")


def _size_text(place: _Finding) -> str:
    if place.gap:
        return share_text(place.gap)
    one, other = place.difference.dtypes
    return "the sign of a zero" if one == other else f"the type, {one} and {other}"


def _suspicious_verdict(numerics: Numerics, place: str, what: str, *, ok: bool | None = False) -> Verdict:
    text = f"suspicious: {what}"
    return Verdict(ok, text, place, f"claims {CLAIMS[numerics.claim]}, but {what}", "", text.rstrip("."))


def _fine_verdict(numerics: Numerics, text: str, *, ok: bool | None = True, short: str) -> Verdict:
    """A weak signal takes the proof away, unless the layers alone have been compared."""
    weak = numerics.signal.words if numerics.signal is not None else ""
    if weak and numerics.layers:
        weak += " Single layers were compared too."
    elif weak:
        ok = None
    other = "It trains other weights than the baseline, so training results differ." if numerics.adapters else ""
    return Verdict(ok, text, "", "", " ".join(filter(None, (other, weak))), short)
