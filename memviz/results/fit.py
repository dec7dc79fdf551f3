"""Sentences about a search for a configuration that fits: under way, over or stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memviz.results.headline import Headline
from memviz.runner.fit.cost import KEEPS, Cost, Rating, cheapest_that_fits, class_shown, pareto_front
from memviz.runner.jobs.service import SearchStatus
from memviz.units import bytes_text, count_text, duration_text

_COST = ("flops", "bytes_moved", "host_bytes", "seconds_low", "seconds_high")
_KEPT = {
    "outputs": "Outputs are unchanged, up to rounding.",
    "training": "The same model is trained, with another optimizer or number format.",
    "nothing": "Outputs change.",
}

Way = Mapping[str, Any]
"""A configuration, as in `fit --json`."""


@dataclass(frozen=True)
class ParetoFront:
    """Ways of one class that no other of it is better than, cheapest first; by their numbers."""

    keeps: str
    numbers: tuple[int, ...]


def cost_rank(trial: Way) -> float:
    """The cost by which configurations are compared: the middle of the seconds, or the work on an unknown card."""
    cost = trial["cost"]
    return Cost(**{name: cost[name] for name in _COST}, link_bytes=cost.get("link_bytes", 0)).rank


def cheapest_fitting(trials: Sequence[Way]) -> int | None:
    return cheapest_that_fits(_ratings(trials))


def front_of_trials(trials: Sequence[Way]) -> ParetoFront:
    """Return the Pareto front among ways that keep as much as the best one, or as the weakest one tried."""
    ratings = _ratings(trials)
    keeps = class_shown(ratings)
    return ParetoFront(KEEPS[keeps], pareto_front(ratings, keeps))


def _ratings(trials: Sequence[Way]) -> list[Rating]:
    return [
        Rating(
            keeps=KEEPS.index(trial["keeps"]),
            rank=cost_rank(trial),
            is_close=trial.get("fit") == "close",
            changes=sum(len(change) for change in trial["optimizations"]),
            peak_reserved_bytes=trial["peak_reserved_bytes"],
            fits=trial["fits"],
        )
        for trial in trials
    ]


def error_text(trial: Way) -> str:
    """Expected error of a configuration; empty in older stored searches."""
    return str((trial.get("expected_error") or {}).get("sentence", ""))


def cost_text(trial: Way) -> str:
    return f"{cost_figure(trial)} {cost_unit(trial)}"


def cost_figure(trial: Way) -> str:
    low, high = trial["cost"]["seconds_low"], trial["cost"]["seconds_high"]
    if low is None or high is None:
        return work_text(cost_rank(trial))
    return f"{duration_text(round(low * 1e6))} to {duration_text(round(high * 1e6))}"


def work_text(work: float) -> str:
    return f"{work / 1e12:,.2f} T"


def cost_unit(trial: Way) -> str:
    """The same for all configurations on a card."""
    per = f"a {trial['cost']['per']}"
    return f"FLOP and bytes moved {per}" if trial["cost"]["seconds_low"] is None else f"{per}, estimated"


def fit_cell(trial: Way) -> str:
    """ "fits", "does not fit" or "close"."""
    if trial.get("fits_host") is False:
        return "does not fit"
    return "close" if trial.get("fit") == "close" else "fits" if trial["fits"] else "does not fit"


def remaining_text(seconds: float | None, most: float | None = None) -> str:
    """ ", about 4 min left", "at most" where a time limit ends it before, or nothing where too little is known."""
    is_limit = most is not None and (seconds is None or seconds > most)
    left = most if is_limit else seconds
    if left is None:
        return ""
    text = _time_text(max(10, 10 * round(left / 10)) if left < 90 else left)
    return f", {'at most' if is_limit else 'about'} {text} left"


def _time_text(seconds: float) -> str:
    return f"{round(seconds)} s" if seconds < 90 else f"{round(seconds / 60)} min"


def stop_text(reason: str, done: int, total: int) -> str:
    """Say how far a search came. `reason` is what stopped it, as a sentence."""
    if not total:
        return reason
    rest = "; others may be better" if done < total else ""
    return f"{reason} {count_text(done)} of {count_text(total)} configurations were tried{rest}."


def fit_headline(status: SearchStatus) -> Headline:
    number = cheapest_fitting(status.ways)
    trial = None if number is None else status.ways[number]
    if not status.ways and (stopped := _stop_sentence(status)):
        return Headline("No configuration was tried.", stopped)
    answer, cheaper = ("Searching for a configuration that fits.", "") if trial is None else _fitting(status, trial)
    if not status.is_over:
        return Headline(answer, f"{cheaper}{_progress_sentence(status)}")
    if trial is None:
        return _nothing_fits(status)
    preserved = preserved_text(trial)
    return Headline(answer, f"{cheaper}{preserved} {_largest_sentence(status)}{_stop_sentence(status)}".strip())


def preserved_text(trial: Way) -> str:
    """Describe what stays as requested, what does not, and what the card has no hardware for."""
    changes = trial.get("changes") or ()
    changed = f"Changed: {', '.join(changes)}." if changes else ""
    return " ".join(filter(None, [_KEPT[trial["keeps"]], changed, *trial.get("warnings", ())]))


def _fitting(status: SearchStatus, trial: Way) -> tuple[str, str]:
    """Say first that the model fits unchanged, even if another configuration is cheaper; then which one is."""
    # The requested optimizer is the only label of the unchanged configuration.
    optimizer = status.order.request.optimizer
    label = "baseline" if optimizer == "none" else optimizer
    unchanged = [each for each in status.ways if each["label"] == label and not each["optimizations"] and each["fits"]]
    first = unchanged[0] if unchanged else trial
    verb = "is close" if fit_cell(first) == "close" else "fits"
    so_far, reserved = "" if status.is_over else " so far", bytes_text(trial["peak_reserved_bytes"])
    if not unchanged:
        return f"It {verb} with {trial['short_title']}{so_far}: {reserved} reserved.", ""
    answer = f"It {verb} without changes: {bytes_text(first['peak_reserved_bytes'])} reserved."
    cheapest = f"The cheapest{so_far} is {trial['short_title']}, by estimated time: {reserved} reserved. "
    return answer, "" if trial is first else cheapest


def _stop_sentence(status: SearchStatus) -> str:
    """Say why and where the search stopped: a configuration that was not predicted may be better."""
    by, limit = status.failed, status.time_limit
    if limit is not None and (status.answer or {}).get("stopped") == "time limit":
        by = f"Stopped at the time limit of {_time_text(limit)}."
    return stop_text(by, status.done, status.of) if by else ""


def _progress_sentence(status: SearchStatus) -> str:
    if status.before:
        return f"Queued behind {count_text(status.before)} others."
    if status.value is not None:
        return f"Trying {status.order.largest or 'sequence'} {count_text(status.value)}."
    if not status.of:
        return "Starting the search."
    most = None if status.time_limit is None else max(0.0, status.time_limit - status.seconds)
    left = remaining_text(status.seconds_left, most)
    return f"{count_text(status.done)} of {count_text(status.of)} configurations tried{left}."


def _nothing_fits(status: SearchStatus) -> Headline:
    least = min(status.ways, key=lambda trial: int(trial["peak_reserved_bytes"]), default=None)
    if least is None:
        return Headline("No configuration could run.", "Predict the model without changes to see the reason.")
    more = {"outputs": "Allow changes to training too.", "training": "Allow weights in fewer bits too."}
    least_sentence = f"Lowest: {least['short_title']}, {bytes_text(least['peak_reserved_bytes'])} reserved."
    largest = _largest_sentence(status).strip()
    rest = [least_sentence, largest, _stop_sentence(status) or more.get(status.order.keep, "")]
    answer = f"No configuration that was tried fits{' at this size' if largest else ''}."
    return Headline(answer, " ".join(filter(None, rest)))


def _largest_sentence(status: SearchStatus) -> str:
    largest = (status.answer or {}).get("largest")
    return f"{largest_text(largest)} " if largest else ""


def largest_text(largest: Mapping[str, Any]) -> str:
    """Describe the largest value that `fit --json` reports."""
    value, after = count_text(largest["value"]), "no larger value failed"
    at_least = "at least " if largest.get("stopped") else ""
    if at_least:
        after = "the search was stopped"
    elif largest["next_fails"]:
        following, refused = count_text(largest["value"] + 1), largest.get("next_refused")
        after = f"{following} is refused: {refused.rstrip('.')}" if refused else f"{following} does not fit"
    close = f" {value} is close: predicted to fit, but may not on a real card." if largest.get("fit") == "close" else ""
    return f"The largest {largest['knob']} that fits is {at_least}{value}; {after}.{close}"
