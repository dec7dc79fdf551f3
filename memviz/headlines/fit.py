"""What a search for the way that fits has come to, of what is known by now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memviz.headlines.headline import Headline
from memviz.runner.jobs.searches import SearchStatus
from memviz.units import bytes_text, count_text, duration_text

_KEEPS = ("outputs", "training", "nothing")
_KEPT = {
    "outputs": "Its outputs stay as they are, to the bit or to rounding.",
    "training": "It trains the same model with another optimizer or number format.",
    "nothing": "Its outputs change.",
}

Way = Mapping[str, Any]
"""As `fit --json` has it."""


@dataclass(frozen=True)
class Front:
    """Ways of one class that no other of it is better than, cheapest first; by their numbers."""

    keeps: str
    numbers: tuple[int, ...]


def rank(way: Way) -> float:
    """By which ways are compared: the middle of its seconds, or the work where a card's speed is not known."""
    cost = way["cost"]
    if cost["seconds_low"] is None or cost["seconds_high"] is None:
        return float(cost["flops"] + cost["bytes_moved"] + cost["host_bytes"])
    return float(cost["seconds_low"] + cost["seconds_high"]) / 2


def best(ways: Sequence[Way]) -> int | None:
    """The number of the cheapest that fits, of the strongest class in which any does; of equally cheap ones, that with
    the fewest changes."""
    for keeps in _KEEPS:
        fitting = [number for number, way in enumerate(ways) if way["fits"] and way["keeps"] == keeps]
        if fitting:
            return min(fitting, key=lambda number: (*_simplest(ways[number]), number))
    return None


def front(ways: Sequence[Way]) -> Front:
    """Of the class of the best, or of the weakest that was tried."""
    number = best(ways)
    weakest = max((way["keeps"] for way in ways), key=_KEEPS.index, default="outputs")
    keeps = weakest if number is None else ways[number]["keeps"]
    of_it = sorted((n for n, way in enumerate(ways) if way["keeps"] == keeps), key=lambda n: (*_order(ways[n]), n))
    ahead: list[int] = []
    for n in of_it:
        if not ahead or ways[n]["peak_reserved_bytes"] < ways[ahead[-1]]["peak_reserved_bytes"]:
            ahead.append(n)
    return Front(str(keeps), tuple(ahead))


def _order(way: Way) -> tuple[float, int, int]:
    return rank(way), way["peak_reserved_bytes"], _changes(way)


def _simplest(way: Way) -> tuple[float, int, int]:
    return rank(way), _changes(way), way["peak_reserved_bytes"]


def _changes(way: Way) -> int:
    return sum(len(change) for change in way["optimizations"])


def fit_words(way: Way) -> str:
    """Answer of one way; "close" where what is not known exactly decides."""
    return "close" if is_close(way) else "fits" if way["fits"] else "does not fit"


def is_close(way: Way) -> bool:
    return way.get("fit") == "close"


def error_words(way: Way) -> str:
    """Expected error of a way; empty in searches that were kept before it was known."""
    return str((way.get("expected_error") or {}).get("sentence", ""))


def cost_words(way: Way) -> str:
    return f"{cost_figure(way)} {cost_unit(way)}"


def cost_figure(way: Way) -> str:
    low, high = way["cost"]["seconds_low"], way["cost"]["seconds_high"]
    if low is None or high is None:
        return f"{way['cost']['flops'] / 1e12:,.1f} TFLOP"
    return f"{duration_text(round(low * 1e6))} to {duration_text(round(high * 1e6))}"


def cost_unit(way: Way) -> str:
    """The same for all ways of a card."""
    per = f"a {way['cost']['per']}"
    return per if way["cost"]["seconds_low"] is None else f"{per}, estimated"


def fit(status: SearchStatus) -> Headline:
    number = best(status.ways)
    if status.failed and number is None:
        return Headline("No way was found.", _stopped(status))
    answer = "Looking for the way that fits." if number is None else _fits(status, status.ways[number])
    cheaper = "" if number is None else _cheaper(status, status.ways[number])
    if not status.is_over:
        return Headline(answer, f"{cheaper}{_under_way(status)}")
    if number is None:
        return _nothing_fits(status)
    kept = _KEPT[status.ways[number]["keeps"]]
    return Headline(answer, f"{cheaper}{kept} {_largest(status)}{_stopped(status)}".strip())


def _fits(status: SearchStatus, way: Way) -> str:
    """That nothing has to be done comes first, whatever else is cheaper."""
    plain = _as_it_is(status)
    shown = plain if plain is not None and plain["fits"] else way
    how = "as it is" if shown is plain else f"with {way['title']}{'' if status.is_over else ' so far'}"
    close = ", but it is close" if is_close(shown) else ""
    return f"It fits {how}{close}: {bytes_text(shown['peak_reserved_bytes'])} reserved."


def _cheaper(status: SearchStatus, way: Way) -> str:
    plain = _as_it_is(status)
    if plain is None or not plain["fits"] or way is plain:
        return ""
    so_far = "" if status.is_over else " so far"
    return (
        f"The cheapest{so_far} is {way['title']}, by its estimate: {bytes_text(way['peak_reserved_bytes'])} reserved. "
    )


def _as_it_is(status: SearchStatus) -> Way | None:
    """Nothing is changed of what was asked: an optimizer that was asked for is the only name that such a way has."""
    optimizer = status.order.request.optimizer
    name = "baseline" if optimizer == "none" else optimizer
    return next((way for way in status.ways if way["label"] == name and not way["optimizations"]), None)


def _stopped(status: SearchStatus) -> str:
    """With how far it came: what was not predicted may be better."""
    if not status.failed or status.done >= status.of:
        return status.failed
    return f"{status.failed} {count_text(status.done)} of {count_text(status.of)} ways were predicted."


def _under_way(status: SearchStatus) -> str:
    if status.before:
        return f"{count_text(status.before)} of others first."
    if status.value is not None:
        return f"Trying {status.order.largest or 'sequence'} {count_text(status.value)}."
    if not status.of:
        return "The search begins."
    return f"{count_text(status.done)} of {count_text(status.of)} ways predicted."


def _nothing_fits(status: SearchStatus) -> Headline:
    least = min(status.ways, key=lambda way: int(way["peak_reserved_bytes"]), default=None)
    if least is None:
        return Headline("Nothing that was tried could run.", "Predict it as it is: that says why.")
    more = {"outputs": "Let training change too.", "training": "Let weights be stored in fewer bits too."}
    said = f"The least is {least['title']}: {bytes_text(least['peak_reserved_bytes'])}."
    return Headline("Nothing that was tried fits.", f"{said} {more.get(status.order.keep, '')}".strip())


def _largest(status: SearchStatus) -> str:
    largest = (status.answer or {}).get("largest")
    if not largest:
        return ""
    return f"{largest_words(largest)} "


def largest_words(largest: Mapping[str, Any]) -> str:
    """As `fit --json` has it."""
    after, refused = "nothing larger was refused", largest.get("next_refused")
    if largest["next_fails"]:
        following = count_text(largest["value"] + 1)
        after = f"{following} is refused: {refused.rstrip('.')}" if refused else f"{following} does not fit"
    return f"The largest {largest['knob']} this way is {count_text(largest['value'])}; {after}."
