"""The form of the Run tab in HTML: workload, knobs, optimizations, and the search for a configuration that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memviz.results.run import reserved_bytes
from memviz.runner.config_source import FILE as CONFIG
from memviz.runner.config_source import hub_is_on
from memviz.runner.jobs.service import Variant
from memviz.runner.parallel.parallelism import GPUS
from memviz.text import Html, joined, tag
from memviz.ui.html.elements import button, checkbox, fault_place, labelled, menu, text_input
from memviz.ui.run.form import (
    EVERY_CHOICE,
    FIRST_MEMORY,
    GENERAL,
    MOST_UNASKED,
    OTHER_CARD,
    PREFIX,
    SEARCH_KEEPS,
    SEARCH_LARGEST,
    FormFields,
    RunRequests,
    active_parallel,
    knob_text,
    parallel_label,
    values_of,
    without_effect,
)
from memviz.units import bytes_text, count_text, counted


@dataclass(frozen=True)
class _Field:
    """A field of the form: a text, or a menu where it has `options`."""

    name: str
    label: str
    default: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """Pairs of a value and its words."""
    help: str | None = None
    placeholder: str | None = None

    def html(self, value: str | None) -> Html:
        text = self.default if value is None else value
        if self.options:
            control = menu(self.name, text, self.options)
        else:
            control = text_input(self.name, text, placeholder=self.placeholder)
        return labelled(self.label, control, fault_place(self.name), title=self.help)


_OPTIMIZER = _Field(
    "optimizer",
    "Optimizer, of a training step",
    "none",
    (
        ("none", "no optimizer, gradients add up"),
        ("sgd", "SGD"),
        ("adamw", "AdamW, foreach"),
        ("adamw-fused", "AdamW, fused"),
        ("adamw-for-loop", "AdamW, one parameter at a time"),
    ),
)
_STEP = (
    _Field("warmup", "Warm-up steps", "1"),
    _Field("steps", "Steps", "1"),
    _Field(
        "load",
        "Weights are cast or offloaded",
        "host",
        (("host", "on the host, as people load models"), ("device", "on the device, which holds them whole first")),
    ),
    _Field(
        "torch",
        "Kernels of torch",
        "",
        (("", "as installed"), ("2.6", "2.6, as when the examples were published")),
        "Of a prediction: newer releases fuse what older ones did in several steps",
    ),
)
_SEARCH = (
    _Field("fit:keep", "What must stay", "outputs", SEARCH_KEEPS),
    _Field("fit:largest", "And then look for", "", SEARCH_LARGEST),
)


def _axis(name: str, label: str, help: str, placeholder: str = "1") -> _Field:
    return _Field(PREFIX + name, label, help=f"{label}: {help}", placeholder=placeholder)


_AXES = (
    _axis("data", "Copies", "whole models, each with a batch of its own, that sum their gradients"),
    _axis(
        "shard", "Shards", "parts of weights, gradients and optimizer states; empty is what the others leave", "rest"
    ),
    _axis("tensor", "Tensor", "parts of each matrix and of the sequence; decoders such as Llama and Qwen3"),
    _axis("pipeline", "Stages", "of a pipeline, each with some of a decoder's blocks"),
)
_GPU_COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024)
_PARALLEL_HELP = (
    "As training scripts do it: FSDP2 shards block by block, DDP copies, DTensor parts matrices, 1F1B runs stages. "
    "The batch is that of one GPU. One rank of each class of equal ones is predicted. "
    "Where no axis is set, the search for the way that fits tries them all."
)
_FIRST = ("batch", "frames", "height", "width", "sequence", "tokens", "dtype", "mode", "size", "activation", "layers")
"""Knobs that are always visible, in this order; the others are folded."""
_MOST_FIRST = 6
_CLAIMS = {
    "bitwise": "Same output, bit for bit.",
    "rounding": "Same output up to rounding.",
    "training": "Same output for the same weights; training goes another way.",
    "lossy": "The output changes: lossy.",
}
_SET_BY_THE_WORKLOAD = ("micro_batches",)
"""Knobs of optimizations whose own default would be shown while the workload's number runs."""
NO_DEVICE = "No CUDA device here, so measuring is off. A prediction runs the real code on tensors without data."
STORIES = {
    "split-feed-forward": "Split feed-forward",
    "checkpointing": "Checkpoint every k-th block",
    "flat-gradients": "Flat gradients",
    "layerwise-casting": "Weights in fp8",
}


def form_value(
    form: FormFields, requests: RunRequests, listing: Mapping[str, Any], *, version: str, status: Html | str = ""
) -> dict[str, Any]:
    """The value of the form's component. Only another `version` redraws the fields, so typing is not interrupted.

    `said` is shown above the button.
    """
    return {
        "version": version,
        "html": form_html(form, listing),
        "faults": dict(requests.faults),
        "parts": {
            "count": variant_count_text(requests),
            "parallel": parallel_label(active_parallel(form.parallel, form.on)),
            "buttons": joined(_messages(requests, status), buttons_html(form, requests)),
            **{f"idle:{name}": reason for name, reason in without_effect(form, listing).items()},
        },
    }


def stand_in_note(form: FormFields, listing: Mapping[str, Any]) -> str:
    """The note for a visitor who comes from a finding of a recorded model."""
    titles = {row["name"]: row["title"] for row in (*listing["workloads"], *listing["optimizations"])}
    on = " and ".join(titles[name] for name in form.chosen)
    model = titles[form.workload]
    return f"{model} stands in: the snapshot does not name its model. {on} is on. Choose a model like yours."


def form_html(form: FormFields, listing: Mapping[str, Any]) -> Html:
    row = next(workload for workload in listing["workloads"] if workload["name"] == form.workload)
    stories = [button(label, "story", None, data_story=name) for name, label in STORIES.items()]
    return joined(
        tag("p", tag("span", "Try"), *stories, class_="mv-stories"),
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
    knobs = {knob["name"]: knob for knob in row["knobs"]}
    first = [knobs[name] for name in _FIRST if name in knobs][:_MOST_FIRST]
    rest = [knob for knob in row["knobs"] if knob not in first]
    names = [(workload["name"], workload["title"]) for workload in listing["workloads"]]
    step = [field.html(form.options.get(field.name)) for field in _STEP]
    step += [
        checkbox("keep_output", form.keep_output, "The warm-up's output stays alive"),
        checkbox("numerics", form.numerics, "Check outputs on a reduced model"),
    ]
    return [
        labelled("Workload", menu("workload", form.workload, names), class_="mv-wide mv-big"),
        tag("p", data_part="stand-in", class_="mv-note mv-stand-in"),
        tag("p", row["sentence"], class_="mv-soft"),
        fault_place("workload"),
        config_field_html(form.config) if form.workload == CONFIG else Html(""),
        tag("div", *(_knob("w", knob, form.knobs.get(knob["name"])) for knob in first), class_="mv-knobs"),
        _fold("More about the model", [_knob("w", knob, form.knobs.get(knob["name"])) for knob in rest]),
        _device_fields(form, listing),
        # Visible, because whether a step fits depends on it.
        _OPTIMIZER.html(form.options.get("optimizer")),
        _fold("The step, and what its peak counts", step),
        search_fields_html(form.search),
        tag("h3", "Optimizations ", tag("small", data_part="count"), class_="mv-run-head"),
        *(_optimization(row, form) for row in sorted(listing["optimizations"], key=lambda row: row["offered"])),
    ]


def config_field_html(text: str) -> Html:
    hub = ", or owner/model of the Hugging Face hub" if hub_is_on() else ""
    area = tag(
        "textarea",
        text,
        name_="config",
        rows="5",
        spellcheck="false",
        autocomplete="off",
        placeholder=f'{{"model_type": "llama", ...}}{hub}',
        data_dropped=True,
    )
    chooser = tag("input", type="file", accept=".json,application/json", data_reads="config", aria_label="Choose it")
    return joined(
        labelled(f"Its {CONFIG}: paste it, drop it here, or choose it{hub}", area),
        tag("p", chooser, class_="mv-config-file"),
        fault_place("config"),
    )


def _fold(summary: str, fields: Sequence[Html]) -> Html:
    if not fields:
        return Html("")
    return tag("details", tag("summary", summary), tag("div", *fields, class_="mv-knobs"), class_="mv-more")


def _knob(prefix: str, knob: Mapping[str, Any], text: str | None) -> Html:
    """A field for a knob of the listing."""
    name, label = f"{prefix}:{knob['name']}", knob["name"].replace("_", " ").capitalize()
    help = f"{knob['help']}, {knob['unit']}" if knob["unit"] else knob["help"]
    value = knob_text(knob["default"]) if text is None else text
    if knob["type"] == "bool":
        return checkbox(name, value == "true", label, title=help)
    choices = list(map(knob_text, knob["choices"]))
    if choices and (value == EVERY_CHOICE or "," in value):
        on = values_of(knob, value)
        # With none of them ticked the menu comes back.
        boxes = [checkbox(name, choice in on, choice, value=choice, data_several=True) for choice in choices]
        return tag("fieldset", tag("legend", label), *boxes, title=help, class_="mv-several")
    options = [(choice, choice) for choice in choices]
    if len(options) > 1:
        options.append((EVERY_CHOICE, "several …"))
    return _Field(name, label, options=tuple(options), help=help).html(value)


def _device_fields(form: FormFields, listing: Mapping[str, Any]) -> Html:
    device = listing.get("device")
    modes = (
        ("cuda", f"Measured on {device}" if device else "Measured on a GPU", bool(device)),
        ("predict", "Predicted for a card", True),
    )
    switch = [
        tag("label", tag("input", type="radio", name_="on", value=on, checked=form.on == on, disabled=not can), label)
        for on, label, can in modes
    ]
    return joined(
        tag("p", "Device", class_="mv-device", id="run-device"),
        tag("div", *switch, class_="mv-way", role="radiogroup", aria_labelledby="run-device"),
        Html("") if device else tag("p", NO_DEVICE, class_="mv-soft"),
        _card_fields(form, listing["cards"]) if form.on != "cuda" else Html(""),
    )


def _card_fields(form: FormFields, cards: Sequence[Mapping[str, Any]]) -> Html:
    """Cards by their kind, a field for the memory of one that is not listed, the number of GPUs, and its axes."""
    kinds: dict[str, list[Html]] = {}
    for card in cards:
        label = f"{card['name'].removeprefix('NVIDIA ')}, {bytes_text(card['memory_bytes'])}"
        unproven = ", unproven" if card.get("unproven") else ""
        option = tag("option", f"{label}{unproven}", value=card["name"], selected=card["name"] == form.card)
        kinds.setdefault(card.get("kind", ""), []).append(option)
    groups = [tag("optgroup", *option, label=kind or "Cards") for kind, option in kinds.items()]
    is_other = form.card not in ("", *(card["name"] for card in cards))
    groups.append(tag("option", "Other: state its memory", value=OTHER_CARD, selected=is_other))
    memory = _Field(
        "memory", "Memory", help="48GiB, or a card with another memory: RTX 4090, 48GiB", placeholder=FIRST_MEMORY
    )
    counts = [(str(count), count_text(count)) for count in _GPU_COUNTS]
    gpus = menu(PREFIX + GPUS, form.parallel.get(GPUS, "1"), counts)
    axes = [axis.html(form.parallel.get(axis.name.removeprefix(PREFIX))) for axis in _AXES]
    return joined(
        tag(
            "div",
            labelled("Card", tag("select", *groups, name_="card")),
            labelled("GPUs", gpus),
            class_="mv-card-count",
        ),
        memory.html("" if form.card == OTHER_CARD else form.card) if is_other else Html(""),
        fault_place(PREFIX + GPUS),
        tag(
            "details",
            tag("summary", "Parallel ", tag("span", data_part="parallel")),
            tag("p", _PARALLEL_HELP, class_="mv-soft"),
            tag("div", *axes, class_="mv-knobs mv-axes"),
            class_="mv-more",
        ),
    )


def search_fields_html(fields: Mapping[str, Any]) -> Html:
    return tag(
        "details",
        tag("summary", "Find a configuration that fits"),
        tag(
            "p",
            "Tries combinations of the optimizations for this model and card: which are cheapest for their memory?",
            class_="mv-soft",
        ),
        *(field.html(fields.get(field.name)) for field in _SEARCH),
        checkbox("fit:grid", fields.get("fit:grid") is True, "Map batch × sequence with it"),
        tag("p", button("Find it", "fit", data_act_above=True), class_="mv-buttons"),
        class_="mv-more mv-fit-fields",
    )


def _optimization(row: Mapping[str, Any], form: FormFields) -> Html:
    name, on = row["name"], row["name"] in form.chosen
    knobs = [
        _knob(f"o:{name}", knob, form.their_knobs.get((name, knob["name"])))
        for knob in row["knobs"]
        if knob["name"] not in _SET_BY_THE_WORKLOAD
    ]
    box = tag("input", type="checkbox", name_=f"o:{name}", checked=on)
    return tag(
        "div",
        tag("label", box, tag("b", row["title"]), class_="mv-opt-head"),
        tag("p", data_part=f"idle:{name}", class_="mv-idle"),
        tag("p", row["sentence"], " ", _CLAIMS[row["claim"]]),
        fault_place(f"o:{name}"),
        tag("div", *knobs, class_="mv-knobs mv-opt-knobs") if knobs else Html(""),
        class_="mv-opt" + (" mv-on" if on else ""),
    )


def variant_count_text(requests: RunRequests) -> str:
    return counted(requests.count, "variant") if requests.count else ""


def buttons_html(form: FormFields, requests: RunRequests) -> Html:
    verb = "Measure" if form.on == "cuda" else "Predict"
    label = f"{verb} {variant_count_text(requests)}" if requests.count > 1 else verb
    above = 0 < requests.count <= MOST_UNASKED and not requests.faults
    run = tag("button", label, type="submit", class_="mv-primary", data_act="run", data_act_above=above)
    return tag("p", run, class_="mv-buttons")


def _messages(requests: RunRequests, status: Html | str) -> Html:
    """The run's status, and the faults that belong to no field."""
    general = [refused_html(requests.faults[place]) for place in GENERAL if place in requests.faults]
    return tag("div", status, *general, id="run-said")


def cancel_html() -> Html:
    """Shown in place of the button while something runs."""
    return tag("p", button("Cancel", "cancel", "mv-primary"), class_="mv-buttons mv-cancel")


def refused_html(words: str) -> Html:
    return tag("p", words, class_="mv-fault", role="alert")


def estimate_html(variant: Variant) -> Html:
    """The estimate of everything switched on. A failed one is empty: refusals are shown at their fields."""
    if variant.state == "failed":
        return Html("")
    if variant.run is None:
        return tag("p", "estimating …", class_="mv-soft")
    run = variant.run
    words = f"{variant.label}: {bytes_text(reserved_bytes(run))} reserved"
    fits = {"": "", "yes": ", fits", "no": ", does not fit", "close": ", close"}[run.fit.word if run.fit else ""]
    return tag("p", "Estimate. ", tag("b", words), fits, class_="mv-soft")


def confirm_many_html(requests: RunRequests) -> Html:
    count = count_text(requests.count)
    run = button(f"Run all {count}", "run-all", data_act_above=True)
    return tag("p", f"These are {count} variants, one after the other. ", run, class_="mv-soft")
