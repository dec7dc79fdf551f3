"""Does the change keep the answers, as it claims? In a few words, with the place where it does not.

What counts as rounding is derived in `rounding.py`. A difference within MARGIN times what float32 itself would cost is
rounding. A larger one is tried in float64: if it stays, it is no rounding; if it vanishes, it is rounding, but a
rewrite that loses more than MARGIN times what the reference loses is named as that. Only where float64 cannot be tried
does the formula for the type alone decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from memviz.runner.output_check.difference import Difference
from memviz.runner.output_check.rounding import MARGIN, one_rounding, unit_roundoff
from memviz.runner.output_check.text import scientific, share_text, spoken

if TYPE_CHECKING:
    from memviz.runner.output_check.layers import Rounding
    from memviz.runner.output_check.numerics import Numerics

CLAIMS = {
    "bitwise": "bitwise equal output",
    "rounding": "equal output up to rounding",
    "lossy": "no more loss than its type of storage explains",
}
BUG = "This is a bug, not rounding."


@dataclass(frozen=True)
class Verdict:
    ok: bool | None
    """None: it cannot be said."""
    words: str
    place: str
    """Path of the layer, name of the output or of the gradient, where something is wrong; else empty."""
    finding: str
    """What was found there, as a sentence without its beginning; empty where nothing is wrong."""
    caution: str
    """Why this proves less than it seems; empty where it does not."""

    def sentence(self, title: str) -> str:
        """'Split feed-forward claims equal output up to rounding, but layer 0 differs by 139 %. This is ...'"""
        return f"{title} {self.finding}" if self.finding else f"{title}: {self.words}."


@dataclass(frozen=True)
class _Finding:
    kind: Literal["layer", "output", "gradient"]
    place: str
    said: str
    """'layer 0', 'the output', 'the gradient of proj.weight'."""
    difference: Difference
    rounding: Rounding | None
    noise: float
    """Relative L2 between two runs of the reference."""

    @property
    def gap(self) -> float:
        return self.difference.relative_l2


def judge(found: Numerics) -> Verdict:
    places = list(_places(found))
    wrong = _broken(found, places)
    if wrong is not None:
        return wrong
    decide = {"bitwise": _bitwise, "rounding": _rounding, "lossy": _lossy}[found.claim]
    verdict = decide(found, places)
    return verdict if verdict.finding else _of_before(found, places) or verdict


def _places(found: Numerics) -> Iterator[_Finding]:
    """In the order in which a fault is to be looked for: layers from the first, then outputs, then gradients."""
    for layer in found.layers:
        yield _Finding("layer", layer.path, spoken(layer.path), layer.alone, layer.rounding, 0.0)
    for each in found.outputs:
        said = "the output" if len(found.outputs) == 1 else f"output {each.name}"
        yield _Finding("output", each.name, said, each.difference, each.rounding, each.noise.relative_l2)
    for gradient in found.gradients.parameters if found.gradients else ():
        said = f"the gradient of {gradient.name}"
        yield _Finding("gradient", gradient.name, said, gradient.difference, gradient.rounding, gradient.noise)


def _broken(found: Numerics, places: list[_Finding]) -> Verdict | None:
    """What no claim allows."""
    for each in places:
        count = each.difference.nonfinite_differ
        if count:
            what = f"{count:,} values of {each.said} are finite on one side only"
            return _suspicious(found, each.place, f"{what}.")
    if found.losses is not None and not found.losses.finite:
        return _suspicious(found, "loss", "the loss is not finite where the reference's is.")
    missing = found.gradients.only_reference if found.gradients else ()
    if missing and found.gradients and not found.gradients.only_ours and found.gradients.parameters:
        return _suspicious(found, missing[0], f"{missing[0]} gets no gradient.")
    return None


def _of_before(found: Numerics, places: list[_Finding]) -> Verdict | None:
    """Weights or sums of an earlier step show in the next: far more than there was between the two before."""
    before = {(each.kind, each.place): each for each in places}
    for later in found.later:
        place = before.get((later.kind, later.name))
        if place is None:
            continue
        allowed = max(place.rounding.expected if place.rounding else 0.0, _gap(place, found), place.noise)
        if later.gap > MARGIN * allowed:
            of = " of all gradients" if later.kind == "gradient" else ""
            what = f"once the weights have changed, {place.said} differs by {share_text(later.gap)}{of}"
            return _suspicious(found, later.name, f"{what}: something of before is still in it. {BUG}")
    return None


def _bitwise(found: Numerics, places: list[_Finding]) -> Verdict:
    """The claim is about outputs; gradients that are added up in another type may differ by rounding."""
    noisy = any(each.noise > 0 for each in places)
    rounded = False
    for each in places:
        if each.difference.bitwise or _within_noise(each, noisy=noisy):
            continue
        if _beyond_type(each, found):
            return _suspicious(found, each.place, f"{each.said} differs by {_size(each)}. {BUG}")
        if each.kind != "gradient":
            reason = "That is rounding, and not the equality it claims."
            return _suspicious(found, each.place, f"{each.said} differs by {_size(each)}. {reason}")
        rounded = True
    losses = found.losses
    if losses is not None and not rounded and losses.worst > MARGIN * losses.noise:
        return _suspicious(
            found, "loss", f"the losses of {len(losses.ours)} steps drift apart by {share_text(losses.worst)}."
        )
    if all(each.difference.bitwise for each in places if each.kind != "gradient"):
        return _fine(found, "bitwise equal, as claimed" + ("; gradients equal up to rounding" if rounded else ""))
    largest = max(each.noise for each in places)
    return _fine(found, f"as equal as the same run twice, which differs by up to {scientific(largest)}")


def _within_noise(place: _Finding, *, noisy: bool) -> bool:
    """Layers run once only; where outputs are not the same twice, theirs need not be."""
    return place.gap <= MARGIN * place.noise or (noisy and place.kind == "layer")


def _rounding(found: Numerics, places: list[_Finding]) -> Verdict:
    beyond = _beyond_rounding(found, places)
    if beyond is not None:
        return _suspicious(found, beyond.place, f"{beyond.what}{beyond.why}", ok=beyond.ok)
    if all(each.difference.bitwise for each in places):
        return _fine(found, "bitwise equal, more than claimed")
    return _fine(found, "equal up to rounding, as claimed")


@dataclass(frozen=True)
class _Beyond:
    """What rounding does not explain."""

    place: str
    what: str
    why: str
    ok: bool | None


def _beyond_rounding(found: Numerics, places: list[_Finding]) -> _Beyond | None:
    wrong = [each for each in places if _is_wrong(each, found)]
    if wrong:
        first = _innermost(wrong)
        return _Beyond(first.place, f"{first.said} differs by {_size(first)}", f". {BUG}", ok=False)
    for each in places:
        if _is_unstable(each):
            floor = max(each.rounding.floor or 0.0, _one_rounding(each)) if each.rounding else 0.0
            what = f"{each.said} loses {each.gap / floor:.0f} times what the reference loses to rounding"
            return _Beyond(each.place, what, "; in float64 both agree.", ok=None)
    return None


def _is_wrong(place: _Finding, found: Numerics) -> bool:
    """Further apart than rounding explains, and still so in float64 where that could be tried."""
    rounding = place.rounding
    if rounding is None or place.gap <= MARGIN * max(rounding.fine, place.noise):
        return False
    if rounding.exact is not None:
        return rounding.exact > MARGIN * rounding.fine
    return _beyond_type(place, found)


def _beyond_type(place: _Finding, found: Numerics) -> bool:
    """Further apart than the formula for the type allows."""
    return place.rounding is not None and _gap(place, found) > MARGIN * place.rounding.expected


def _gap(place: _Finding, found: Numerics) -> float:
    """A gradient that is zero but for rounding differs from itself by any factor; beside all others it is nothing."""
    whole = found.gradients.size if place.kind == "gradient" and found.gradients else 0.0
    return place.difference.l2 / whole if whole else place.gap


def _is_unstable(place: _Finding) -> bool:
    rounding = place.rounding
    if rounding is None or rounding.exact is None or place.gap <= MARGIN * max(rounding.fine, place.noise):
        return False
    return place.gap > MARGIN * max(rounding.floor or 0.0, _one_rounding(place))


def _one_rounding(place: _Finding) -> float:
    dtypes = [getattr(torch, name) for name in place.difference.dtypes]
    return max((one_rounding(each) for each in dtypes if each.is_floating_point), default=0.0)


def _innermost(wrong: list[_Finding]) -> _Finding:
    """The first block that is wrong, and of its wrong parts the worst."""
    first = wrong[0]
    parts = [each for each in wrong[1:] if each.kind == "layer" and each.place.startswith(f"{first.place}.")]
    return max(parts, key=lambda each: each.gap, default=first)


def _lossy(found: Numerics, places: list[_Finding]) -> Verdict:
    if all(each.difference.bitwise for each in places):
        return _fine(found, "bitwise equal, more than claimed")
    beside = found.beside_stored
    beyond = _beyond_rounding(beside, list(_places(beside))) if beside is not None else None
    if beyond is not None:
        what = f"{beyond.what} from the same with its weights rounded to {found.stored}{beyond.why}"
        return _suspicious(found, beyond.place, what, ok=beyond.ok)
    for each in places:
        if _gap(each, found) > 1:
            what = f"{each.said} differs by {_size(each)}, more than the signal itself."
            return _suspicious(found, each.place, what)
    size = max((each.difference.relative_l2 for each in found.outputs), default=0.0)
    if found.stored is None:
        said = f"the output differs by {share_text(size)}, and no type of storage says how much is right"
        return _fine(found, f"lossy, as claimed: {said}", ok=None)
    one = unit_roundoff(getattr(torch, found.stored))
    words = (
        f"expected loss for {found.stored}: storing moves a weight by up to {share_text(one)} of itself, "
        f"the output by {share_text(size)}"
    )
    return _fine(found, words)


def _size(place: _Finding) -> str:
    if place.gap:
        return share_text(place.gap)
    return f"the type, {' and '.join(place.difference.dtypes)}" if not _same_type(place) else "the sign of a zero"


def _same_type(place: _Finding) -> bool:
    return place.difference.dtypes[0] == place.difference.dtypes[1]


def _suspicious(found: Numerics, place: str, what: str, *, ok: bool | None = False) -> Verdict:
    return Verdict(ok, f"suspicious: {what}", place, f"claims {CLAIMS[found.claim]}, but {what}", "")


def _fine(found: Numerics, words: str, *, ok: bool | None = True) -> Verdict:
    """A weak signal takes the proof away, unless the layers alone have been compared."""
    weak = found.signal.words if found.signal is not None else ""
    if weak and found.layers:
        weak += " The layers alone were compared, too."
    elif weak:
        ok = None
    return Verdict(ok, words, "", "", weak)
