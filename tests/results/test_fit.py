"""Sentences about a search follow the rules of the search itself."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from memviz.results.fit import (
    cheapest_fitting,
    cost_figure,
    cost_rank,
    cost_unit,
    fit_cell,
    fit_headline,
    front_of_trials,
    largest_text,
    work_text,
)
from memviz.runner.fit.search import Trial, cheapest_that_fits, pareto_front
from memviz.runner.fit.space import KEEPS, Keep
from memviz.runner.jobs.service import SearchOrder, SearchStatus
from memviz.runner.request import Request
from tests.runner.fit.ways import way

GiB = 1 << 30
WAYS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.sampled_from(KEEPS)), min_size=1, max_size=25
)


_COSTS = ("flops", "bytes_moved", "host_bytes", "seconds_low", "seconds_high")


def told(tried: Trial, label: str = "split_feed_forward") -> dict[str, Any]:
    """Return the fields of `fit --json` that sentences need."""
    cost = tried.cost
    return {
        "label": label,
        "title": label.replace("_", " ").capitalize(),
        "short_title": label.replace("_", " ").capitalize(),
        "optimizations": [{"name": name, **knobs} for name, knobs in tried.candidate.request.optimizations],
        "keeps": tried.candidate.keeps,
        "fits": tried.fits,
        "peak_reserved_bytes": tried.peak_reserved_bytes,
        "cost": {
            **{name: getattr(cost, name) for name in _COSTS},
            "per": "step",
        },
    }


@given(WAYS)
def test_the_front_and_the_best_are_those_of_the_search(points: list[tuple[int, int, bool, Keep]]) -> None:
    tried = [way(cost, peak, fits=fits, keeps=keeps) for cost, peak, fits, keeps in points]
    ways = [told(each) for each in tried]
    number = cheapest_fitting(ways)
    of_class = [cheapest_that_fits(each for each in tried if each.candidate.keeps == keeps) for keeps in KEEPS]
    wanted = next((each for each in of_class if each is not None), None)
    assert (None if number is None else tried[number]) == wanted
    drawn = front_of_trials(ways)
    theirs = pareto_front(each for each in tried if each.candidate.keeps == drawn.keeps)
    assert [(tried[n].cost.rank, tried[n].peak_reserved_bytes) for n in drawn.numbers] == [
        (their.cost.rank, their.peak_reserved_bytes) for their in theirs
    ]


def status(**known: Any) -> SearchStatus:
    return SearchStatus("id", SearchOrder(Request("feed_forward"), largest="batch"), **known)


def test_each_moment_has_its_sentence() -> None:
    good, bad = told(way(2, 20 * GiB)), told(way(1, 30 * GiB, fits=False))
    assert str(fit_headline(status())) == "Searching for a configuration that fits. Starting the search."
    assert str(fit_headline(status(before=2))) == "Searching for a configuration that fits. Queued behind 2 others."
    assert str(fit_headline(status(ways=(bad,), done=1, of=9, seconds_left=200.0))) == (
        "Searching for a configuration that fits. 1 of 9 configurations tried, about 3 min left."
    )
    assert str(fit_headline(status(ways=(bad, good), done=2, of=9))) == (
        "It fits with Split feed forward so far: 20.00 GiB reserved. 2 of 9 configurations tried."
    )
    assert str(fit_headline(status(ways=({**good, "fit": "close"},), done=2, of=9))) == (
        "It is close with Split feed forward so far: 20.00 GiB reserved. 2 of 9 configurations tried."
    )
    assert str(fit_headline(status(ways=(good,), value=37, of=9))).endswith("Trying batch 37.")
    answer = {"largest": {"knob": "batch", "value": 36, "next_fails": True, "predictions": 4}}
    assert str(fit_headline(status(ways=(good,), answer=answer))) == (
        "It fits with Split feed forward: 20.00 GiB reserved. Outputs are unchanged, up to rounding. "
        "The largest batch that fits is 36; 37 does not fit."
    )
    answer["largest"] |= {"next_refused": "sequence is 37; GPT-2 knows 36 positions."}
    assert str(fit_headline(status(ways=(good,), answer=answer))).endswith(
        "37 is refused: sequence is 37; GPT-2 knows 36 positions."
    )
    assert str(fit_headline(status(ways=(told(way(1, GiB), "baseline"),), answer={}))).startswith(
        "It fits without changes: 1,024 MiB"
    )
    assert str(fit_headline(status(ways=(bad,), answer={}))) == (
        "No configuration that was tried fits. Lowest: Split feed forward, 30.00 GiB reserved. "
        "Allow changes to training too."
    )
    assert (
        str(fit_headline(status(failed="There is no workload x.")))
        == "No configuration was tried. There is no workload x."
    )
    assert str(fit_headline(status(answer={}))).startswith("No configuration could run.")


def test_that_it_fits_as_it_is_is_said_first_whatever_else_is_cheaper() -> None:
    """A sentence like *It fits with ...* would imply that it does not fit without."""
    plain, cheaper = told(way(3, 12 * GiB), "baseline"), told(way(2, 2 * GiB, "split_feed_forward"))
    assert str(fit_headline(status(ways=(plain, cheaper), done=2, of=9))) == (
        "It fits without changes: 12.00 GiB reserved. "
        "The cheapest so far is Split feed forward, by estimated time: 2,048 MiB reserved. "
        "2 of 9 configurations tried."
    )
    assert str(fit_headline(status(ways=(plain, cheaper), answer={}))) == (
        "It fits without changes: 12.00 GiB reserved. "
        "The cheapest is Split feed forward, by estimated time: 2,048 MiB reserved. "
        "Outputs are unchanged, up to rounding."
    )
    asked = SearchOrder(Request("feed_forward", optimizer="adamw"))
    with_adamw = SearchStatus("id", asked, ways=(told(way(3, 12 * GiB), "adamw"),), answer={})
    assert str(fit_headline(with_adamw)).startswith("It fits without changes: 12.00 GiB reserved. Outputs")
    too_large = told(way(3, 30 * GiB, fits=False), "baseline")
    assert str(fit_headline(status(ways=(too_large, cheaper), answer={}))).startswith(
        "It fits with Split feed forward: 2,048"
    )


def test_a_search_that_ended_or_was_stopped_says_how_far_it_came_and_what_it_found() -> None:
    good = told(way(2, 20 * GiB))
    under_way = {"ways": (good,), "done": 1, "of": 9, "time_limit": 600.0, "seconds": 60.0}
    assert str(fit_headline(status(**under_way))).endswith("1 of 9 configurations tried, at most 9 min left.")
    assert str(fit_headline(status(**under_way, seconds_left=200.0))).endswith("about 3 min left.")
    over = status(**under_way, answer={"stopped": "time limit"})
    assert "Stopped at the time limit of 10 min. 1 of 9 configurations were tried" in str(fit_headline(over))
    good, bad = told(way(2, 20 * GiB)), told(way(1, 30 * GiB, fits=False))
    stopped = {"done": 2, "of": 9, "failed": "Cancelled."}
    how_far = "Cancelled. 2 of 9 configurations were tried; others may be better."
    assert str(fit_headline(status(ways=(bad, good), **stopped))).endswith(how_far)
    # Predictions are reported even if none fits.
    assert str(fit_headline(status(ways=(bad,), **stopped))) == (
        f"No configuration that was tried fits. Lowest: Split feed forward, 30.00 GiB reserved. {how_far}"
    )
    assert str(fit_headline(status(done=0, of=0, failed="Cancelled."))) == "No configuration was tried. Cancelled."
    over = {**stopped, "done": 9}
    assert str(fit_headline(status(ways=(good,), **over))).endswith("Cancelled. 9 of 9 configurations were tried.")


def test_what_changed_unasked_and_what_is_close_is_said() -> None:
    changed = {
        **told(way(2, 20 * GiB, keeps="training")),
        "changes": ["optimizer sgd instead of adamw"],
        "fit": "close",
    }
    said = str(fit_headline(status(ways=(changed,), answer={})))
    assert said.startswith("It is close with") and "Changed: optimizer sgd instead of adamw." in said
    assert fit_cell(changed) == "close" and fit_cell({**changed, "fit": "yes"}) == "fits"
    largest = {"knob": "batch", "value": 1294, "next_fails": True}
    assert largest_text(largest) == "The largest batch that fits is 1,294; 1,295 does not fit."
    assert " 1,294 is close:" in largest_text({**largest, "fit": "close"})
    until_then = largest_text({**largest, "next_fails": False, "stopped": True})
    assert until_then == "The largest batch that fits is at least 1,294; the search was stopped."


def test_on_a_card_of_unknown_speed_the_cost_that_is_said_is_the_one_that_is_compared() -> None:
    cost = {"flops": 164 * 10**12, "bytes_moved": 10**12, "host_bytes": 0, "link_bytes": 0, "per": "step"}
    unknown = {**told(way(1, GiB)), "cost": {**cost, "seconds_low": None, "seconds_high": None}}
    assert cost_rank(unknown) == 165e12 and cost_figure(unknown) == work_text(cost_rank(unknown)) == "165.00 T"
    assert cost_unit(unknown) == "FLOP and bytes moved a step"
