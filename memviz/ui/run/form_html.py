"""The form of the Run tab in HTML: workload, knobs, optimizations, and the search for a configuration that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memviz.errors import UsageError
from memviz.results.run import reserved_bytes
from memviz.runner.config_source import FILE as CONFIG
from memviz.runner.jobs.order import Variant
from memviz.runner.jobs.searches import SearchOrder
from memviz.ui.html.markup import Html, joined, tag
from memviz.ui.run.form import (
    EVERY_CHOICE,
    FIRST_MEMORY,
    GENERAL,
    MOST_UNASKED,
    OTHER_CARD,
    FormFields,
    RunRequests,
    asked_of,
    config_field_html,
    parallel_fields_html,
    parallel_words,
    values_of,
    without_effect,
)
from memviz.units import bytes_text, count_text

_KEEPS = (
    ("outputs", "outputs, to rounding"),
    ("training", "the model; optimizer and number format may change"),
    ("nothing", "nothing; weights may be stored in fewer bits"),
)
_LARGEST = (("", "nothing more"), ("batch", "the largest batch that fits"), ("sequence", "the longest sequence"))


def search_of(fields: Mapping[str, Any], requests: RunRequests) -> SearchOrder:
    """Return the search for the form's workload, without its optimizations, which the search chooses itself."""
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


_FIRST = ("batch", "frames", "height", "width", "sequence", "tokens", "dtype", "mode", "size", "activation", "layers")
"""Knobs that stand in the open, in this order; the others wait behind a fold."""
_MOST_FIRST = 6
_CLAIMS = {
    "bitwise": "Same output, bit for bit.",
    "rounding": "Same output up to rounding.",
    "training": "Same output for the same weights; training goes another way.",
    "lossy": "The output changes: lossy.",
}
_OPTIMIZERS = {
    "none": "no optimizer, gradients add up",
    "sgd": "SGD",
    "adamw": "AdamW, foreach",
    "adamw-fused": "AdamW, fused",
    "adamw-for-loop": "AdamW, one parameter at a time",
}
NO_DEVICE = "No CUDA device here, so measuring is off. A prediction runs the real code on tensors without data."
STORIES = {
    "split-feed-forward": "Split feed-forward",
    "checkpointing": "Checkpoint every k-th block",
    "flat-gradients": "Flat gradients",
    "layerwise-casting": "Weights in fp8",
}


def form_value(
    form: FormFields, requests: RunRequests, listing: Mapping[str, Any], *, version: str, said: Html | str = ""
) -> dict[str, Any]:
    """Only another `version` draws the fields anew, so that nobody is interrupted. `said` stands above the button."""
    return {
        "version": version,
        "html": form_html(form, listing),
        "faults": dict(requests.faults),
        "parts": {
            "count": count_words(requests),
            "parallel": parallel_words(asked_of(form.parallel, form.on)),
            "buttons": joined(_said(requests, said), buttons_html(form, requests)),
            **{f"idle:{name}": words for name, words in without_effect(form, listing).items()},
        },
    }


def stand_in_words(form: FormFields, listing: Mapping[str, Any]) -> str:
    """For whoever comes from a finding of a recorded model."""
    titles = {row["name"]: row["title"] for row in (*listing["workloads"], *listing["optimizations"])}
    on = " and ".join(titles[name] for name in form.chosen)
    model = titles[form.workload]
    return f"{model} stands in: the snapshot does not name its model. {on} is on. Choose a model like yours."


def form_html(form: FormFields, listing: Mapping[str, Any]) -> Html:
    row = next(workload for workload in listing["workloads"] if workload["name"] == form.workload)
    return joined(
        _stories(),
        tag(
            "details",
            tag("summary", "Workload and optimizations"),
            *_fields(form, row, listing),
            class_="mv-fields",
            open=True,
        ),
        tag("div", data_part="buttons"),
    )


def _fields(form: FormFields, row: Mapping[str, Any], listing: Mapping[str, Any]) -> list[Html]:
    first, rest = _apart(row["knobs"])
    names = [(workload["name"], workload["title"]) for workload in listing["workloads"]]
    head = tag("h3", "Optimizations ", tag("small", data_part="count"), class_="mv-run-head")
    return [
        tag("label", tag("span", "Workload"), _select("workload", form.workload, names), class_="mv-wide mv-big"),
        tag("p", data_part="stand-in", class_="mv-note mv-stand-in"),
        tag("p", row["sentence"], class_="mv-soft"),
        _fault("workload"),
        config_field_html(form.config) if form.workload == CONFIG else Html(""),
        tag("div", *(_knob("w", knob, form.knobs.get(knob["name"])) for knob in first), class_="mv-knobs"),
        _fold("More about the model", [_knob("w", knob, form.knobs.get(knob["name"])) for knob in rest]),
        _where(form, listing),
        _optimizer(form),
        _step(form),
        fit_fields_html(form.search),
        head,
        *(_optimization(row, form) for row in sorted(listing["optimizations"], key=lambda row: row["offered"])),
    ]


def _apart(knobs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    order = {name: at for at, name in enumerate(_FIRST)}
    first = sorted(
        (knob for knob in knobs if knob["name"] in order), key=lambda optimization: order[optimization["name"]]
    )[:_MOST_FIRST]
    return first, [knob for knob in knobs if knob not in first]


def _fold(words: str, knobs: list[Html]) -> Html:
    if not knobs:
        return Html("")
    return tag("details", tag("summary", words), tag("div", *knobs, class_="mv-knobs"), class_="mv-more")


def _knob(prefix: str, knob: Mapping[str, Any], text: str | None) -> Html:
    name = f"{prefix}:{knob['name']}"
    words = knob["name"].replace("_", " ").capitalize()
    unit = f", {knob['unit']}" if knob["unit"] else ""
    title = f"{knob['help']}{unit}"
    if knob["type"] == "bool":
        on = knob["default"] if text is None else text == "true"
        box = tag("input", type="checkbox", name_=name, checked=bool(on))
        return tag("label", box, tag("span", words), title=title, class_="mv-check")
    value = _text(knob["default"]) if text is None else text
    if has_several(knob, value):
        return _ticks(name, knob, value, title)
    field = _choices(name, knob, value) if knob["choices"] else _input(name, value)
    return tag("label", tag("span", words), field, _fault(name), title=title, class_="mv-wide")


def has_several(knob: Mapping[str, Any], text: str) -> bool:
    """Return True if the choices are shown as checkboxes instead of a menu."""
    return bool(knob["choices"]) and (text == EVERY_CHOICE or "," in text)


def _choices(name: str, knob: Mapping[str, Any], value: str) -> Html:
    names = [_text(choice) for choice in knob["choices"]]
    options = [(choice, choice) for choice in names]
    return _select(name, value, [*options, (EVERY_CHOICE, "several …")] if len(names) > 1 else options)


def _ticks(name: str, knob: Mapping[str, Any], value: str, title: str) -> Html:
    """Each choice by itself. With none of them ticked the menu comes back."""
    on = values_of(knob, value)
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", name_=name, value=choice, data_several=True, checked=choice in on),
            tag("span", choice),
            class_="mv-check",
        )
        for choice in map(_text, knob["choices"])
    ]
    words = tag("legend", knob["name"].replace("_", " ").capitalize())
    return tag("fieldset", words, *boxes, title=title, class_="mv-several")


def _input(name: str, value: str) -> Html:
    return tag("input", type="text", name_=name, value=value, autocomplete="off", spellcheck="false")


def _select(name: str, value: str, options: list[tuple[str, str]]) -> Html:
    made = [tag("option", words, value=choice, selected=choice == value) for choice, words in options]
    return tag("select", *made, name_=name)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def _where(form: FormFields, listing: Mapping[str, Any]) -> Html:
    device = listing.get("device")
    can = bool(device)
    ways = [
        ("cuda", f"Measured on {device}" if can else "Measured on a GPU", can),
        ("predict", "Predicted for a card", True),
    ]
    switch = [
        tag(
            "label",
            tag("input", type="radio", name_="on", value=way, checked=form.on == way, disabled=not possible),
            words,
        )
        for way, words, possible in ways
    ]
    card, memory = _cards(form, listing["cards"])
    why = tag("p", NO_DEVICE, class_="mv-soft") if not can else Html("")
    count, axes = parallel_fields_html(form.parallel)
    cards = joined(tag("div", card, count, class_="mv-card-count"), memory, axes)
    return joined(
        tag("p", "Device", class_="mv-device", id="run-device"),
        tag("div", *switch, class_="mv-way", role="radiogroup", aria_labelledby="run-device"),
        why,
        cards if form.on != "cuda" else Html(""),
    )


def _cards(form: FormFields, cards: Sequence[Mapping[str, Any]]) -> tuple[Html, Html]:
    """Return cards grouped by their kind, and a field for the memory of a card that is not listed."""
    kinds: dict[str, list[Html]] = {}
    listed: set[str] = set()
    for card in cards:
        words = f"{card['name'].removeprefix('NVIDIA ')}, {bytes_text(card['memory_bytes'])}"
        unproven = ", unproven" if card.get("unproven") else ""
        listed.add(card["name"])
        made = tag("option", f"{words}{unproven}", value=card["name"], selected=card["name"] == form.card)
        kinds.setdefault(card.get("kind", ""), []).append(made)
    groups = [tag("optgroup", *made, label=kind or "Cards") for kind, made in kinds.items()]
    is_other = form.card not in ("", *listed)
    groups.append(tag("option", "Other: state its memory", value=OTHER_CARD, selected=is_other))
    menu = tag("label", tag("span", "Card"), tag("select", *groups, name_="card"), class_="mv-wide")
    if not is_other:
        return menu, Html("")
    text = "" if form.card == OTHER_CARD else form.card
    field = tag("input", type="text", name_="memory", value=text, placeholder=FIRST_MEMORY, autocomplete="off")
    title = "48GiB, or a card with another memory: RTX 4090, 48GiB"
    return menu, tag("label", tag("span", "Memory"), field, _fault("memory"), class_="mv-wide", title=title)


_RELEASES = [("", "as installed"), ("2.6", "2.6, as when the examples were published")]


def _optimizer(form: FormFields) -> Html:
    """In the open: whether a step fits depends on it."""
    chosen = _select("optimizer", form.options.get("optimizer", "none"), list(_OPTIMIZERS.items()))
    words = "Optimizer, of a training step"
    return tag("label", tag("span", words), chosen, _fault("optimizer"), class_="mv-wide")


def _step(form: FormFields) -> Html:
    value = form.options.get
    loads = [("host", "on the host, as people load models"), ("device", "on the device, which holds them whole first")]
    fields = [
        tag(
            "label",
            tag("span", "Warm-up steps"),
            _input("warmup", value("warmup", "1")),
            _fault("warmup"),
            class_="mv-wide",
        ),
        tag("label", tag("span", "Steps"), _input("steps", value("steps", "1")), _fault("steps"), class_="mv-wide"),
        tag(
            "label",
            tag("span", "Weights are cast or offloaded"),
            _select("load", value("load", "host"), loads),
            class_="mv-wide",
        ),
        tag(
            "label",
            tag("span", "Kernels of torch"),
            _select("torch", value("torch", ""), _RELEASES),
            class_="mv-wide",
            title="Of a prediction: newer releases fuse what older ones did in several steps",
        ),
        _tick("keep_output", form.keep_output, "The warm-up's output stays alive"),
        _tick("numerics", form.numerics, "Check outputs on a reduced model"),
    ]
    return _fold("The step, and what its peak counts", fields)


def _tick(name: str, on: bool, words: str) -> Html:
    return tag("label", tag("input", type="checkbox", name_=name, checked=on), tag("span", words), class_="mv-check")


_SAID_BY_THE_WORKLOAD = ("micro_batches",)
"""A default of their own would stand there and not be what runs."""


def _optimization(row: Mapping[str, Any], form: FormFields) -> Html:
    name, on = row["name"], row["name"] in form.chosen
    own = [knob for knob in row["knobs"] if knob["name"] not in _SAID_BY_THE_WORKLOAD]
    knobs = [_knob(f"o:{name}", knob, form.their_knobs.get((name, knob["name"]))) for knob in own]
    box = tag("input", type="checkbox", name_=f"o:{name}", checked=on)
    return tag(
        "div",
        tag("label", box, tag("b", row["title"]), class_="mv-opt-head"),
        tag("p", data_part=f"idle:{name}", class_="mv-idle"),
        tag("p", row["sentence"], " ", _CLAIMS[row["claim"]]),
        _fault(f"o:{name}"),
        tag("div", *knobs, class_="mv-knobs mv-opt-knobs") if knobs else Html(""),
        class_="mv-opt" + (" mv-on" if on else ""),
    )


def _fault(field: str) -> Html:
    return tag("p", class_="mv-fault", data_fault=field, role="alert")


def _stories() -> Html:
    buttons = [
        tag("button", words, type="button", data_act="story", data_story=name) for name, words in STORIES.items()
    ]
    return tag("p", tag("span", "Try"), *buttons, class_="mv-stories")


def count_words(requests: RunRequests) -> str:
    return f"{count_text(requests.count)} variant{'s' if requests.count != 1 else ''}" if requests.count else ""


def buttons_html(form: FormFields, requests: RunRequests) -> Html:
    """The button counts what it would run. What does not go together explains itself there when it is pressed."""
    verb = "Measure" if form.on == "cuda" else "Predict"
    words = f"{verb} {count_words(requests)}" if requests.count > 1 else verb
    above = 0 < requests.count <= MOST_UNASKED and not requests.faults
    run = tag("button", words, type="submit", class_="mv-primary", data_act="run", data_act_above=above)
    return tag("p", run, class_="mv-buttons")


def _said(requests: RunRequests, said: Html | str) -> Html:
    """Return the message beside the button: the run's status, and faults that belong to no field."""
    general = [refused_html(requests.faults[place]) for place in GENERAL if place in requests.faults]
    return tag("div", said, *general, id="run-said")


def cancel_html() -> Html:
    """It takes the button's place while something runs."""
    cancel = tag("button", "Cancel", type="button", class_="mv-primary", data_act="cancel")
    return tag("p", cancel, class_="mv-buttons mv-cancel")


def refused_html(words: str) -> Html:
    return tag("p", words, class_="mv-fault", role="alert")


def estimate_html(variant: Variant) -> Html:
    """Return the estimate of everything switched on. A failed one is empty: refusals are shown at their fields."""
    if variant.state == "failed":
        return Html("")
    if variant.run is None:
        return tag("p", "estimating …", class_="mv-soft")
    run = variant.run
    words = f"{variant.label}: {bytes_text(reserved_bytes(run))} reserved"
    fits = {"": "", "yes": ", fits", "no": ", does not fit", "close": ", close"}[run.fit.word if run.fit else ""]
    return tag("p", "Estimate. ", tag("b", words), fits, class_="mv-soft")


def many_html(requests: RunRequests) -> Html:
    words = f"These are {count_text(requests.count)} variants, one after the other. "
    all_words = f"Run all {count_text(requests.count)}"
    button = tag("button", all_words, type="button", class_="mv-quiet", data_act="run-all", data_act_above=True)
    return tag("p", words, button, class_="mv-soft")
