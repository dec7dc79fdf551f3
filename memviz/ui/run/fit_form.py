"""Fields of a search for a configuration that fits, and the search that the form means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memviz.errors import UsageError
from memviz.runner.jobs.searches import SearchOrder
from memviz.ui.html.markup import Html, tag
from memviz.ui.run.form import RunRequests

_KEEPS = (
    ("outputs", "outputs, to rounding"),
    ("training", "the model; optimizer and number format may change"),
    ("nothing", "nothing; weights may be stored in fewer bits"),
)
_LARGEST = (("", "nothing more"), ("batch", "the largest batch that fits"), ("sequence", "the longest sequence"))
FIELDS = ("fit:keep", "fit:largest", "fit:grid")


def search_of(fields: Mapping[str, Any], requests: RunRequests) -> SearchOrder:
    """Of the workload as it stands in the form; the search itself switches optimizations on."""
    sizes = {tuple(sorted(request.settings.items())) for request in requests.requests}
    if requests.faults or not requests.requests:
        raise UsageError("Nothing was searched. Fix the marked fields first.")
    if len(sizes) > 1:
        raise UsageError("A search is for one size: give one value for each knob of the workload.")
    keep, largest = str(fields.get("fit:keep", "outputs")), str(fields.get("fit:largest", ""))
    if keep not in dict(_KEEPS) or largest not in dict(_LARGEST):
        raise UsageError("There is no such search.")
    request = replace(requests.requests[0], optimizations=(), on="predict", numerics=False, label="")
    return SearchOrder(request, keep, largest, fields.get("fit:grid") is True)


def fit_fields_html(fields: Mapping[str, Any]) -> Html:
    """Folded: whoever only predicts never sees it."""
    grid = tag("input", type="checkbox", name_="fit:grid", checked=fields.get("fit:grid") is True)
    return tag(
        "details",
        tag("summary", "Find a configuration that fits"),
        tag(
            "p",
            "Tries combinations of the optimizations for this model and card: which are cheapest for their memory?",
            class_="mv-soft",
        ),
        _menu("fit:keep", "What must stay", _KEEPS, fields),
        _menu("fit:largest", "And then look for", _LARGEST, fields),
        tag("label", grid, tag("span", "Map batch × sequence with it"), class_="mv-check"),
        tag(
            "p",
            tag("button", "Find it", type="button", class_="mv-quiet", data_act="fit", data_act_above=True),
            class_="mv-buttons",
        ),
        class_="mv-more mv-fit-fields",
    )


def _menu(name: str, words: str, choices: tuple[tuple[str, str], ...], fields: Mapping[str, Any]) -> Html:
    chosen = str(fields.get(name, choices[0][0]))
    options = [tag("option", said, value=value, selected=value == chosen) for value, said in choices]
    return tag("label", tag("span", words), tag("select", *options, name_=name), class_="mv-wide")
