"""TODO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memviz.results.headline import Headline
from memviz.runner.jobs.searches import SearchStatus
from memviz.units import bytes_text, count_text, duration_text

# Sentences about a search for a configuration that fits: under way, over or stopped.

_KEEPS = ("outputs", "training", "nothing")
_KEPT = {
    "outputs": "Its outputs stay as they are, to the bit or to rounding.",
    "training": "It trains the same model with another optimizer or number format.",
    "nothing": "Its outputs change.",
}

Way = Mapping[str, Any]
"""A configuration, as in `fit --json`."""


@dataclass(frozen=True)
class ParetoFront:
    """Ways of one class that no other of it is better than, cheapest first; by their numbers."""

    keeps: str
    numbers: tuple[int, ...]


def cost_rank(way: Way) -> float:
    """The cost by which configurations are compared: the middle of the seconds, or the work on an unknown card."""
    cost = way["cost"]
    if cost["seconds_low"] is None or cost["seconds_high"] is None:
        return float(cost["flops"] + cost["bytes_moved"] + cost["host_bytes"] + cost.get("link_bytes", 0))
    return float(cost["seconds_low"] + cost["seconds_high"]) / 2


def cheapest_fitting(ways: Sequence[Way]) -> int | None:
    """The number of the cheapest that fits, of the strongest class in which any does; of equally cheap ones, that with
    the fewest changes."""
    for keeps in _KEEPS:
        fitting = [number for number, way in enumerate(ways) if way["fits"] and way["keeps"] == keeps]
        if fitting:
            return min(fitting, key=lambda number: (*_simplest(ways[number]), number))
    return None


def front_of_ways(ways: Sequence[Way]) -> ParetoFront:
    """Return the Pareto front among ways that keep as much as the best one, or as the weakest one tried."""
    number = cheapest_fitting(ways)
    weakest = max((way["keeps"] for way in ways), key=_KEEPS.index, default="outputs")
    keeps = weakest if number is None else ways[number]["keeps"]
    of_it = sorted((n for n, way in enumerate(ways) if way["keeps"] == keeps), key=lambda n: (*_order(ways[n]), n))
    ahead: list[int] = []
    for n in of_it:
        if not ahead or ways[n]["peak_reserved_bytes"] < ways[ahead[-1]]["peak_reserved_bytes"]:
            ahead.append(n)
    return ParetoFront(str(keeps), tuple(ahead))


def _order(way: Way) -> tuple[float, int, int]:
    return cost_rank(way), way["peak_reserved_bytes"], _changes(way)


def _simplest(way: Way) -> tuple[float, int, int]:
    return cost_rank(way), _changes(way), way["peak_reserved_bytes"]


def _changes(way: Way) -> int:
    return sum(len(change) for change in way["optimizations"])


def error_words(way: Way) -> str:
    """Expected error of a way; empty in searches that were kept before it was known."""
    return str((way.get("expected_error") or {}).get("sentence", ""))


def cost_words(way: Way) -> str:
    return f"{cost_figure(way)} {cost_unit(way)}"


def cost_figure(way: Way) -> str:
    low, high = way["cost"]["seconds_low"], way["cost"]["seconds_high"]
    if low is None or high is None:
        return work_text(cost_rank(way))
    return f"{duration_text(round(low * 1e6))} to {duration_text(round(high * 1e6))}"


def work_text(work: float) -> str:
    return f"{work / 1e12:,.2f} T"


def cost_unit(way: Way) -> str:
    """The same for all configurations on a card."""
    per = f"a {way['cost']['per']}"
    return f"FLOP and bytes moved {per}" if way["cost"]["seconds_low"] is None else f"{per}, estimated"


def fit_cell(way: Way) -> str:
    """ "fits", "does not fit" or "close"."""
    return "close" if way.get("fit") == "close" else "fits" if way["fits"] else "does not fit"


def left_words(seconds: float | None) -> str:
    """ ", about 4 min left", or nothing where too little is known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f", about {max(10, 10 * round(seconds / 10))} s left"
    return f", about {round(seconds / 60)} min left"


def stopped_words(by: str, done: int, of: int) -> str:
    """How far a search came that was stopped. `by` is what stopped it, as a sentence."""
    if not of:
        return by
    rest = "; another may be better" if done < of else ""
    return f"{by} {count_text(done)} of {count_text(of)} configurations were tried{rest}."


def fit_headline(status: SearchStatus) -> Headline:
    number = cheapest_fitting(status.ways)
    if status.failed and not status.ways:
        return Headline("No configuration was tried.", _stopped(status))
    answer = "Searching for a configuration that fits." if number is None else _fits(status, status.ways[number])
    cheaper = "" if number is None else _cheaper(status, status.ways[number])
    if not status.is_over:
        return Headline(answer, f"{cheaper}{_under_way(status)}")
    if number is None:
        return _nothing_fits(status)
    kept = kept_words(status.ways[number])
    return Headline(answer, f"{cheaper}{kept} {_largest(status)}{_stopped(status)}".strip())


def kept_words(way: Way) -> str:
    """Describe what stays as requested, what does not, and what the card has no hardware for."""
    changes = way.get("changes") or ()
    changed = f"Changed: {', '.join(changes)}." if changes else ""
    return " ".join(filter(None, [_KEPT[way["keeps"]], changed, *way.get("warnings", ())]))


def _fits(status: SearchStatus, way: Way) -> str:
    """That nothing has to be done comes first, whatever else is cheaper."""
    plain = _as_it_is(status)
    if plain is not None and plain["fits"]:
        return f"It {_verb(plain)} as it is: {bytes_text(plain['peak_reserved_bytes'])} reserved."
    so_far, reserved = "" if status.is_over else " so far", bytes_text(way["peak_reserved_bytes"])
    return f"It {_verb(way)} with {way['short_title']}{so_far}: {reserved} reserved."


def _verb(way: Way) -> str:
    return "is close" if fit_cell(way) == "close" else "fits"


def _cheaper(status: SearchStatus, way: Way) -> str:
    plain = _as_it_is(status)
    if plain is None or not plain["fits"] or way is plain:
        return ""
    so_far, reserved = "" if status.is_over else " so far", bytes_text(way["peak_reserved_bytes"])
    return f"The cheapest{so_far} is {way['short_title']}, by its estimate: {reserved} reserved. "


def _as_it_is(status: SearchStatus) -> Way | None:
    """Nothing is changed of what was asked: an optimizer that was asked for is the only name that such a way has."""
    optimizer = status.order.request.optimizer
    name = "baseline" if optimizer == "none" else optimizer
    return next((way for way in status.ways if way["label"] == name and not way["optimizations"]), None)


def _stopped(status: SearchStatus) -> str:
    """With how far it came: what was not predicted may be better."""
    return stopped_words(status.failed, status.done, status.of) if status.failed else ""


def _under_way(status: SearchStatus) -> str:
    if status.before:
        return f"{count_text(status.before)} of others first."
    if status.value is not None:
        return f"Trying {status.order.largest or 'sequence'} {count_text(status.value)}."
    if not status.of:
        return "The search begins."
    left = left_words(status.seconds_left)
    return f"{count_text(status.done)} of {count_text(status.of)} configurations tried{left}."


def _nothing_fits(status: SearchStatus) -> Headline:
    least = min(status.ways, key=lambda way: int(way["peak_reserved_bytes"]), default=None)
    if least is None:
        return Headline("Nothing that was tried could run.", "Predict it as it is: that says why.")
    more = {"outputs": "Let training change too.", "training": "Let weights be stored in fewer bits too."}
    said = f"The least is {least['short_title']}: {bytes_text(least['peak_reserved_bytes'])}."
    rest = [said, _largest(status).strip(), _stopped(status) or more.get(status.order.keep, "")]
    answer = "Nothing that was tried fits at this size." if _largest(status) else "Nothing that was tried fits."
    return Headline(answer, " ".join(filter(None, rest)))


def _largest(status: SearchStatus) -> str:
    largest = (status.answer or {}).get("largest")
    if not largest:
        return ""
    return f"{largest_words(largest)} "


def largest_words(largest: Mapping[str, Any]) -> str:
    """Describe the largest value that `fit --json` reports."""
    value, after = count_text(largest["value"]), "nothing larger was refused"
    at_least = "at least " if largest.get("stopped") else ""
    if at_least:
        after = "the search was stopped"
    elif largest["next_fails"]:
        following, refused = count_text(largest["value"] + 1), largest.get("next_refused")
        after = f"{following} is refused: {refused.rstrip('.')}" if refused else f"{following} does not fit"
    close = f" {value} is close: it fits as predicted, and may not on a card." if largest.get("fit") == "close" else ""
    return f"The largest {largest['knob']} this way is {at_least}{value}; {after}.{close}"
