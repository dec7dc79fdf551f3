"""The form of the Run tab in HTML: workload, knobs, optimizations, and the search for a configuration that fits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memviz.predictor.cards import short_name
from memviz.runner.config_source import FILE as CONFIG
from memviz.runner.config_source import hub_is_on
from memviz.runner.prices import Price
from memviz.runner.request import GPUS, OFFLOAD, TO_CPU, label_of_value
from memviz.text import Html, cut, joined, tag
from memviz.ui.html.elements import button, checkbox, fault_place, labelled, menu, text_input
from memviz.ui.run.form import (
    EVERY_CHOICE,
    FIRST_MEMORY,
    GENERAL,
    MOST_LIVE,
    OTHER_CARD,
    PREFIX,
    SEARCH_KEEPS,
    SEARCH_LARGEST,
    FormFields,
    RunRequests,
    active_parallel,
    knob_text,
    modes_of,
    parallel_label,
    values_of,
    without_effect,
)
from memviz.units import bytes_text, count_text, counted, delta_text


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


_OPTIMIZERS = {
    "adamw": "AdamW",
    "adamw-fused": "AdamW, fused",
    "adamw-for-loop": "AdamW, one parameter at a time",
    "sgd": "SGD",
    "none": "none",
}
_OPTIMIZER = _Field("optimizer", "Optimizer", "adamw", tuple(_OPTIMIZERS.items()))
_PLACES = (("host", "while loading, on CPU"), ("device", "after loading, on GPU"))
_PLACES_HELP = "On the GPU, the full weights are loaded first and count towards the peak"
_RELEASES = (("", "installed"), ("2.6", "2.6 (published examples)"))
_RELEASES_HELP = "Kernels to predict with: newer releases fuse some of them"
_PLATFORMS = (("linux", "Linux"), ("wsl", "WSL"), ("windows", "Windows"))
_PLATFORMS_HELP = "Its driver orders segment addresses, which decide between cached blocks of equal size"
_STEP = (
    _Field("warmup", "Warm-up steps", "1"),
    _Field("steps", "Steps", "1"),
    _Field("load", "Cast, offload weights", "host", _PLACES, _PLACES_HELP),
    _Field("torch", "PyTorch version", "", _RELEASES, _RELEASES_HELP),
    _Field("platform", "Platform", "linux", _PLATFORMS, _PLATFORMS_HELP),
)
_HOST = _Field("host_memory", "Host memory", help="Host memory, such as 64GiB, to check the fit", placeholder="any")
_MEMORY = _Field("memory", "Memory", "", (), "48GiB, or a card with another memory: RTX 4090, 48GiB", FIRST_MEMORY)
_SEARCH = (
    _Field("fit:keep", "Must not change", "outputs", SEARCH_KEEPS),
    _Field("fit:largest", "Also find", "", SEARCH_LARGEST),
)


def _axis(name: str, label: str, help: str, placeholder: str = "1") -> _Field:
    return _Field(PREFIX + name, label, help=f"{label}: {help}", placeholder=placeholder)


_AXES = (
    _axis("data", "Data parallel", "model replicas with their own batches, which sum gradients"),
    _axis(
        "shard", "FSDP shards", "shards of weights, gradients and optimizer states; empty: the remaining GPUs", "rest"
    ),
    _axis("tensor", "Tensor parallel", "slices of each matrix and the sequence; decoders such as Llama and Qwen3"),
    _axis("pipeline", "Pipeline stages", "stages of a decoder's blocks"),
    _Field(
        PREFIX + OFFLOAD,
        "FSDP offload",
        "",
        (("", "none"), (TO_CPU, "CPU")),
        "Keep shards, their gradients and optimizer states in pinned host memory (CPUOffloadPolicy)",
    ),
)
_GPUS = _Field(
    PREFIX + GPUS,
    "GPUs",
    "1",
    tuple((str(count), count_text(count)) for count in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024)),
    "FSDP2 shards block by block, DDP copies, DTensor splits matrices, 1F1B runs stages. The batch is per GPU; "
    "one rank per class of equal ranks is predicted. Without an axis, the search tries all.",
)
_FIRST = ("mode", "batch", "frames", "height", "width", "sequence", "tokens", "dtype", "size", "activation", "layers")
"""Knobs that are always visible, in this order; the others are folded."""
_MOST_FIRST = 5
_CLAIMS = {
    "bitwise": ("=", "Outputs stay the same, bit for bit."),
    "rounding": ("≈", "Outputs stay the same up to rounding."),
    "training": ("≈", "Outputs stay the same for the same weights; training takes another path."),
    "lossy": ("≠", "Outputs change."),
}

# Labels of knobs and values: the field's terms, where their own name is not one.
TERMS: Mapping[str, str] = json.loads(Path(__file__).with_name("terms.json").read_text(encoding="utf-8"))
_LONGEST_CHIP = 32
NO_DEVICE = "No CUDA device: measuring is not possible."


@dataclass(frozen=True)
class PriceList:
    """Prices by optimization, None while one is predicted, and how they are sorted."""

    prices: Mapping[str, Price | None] = field(default_factory=dict)
    by_saving: bool = False
    flops: int = 0
    """FLOPs of the run that the prices change; 0 before the first answer."""


def form_value(
    form: FormFields,
    requests: RunRequests,
    listing: Mapping[str, Any],
    *,
    version: str,
    status: Html | str = "",
    prices: PriceList | None = None,
) -> dict[str, Any]:
    """The value of the form's component. Only another `version` redraws the fields, so typing is not interrupted."""
    prices = prices or PriceList()
    # The run's status, and the faults that belong to no field.
    general = [refused_html(requests.faults[place]) for place in GENERAL if place in requests.faults]
    above = tag("div", status, *general, id="run-said")
    parts = {
        "parallel": parallel_label(active_parallel(form.parallel)),
        "device": "" if listing.get("device") else NO_DEVICE,
        "buttons": joined(above, buttons_html(requests, listing)),
        **{f"chip:{row['name']}": _chip_text(row, form) for row in listing["optimizations"]},
        **_price_parts(form, listing, prices),
    }
    html = form_html(form, listing, prices)
    return {"version": version, "html": html, "faults": dict(requests.faults), "parts": parts}


def stand_in_note(form: FormFields, listing: Mapping[str, Any]) -> str:
    """The note for a visitor who comes from a finding of a recorded model."""
    titles = {row["name"]: row["title"] for row in (*listing["workloads"], *listing["optimizations"])}
    on = " and ".join(titles[name] for name in form.chosen)
    model = titles[form.workload]
    return f"{model} stands in: the snapshot does not name its model. {on} is on. Choose a model like yours."


def form_html(form: FormFields, listing: Mapping[str, Any], prices: PriceList | None = None) -> Html:
    row = next(workload for workload in listing["workloads"] if workload["name"] == form.workload)
    rows = [tag("summary", "Optimizations"), *_price_list(form, listing, prices or PriceList())]
    return joined(
        tag("div", *_model_fields(form, row, listing), class_="mv-run-question"),
        tag("details", *rows, class_="mv-fields", open=True),
        tag("div", data_part="buttons"),
        tag("span", data_part="link"),
    )


def _model_fields(form: FormFields, row: Mapping[str, Any], listing: Mapping[str, Any]) -> list[Html]:
    knobs = {knob["name"]: knob for knob in row["knobs"]}
    # Of a function of the owner's file its own parameters come first, as the listing has them.
    order = ("mode", *knobs) if ":" in row["name"] else _FIRST
    first = [knobs[name] for name in dict.fromkeys(order) if name in knobs][:_MOST_FIRST]
    rest = [knob for knob in row["knobs"] if knob not in first]
    names = [(workload["name"], workload["title"]) for workload in listing["workloads"]]
    step = [field.html(form.options.get(field.name)) for field in _STEP]
    step.append(checkbox("keep_output", form.keep_output, "Keep warm-up output"))
    step.append(checkbox("numerics", form.numerics, "Check outputs (reduced model)"))
    search = [field.html(str(form.search.get(field.name, field.default))) for field in _SEARCH]
    grid = checkbox("fit:grid", form.search.get("fit:grid") is True, "Map batch × sequence")
    fields = [_knob("w", knob, form.knobs.get(knob["name"])) for knob in first]
    if modes_of(form, listing) != ["inference"]:
        # Visible, because whether a step fits depends on it.
        fields.append(_OPTIMIZER.html(form.options.get("optimizer")))
    more = [
        *(_knob("w", knob, form.knobs.get(knob["name"])) for knob in rest),
        _GPUS.html(form.parallel.get(GPUS)),
        *(axis.html(form.parallel.get(axis.name.removeprefix(PREFIX))) for axis in _AXES),
        tag("p", data_part="parallel", class_="mv-soft mv-several"),
        _HOST.html(form.options.get("host_memory")),
        *step,
        tag("fieldset", tag("legend", "Configuration search"), *search, grid, class_="mv-fit-fields"),
        tag("p", class_="mv-soft mv-several", data_part="device"),
    ]
    model = labelled("Model", menu("workload", form.workload, names, title=row["sentence"]))
    return [
        tag("div", model, *_card_field(form, listing["cards"]), class_="mv-model-card"),
        tag("p", data_part="stand-in", class_="mv-note mv-stand-in"),
        fault_place("workload"),
        config_field_html(form.config) if form.workload == CONFIG else Html(""),
        tag("div", *fields, class_="mv-knobs mv-first-knobs"),
        tag("details", tag("summary", "More"), tag("div", *more, class_="mv-knobs"), class_="mv-more"),
    ]


def _price_list(form: FormFields, listing: Mapping[str, Any], prices: PriceList) -> list[Html]:
    rows = {row["name"]: row for row in listing["optimizations"]}
    order = "by group" if prices.by_saving else "by saving"
    sort = button(order, "sort", "mv-link", title="Change the order of this list")
    peak = tag("span", "peak", title="Change of the reserved peak with it; other settings unchanged")
    compute = tag("span", "compute", title="Change of floating-point work per step with it")
    head = tag("p", tag("b", "Optimizations"), sort, peak, compute, class_="mv-price-head")
    # The rows themselves are folded, each in its place, so that one that becomes usable needs no other form.
    note = tag("small", "Greyed out above, with the reason.")
    idle = tag("details", tag("summary", tag("span", data_part="idle")), note, class_="mv-idle")
    if prices.by_saving:
        saved = {name: price.reserved_bytes for name, price in prices.prices.items() if price}
        # What cannot be used comes last.
        names = sorted(rows, key=lambda name: 1 << 62 if (change := saved.get(name)) is None else change)
        return [head, *(_optimization(rows[name], form) for name in names), idle]
    groups: dict[str, list[Html]] = {}
    for row in sorted(rows.values(), key=lambda row: int(row["offered"])):
        groups.setdefault(row["group"], []).append(_optimization(row, form))
    fieldsets = [
        tag("fieldset", tag("legend", title), *rows, class_="mv-price-group") for title, rows in groups.items()
    ]
    return [head, *fieldsets, idle]


def config_field_html(text: str) -> Html:
    hub = ", or owner/model of the Hugging Face hub" if hub_is_on() else ""
    typed = {"name_": "config", "rows": "5", "spellcheck": "false", "autocomplete": "off", "data_dropped": True}
    area = tag("textarea", text, placeholder=f'{{"model_type": "llama", ...}}{hub}', **typed)
    chooser = tag("input", type="file", accept=".json,application/json", data_reads="config", aria_label="Choose it")
    return joined(
        labelled(f"Its {CONFIG}: paste it, drop it here, or choose it{hub}", area),
        tag("p", chooser, class_="mv-config-file"),
        fault_place("config"),
    )


def _knob(prefix: str, knob: Mapping[str, Any], text: str | None) -> Html:
    """A field for a knob of the listing."""
    name, label = f"{prefix}:{knob['name']}", _term(prefix, knob["name"])
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
    options = [(choice, TERMS.get(f"{name}={choice}", choice)) for choice in choices]
    if len(options) > 1:
        options.append((EVERY_CHOICE, "several …"))
    # Blank is the default, which the title describes.
    value = "" if knob["default"] is None and value == knob_text(None) and not options else value
    placeholder = "default" if knob["default"] is None else None
    return _Field(name, label, options=tuple(options), help=help, placeholder=placeholder).html(value)


def _term(prefix: str, name: str) -> str:
    words = name.replace("_", " ")
    return TERMS.get(f"{prefix}:{name}") or TERMS.get(name) or words[:1].upper() + words[1:]


def _card_field(form: FormFields, cards: Sequence[Mapping[str, Any]]) -> list[Html]:
    """Cards by their kind, and a field for the memory of one that is not listed."""
    kinds: dict[str, list[Html]] = {}
    for card in cards:
        label = f"{short_name(card['name'])}, {bytes_text(card['memory_bytes'])}"
        unproven = ", unproven" if card.get("unproven") else ""
        option = tag("option", f"{label}{unproven}", value=card["name"], selected=card["name"] == form.card)
        kinds.setdefault(card.get("kind", ""), []).append(option)
    groups = [tag("optgroup", *option, label=kind or "Cards") for kind, option in kinds.items()]
    is_other = form.card not in ("", *(card["name"] for card in cards))
    groups.append(tag("option", "Other: give its memory", value=OTHER_CARD, selected=is_other))
    memory = _MEMORY.html("" if form.card == OTHER_CARD else form.card) if is_other else Html("")
    return [labelled("Card", tag("select", *groups, name_="card")), memory]


def _optimization(row: Mapping[str, Any], form: FormFields) -> Html:
    """One line of the price list; its knobs open in place."""
    name, on = row["name"], row["name"] in form.chosen
    knobs = [_knob(f"o:{name}", knob, form.their_knobs.get((name, knob["name"]))) for knob in _own_knobs(row)]
    mark, meaning = _CLAIMS[row["claim"]]
    box = tag("input", type="checkbox", role="switch", name_=f"o:{name}", checked=on)
    summary = tag("summary", tag("span", data_part=f"chip:{name}"), aria_label=f"Settings of {row['title']}")
    chip = tag("details", summary, tag("div", *knobs, class_="mv-knobs mv-opt-knobs"), class_="mv-chip")
    return tag(
        "div",
        tag("label", box, tag("span", row["title"]), class_="mv-opt-head", title=row["sentence"]),
        chip if knobs else Html(""),
        tag("span", data_part=f"price:{name}", class_="mv-price"),
        tag("abbr", mark, title=meaning, class_="mv-opt-claim"),
        fault_place(f"o:{name}"),
        class_="mv-opt",
    )


def _own_knobs(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the knobs without one whose own default would be shown while the workload's number runs."""
    return [knob for knob in row["knobs"] if knob["name"] != "micro_batches"]


def _chip_text(row: Mapping[str, Any], form: FormFields) -> str:
    """Values that differ from the defaults, or else the first one."""
    knobs = _own_knobs(row)
    values = {knob["name"]: form.their_knobs.get((row["name"], knob["name"])) for knob in knobs}
    changed = [knob for knob in knobs if values[knob["name"]] not in (None, knob_text(knob["default"]))]
    texts = []
    for knob in changed or knobs[:1]:
        value, term = values[knob["name"]] or knob_text(knob["default"]), _term(f"o:{row['name']}", knob["name"])
        if knob["type"] == "text":
            texts.append(value)
        elif knob["type"] == "bool":
            texts.append(term if value == "true" else f"no {term[:1].lower()}{term[1:]}")
        else:
            texts.append(label_of_value(term, value, knob.get("says", "")))
    return cut(", ".join(texts), _LONGEST_CHIP)


def _price_parts(form: FormFields, listing: Mapping[str, Any], prices: PriceList) -> dict[str, Html]:
    idle = without_effect(form, listing)
    changes = [abs(price.reserved_bytes) for price in prices.prices.values() if price and price.reserved_bytes]
    largest = max(changes, default=0)
    parts, unusable = {}, 0
    for name in (row["name"] for row in listing["optimizations"]):
        price, is_on = prices.prices.get(name), name in form.chosen
        reason = idle.get(name, "") or (price.reason if price is not None else "")
        unusable += bool(reason) and not is_on
        html = tag("small", reason, class_="mv-price-reason")
        parts[f"price:{name}"] = html if reason else _price_html(prices, price, largest, is_on=is_on)
    return {**parts, "idle": tag("span", f"{unusable} not usable") if unusable else Html("")}


def _price_html(prices: PriceList, price: Price | None, largest: int, *, is_on: bool) -> Html:
    if price is None or price.reserved_bytes is None:
        # Before the first answer nothing is being predicted.
        waits = bool(prices.flops)
        return tag("i", class_="mv-shimmer" if waits else None, title="predicting …" if waits else None)
    share = 100 * abs(price.reserved_bytes) / largest if largest else 0.0
    kind = "mv-price-bar" if price.reserved_bytes <= 0 else "mv-price-bar mv-price-more"
    # Relative to the run without it, as in the table of variants.
    without = prices.flops - (price.flops or 0) * is_on
    work = price.flops / without if price.flops is not None and without > 0 and prices.flops else None
    return joined(
        tag("i", class_=kind, style=f"--mv-share:{share:.1f}%", aria_hidden="true"),
        tag("b", change_text(price.reserved_bytes)),
        tag("small", "" if work is None else f"{work:+.0%}".replace("-", "\N{MINUS SIGN}").replace("%", " %")),
    )


def change_text(count: int) -> str:
    return delta_text(count) if count else bytes_text(count)


def buttons_html(requests: RunRequests, listing: Mapping[str, Any]) -> Html:
    buttons = [button("Find a configuration that fits", "fit", "mv-quiet mv-find-fit", data_act_above=True)]
    if requests.count > MOST_LIVE and not requests.faults:
        words = f"Predict {counted(requests.count, 'variant')}"
        buttons.insert(0, button(words, "run", "mv-primary", data_act_above=True))
    if device := listing.get("device"):
        buttons.append(button("Measure on GPU", "measure", data_act_above=True, title=f"Run it on {device}"))
    return tag("p", *buttons, class_="mv-buttons")


def progress_html(text: str, *, is_new: bool = False) -> Html:
    """Shown above the answer while something runs; an answer that is not `is_new` is faded as long as this is there."""
    look = "mv-progress mv-new" if is_new else "mv-progress"
    words, cancel = tag("span", text, role="status"), button("Cancel", "cancel", "mv-link")
    return tag("p", tag("i", class_="mv-working"), words, cancel, class_=look)


def stale_html(text: str) -> Html:
    """Shown above an answer to an earlier form, which is faded as long as this is there."""
    return tag("p", text, class_="mv-progress", role="status")


def refused_html(words: str) -> Html:
    return tag("p", words, class_="mv-fault", role="alert")
