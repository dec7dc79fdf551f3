"""The cards of the first visit: stories that fill the form, each with a small predicted timeline.

Their peaks and timelines are kept in cards.json, because predicting them takes minutes;
`python -m memviz.ui.run.cards` predicts them again, and a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from memviz.analysis.devices import choose_device
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import by_event, sum_of_spans
from memviz.figures.colouring import colouring
from memviz.runner.request import Request
from memviz.text import Html, joined, tag
from memviz.trace.model import Trace
from memviz.ui.html.elements import button
from memviz.ui.html.labels import colour_style
from memviz.ui.run.form import form_fields_of, requests_of
from memviz.ui.run.published_examples import STORIES

_FILE = Path(__file__).with_name("cards.json")
_MIB, _GIB = 1 << 20, 1 << 30
_POINTS, _HEIGHT, _ROOM = 80, 120, 1.06
"""Points of a line in a picture, the height of the picture, and its ratio to the highest value."""


CARDS = {
    "flux-12-gb": "Flux on 12 GB",
    "sdxl-8-gb": "SDXL on 8 GB",
    "llama-8b-lora": "Llama 3.1 8B LoRA on 24 GB",
    "llama-1b": "Llama 1B training on 24 GB",
    "checkpointing": "LTX-Video with checkpointing",
    "split-feed-forward": "Split feed-forward",
}
"""Titles of published stories with a picture."""
_LINKS = {"flat-gradients": "flat fp32 gradients", "layerwise-casting": "layerwise casting"}
"""Published stories without a picture."""


def cards_html() -> Html:
    key = tag("span", "predicted, reserved; faint: baseline, red: card", class_="mv-soft")
    links = [button(title, "story", "mv-link", data_story=name) for name, title in _LINKS.items()]
    return tag(
        "section",
        tag("h2", "Start from an example ", key),
        tag("ul", *(tag("li", _card_html(name, title)) for name, title in CARDS.items()), class_="mv-cases"),
        tag("p", "Also published: ", links[0], ", ", links[1], class_="mv-soft"),
        class_="mv-first-visit",
    )


def _card_html(name: str, title: str) -> Html:
    stored = load_cards()[name]
    before, after = (run["reserved_bytes"] / _GIB for run in stored["runs"])
    words = joined(_picture(stored), tag("b", title), tag("small", f"{before:.1f} → {after:.1f} GiB"))
    fields = STORIES[name].items()
    switched_on = [key[2:].replace("_", " ") for key, value in fields if key[:2] == "o:" and value is True]
    return button(words, "story", "mv-case", data_story=name, title=f"With {', '.join(switched_on)}")


def _picture(stored: Mapping[str, Any]) -> Html:
    """The baseline behind the variant on one scale, and the card's memory where it is within that."""
    (baseline, variant), limit = stored["runs"], stored["usable_bytes"] / _MIB
    top = _ROOM * max(*baseline["reserved"], *variant["reserved"])
    shapes = [tag("g", *_areas(baseline, top), class_="mv-case-baseline"), *_areas(variant, top)]
    if limit < top:
        shapes.append(tag("path", d=f"M0 {_height(limit, top)}h{_POINTS}", class_="mv-case-limit"))
    return tag("svg", *shapes, viewBox=f"0 0 {_POINTS - 1} {_HEIGHT}", preserveAspectRatio="none", aria_hidden="true")


def _areas(run: Mapping[str, Any], top: float) -> Iterable[Html]:
    """From the highest down, each to the bottom: what is stacked below is drawn over it. The reserved line is last."""
    totals = np.cumsum(list(run["layers"].values()), axis=0).tolist()
    for kind, total in reversed(list(zip(run["layers"], totals, strict=True))):
        line = _svg_steps(total, top)
        yield tag("path", d=f"M0 {_HEIGHT}V{line}V{_HEIGHT}z", class_="mv-kind", style=colour_style(kind))
    yield tag("path", d=f"M0 {_svg_steps(run['reserved'], top)}", class_="mv-case-reserved")


def _svg_steps(values: Sequence[float], top: float) -> str:
    """From left to right, in steps relative to each other, equal ones as one."""
    heights = [_height(value, top) for value in values]
    text, flat = str(heights[0]), 0
    for last, height in pairwise(heights):
        flat += height == last
        if height != last:
            text += f"{f'h{flat}' if flat else ''}l1 {height - last}"
            flat = 0
    return f"{text}h{flat}" if flat else text


def _height(value: float, top: float) -> int:
    return round(_HEIGHT * (1 - value / top))


@cache
def load_cards() -> dict[str, dict[str, Any]]:
    cards: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return cards


def shown_requests(name: str, listing: Mapping[str, Any]) -> tuple[Request, Request]:
    """Return the baseline, and the last variant of the same model."""
    requests = requests_of(form_fields_of(STORIES[name], listing), listing).requests
    return requests[0], [request for request in requests if request.settings == requests[0].settings][-1]


def predict_card(name: str, listing: Mapping[str, Any]) -> dict[str, Any]:
    # Only here: the page never imports PyTorch.
    from memviz.runner.execute import predict
    from memviz.runner.plan import plan_of

    requests = shown_requests(name, listing)
    outcomes = [predict(plan_of(request), lambda _: None, figures_only=True) for request in requests]
    fits = [outcome.run.fit for outcome in outcomes if outcome.run.fit]
    runs = [
        {"reserved_bytes": outcome.run.peak_reserved_bytes, "fit": fit.word, **_curves(outcome.trace)}
        for outcome, fit in zip(outcomes, fits, strict=True)
    ]
    return {"card": outcomes[0].run.device, "usable_bytes": fits[0].usable_bytes, "runs": runs}


def _curves(trace: Trace) -> dict[str, Any]:
    """MiB by category, from the bottom of the stack up, at the highest moment of each column; and reserved ones."""
    device = choose_device(trace)
    columns, rows, colours = by_event(device, _POINTS), lifetimes(device), colouring(trace, device)
    layers = {}
    for group, label in enumerate(colours.labels):
        its = colours.group == group
        bytes_after = sum_of_spans(rows.start[its], rows.end[its], rows.size[its], len(device.events))
        line = np.rint(bytes_after[columns.peak_event + 1] / _MIB).astype(int).tolist()
        if any(line):
            layers[label] = line
    return {"reserved": np.rint(columns.reserved_max / _MIB).astype(int).tolist(), "layers": layers}


def write_cards() -> None:
    from memviz.runner.listing import listing

    offered = json.loads(json.dumps(listing()))
    cards = {name: predict_card(name, offered) for name in CARDS}
    lines = (f"{json.dumps(name)}: {json.dumps(card, separators=(',', ':'))}" for name, card in cards.items())
    _FILE.write_text("{{\n{}\n}}\n".format(",\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    write_cards()
