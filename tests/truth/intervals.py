"""Coverage of stated intervals on peaks of repositories that they do not know."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memviz.predictor.accuracy import MEASURES, Measure, MeasuredPeak, error_of, measured_peaks, width_of
from memviz.predictor.cards import card_named


@dataclass(frozen=True)
class HeldOut:
    """A peak, and what the peaks of all other repositories in its class say."""

    peak: MeasuredPeak
    others: tuple[MeasuredPeak, ...]

    def covers(self, measure: Measure) -> bool | None:
        """Return whether the error is within the interval of the others; None if nothing was measured."""
        error, width = error_of(self.peak, measure), width_of(self.others, measure)
        return None if error is None or width is None else error <= width


def held_out(peaks: Sequence[MeasuredPeak]) -> Iterator[HeldOut]:
    for one in peaks:
        alike = (other for other in peaks if (other.kind, other.is_published) == (one.kind, one.is_published))
        yield HeldOut(one, tuple(other for other in alike if other.source != one.source))


_Test = Callable[[HeldOut], bool]
CLASSES: Mapping[str, _Test] = {
    "inference": lambda one: one.peak.kind == "inference",
    "training": lambda one: one.peak.kind == "training" and not one.peak.is_published,
    "tables, training": lambda one: one.peak.is_published,
    "operators recorded elsewhere": lambda one: _recorded(one) and one.peak.families <= _families(one),
    "operators not recorded elsewhere": lambda one: _recorded(one) and not one.peak.families <= _families(one),
    "card recorded elsewhere": lambda one: _recorded(one) and _has_card(one),
    "card not recorded elsewhere": lambda one: _recorded(one) and not _has_card(one),
    "release recorded elsewhere": lambda one: _recorded(one) and _has_release(one),
    "release not recorded elsewhere": lambda one: _recorded(one) and not _has_release(one),
}


def _recorded(one: HeldOut) -> bool:
    return not one.peak.is_published


def _families(one: HeldOut) -> frozenset[str]:
    return frozenset().union(*(other.families for other in one.others))


def _has_card(one: HeldOut) -> bool:
    return _threads(one.peak) in {_threads(other) for other in one.others}


def _threads(peak: MeasuredPeak) -> tuple[int, int]:
    card = card_named(peak.card)
    return card.threads_per_multiprocessor, card.cublas_workspace_bytes


def _has_release(one: HeldOut) -> bool:
    return one.peak.torch in {other.torch for other in one.others}


def classes() -> dict[str, list[HeldOut]]:
    known = list(held_out([one for one in measured_peaks() if one.whole]))
    return {name: [one for one in known if test(one)] for name, test in CLASSES.items()}


def coverage(members: Sequence[HeldOut], measure: Measure) -> tuple[int, int]:
    """Return how many are covered, and of how many."""
    answers = [answer for one in members if (answer := one.covers(measure)) is not None]
    return sum(answers), len(answers)


def table(known: Mapping[str, Sequence[HeldOut]]) -> str:
    lines = [_line("class", "n", "repositories", [f"{measure}: covered, width" for measure in MEASURES])]
    for name, members in known.items():
        repositories = len({one.peak.source for one in members})
        cells = [_cell(members, measure) for measure in MEASURES]
        lines.append(_line(name, str(len(members)), str(repositories), cells))
    return "\n".join(lines)


def _line(name: str, count: str, repositories: str, cells: Sequence[str]) -> str:
    return f"{name:33}{count:>3}{repositories:>14}{''.join(f'{cell:>28}' for cell in cells)}"


def _cell(members: Sequence[HeldOut], measure: Measure) -> str:
    covered, count = coverage(members, measure)
    width = width_of([one.peak for one in members], measure)
    return "-" if not count or width is None else f"{covered} of {count}, ± {width:.2f} %"
