"""The form of the Run tab as texts: its faults, and the runs or the search that it asks for.

The choices come from `memviz.runner.listing`, fetched from a worker: the page never imports PyTorch. Every field
comes from a browser, so only what the listing names is accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any
from urllib.parse import urlencode

from memviz.errors import UsageError
from memviz.predictor.cards import card_named
from memviz.runner.config_source import FILE as CONFIG
from memviz.runner.config_source import checked_config, fetch_config, hub_is_on, is_hub_id
from memviz.runner.jobs.service import SearchOrder
from memviz.runner.prices import reason_by_model
from memviz.runner.request import GPUS, LAYOUT_SETTINGS, Request, label_of_value, load_of, parallel_of

_MOST_LETTERS = 1 << 20
"""Limit that is reported at the field; the request as a whole is bounded anyway."""


def config_of(text: str) -> tuple[str, str]:
    """Return the configuration, or what is wrong with it. The text is never taken for a path of this machine."""
    if not text.strip():
        return "", f"Paste a {CONFIG} here, drop the file, or choose it."
    if len(text) > _MOST_LETTERS:
        return "", f"It is longer than {_MOST_LETTERS:,} characters. Remove its lists of labels, and set num_labels."
    try:
        return _checked(text.strip(), hub_is_on()), ""
    except UsageError as error:
        return "", str(error)


@lru_cache(maxsize=32)
def _checked(text: str, from_the_hub: bool) -> str:
    # Cached, because a form is read again with each letter that is typed.
    # By its form alone: whether such a file is on this machine is not for visitors to know.
    if not from_the_hub and _LIKE_HUB_ID.fullmatch(text):
        raise UsageError(f"Downloads from the Hugging Face Hub are off here. Paste the {CONFIG} of {text}.")
    if from_the_hub and is_hub_id(text):
        return checked_config(fetch_config(text), text)
    return checked_config(text)


_LIKE_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
EVERY_CHOICE = "*"
"""Value of a knob with choices that selects all of them."""
_COUNTS = {"warmup": (0, "Warm-up steps are 0 to 100"), "steps": (1, "Steps are 1 to 100")}
_MOST_STEPS = 100


def _knob_faults(prefix: str, knobs: Any, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each invalid field, as in `w:batch`, and the message."""
    for knob in knobs:
        text = texts.get(knob["name"])
        message = _fault(knob, text) if text is not None else ""
        if message:
            yield f"{prefix}:{knob['name']}", message


def _number_faults(options: Mapping[str, str], parallel: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the faults of the fields that no listing describes."""
    for name, (least, message) in _COUNTS.items():
        text = options.get(name, "1").strip()
        if not text.isdecimal() or not least <= int(text[:9]) <= _MOST_STEPS:
            yield name, f"{message}; not {text[:40] or 'nothing'}."
    try:
        Request("", host_memory=options.get("host_memory", "").strip())
    except UsageError as error:
        yield "host_memory", str(error)
    try:
        parallel_of(parallel)
    except UsageError as error:
        yield _axis_of_refusal(str(error)) or PREFIX + GPUS, str(error)


def _fault(knob: Mapping[str, Any], text: str) -> str:
    if knob["type"] == "bool" or (knob["type"] == "text" and not knob["choices"]) or text == EVERY_CHOICE:
        return ""
    values = _split(text)
    if not values:
        return "" if knob.get("optional") else f"It is empty. Give a value, such as {knob['default']}."
    choices = list(map(knob_text, knob["choices"]))
    for value in values:
        if knob.get("optional") and value.lower() == "none":
            continue
        if choices and value not in choices:
            return f"{value[:40]} is not one of {', '.join(choices)}."
        try:
            if not choices:
                float(value) if knob["type"] == "float" else int(value)
        except ValueError:
            return f"{value[:40]} is not a {'number' if knob['type'] == 'float' else 'whole number'}."
    return ""


PREFIX = "p:"
"""Prefix of the names of fields for parallelism."""


def active_parallel(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the parallel settings for several GPUs, else nothing: hidden fields are ignored."""
    return dict(texts) if texts.get(GPUS, "1") != "1" else {}


def _axis_of_refusal(refusal: str) -> str:
    """The field of the axis whose name a refusal begins with."""
    first = refusal.split(" ", 1)[0]
    return PREFIX + first if first in (GPUS, *LAYOUT_SETTINGS) else ""


def parallel_label(texts: Mapping[str, str]) -> str:
    try:
        return parallel_of(texts).words if texts else "1 GPU"
    except UsageError:
        return ""


SEARCH_KEEPS = (
    ("outputs", "outputs, up to rounding"),
    ("training", "the model; optimizer and number format may change"),
    ("nothing", "nothing; weights may be stored in fewer bits"),
)
SEARCH_LARGEST = (("", "nothing else"), ("batch", "the largest batch that fits"), ("sequence", "the longest sequence"))
MOST_LIVE = 8
"""More variants than these are not predicted by themselves."""
MOST_VARIANTS = 32
GENERAL = ("run", "knobs")
"""Places of faults that are of no field of their own."""
BASELINE = "Baseline"
OTHER_CARD = "other"
"""In the menu of cards: one that is stated by its memory."""
FIRST_MEMORY = "24GiB"
_FIRST_WORKLOAD = "llama"
_OPTIONS = ("optimizer", "warmup", "steps", "load", "torch", "platform", "host_memory")


@dataclass(frozen=True)
class FormFields:
    """Values of the form. Texts of unchanged knobs are absent: the listing has their defaults."""

    workload: str = ""
    config: str = ""
    """The text of a config.json, where that is the workload."""
    knobs: Mapping[str, str] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    """Optimizations that are switched on."""
    their_knobs: Mapping[tuple[str, str], str] = field(default_factory=dict)
    card: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    keep_output: bool = False
    numerics: bool = True
    parallel: Mapping[str, str] = field(default_factory=dict)
    """Number of GPUs and axes, as typed in the form."""
    search: Mapping[str, str | bool] = field(default_factory=dict)
    """Fields of the search for a configuration that fits."""


@dataclass(frozen=True)
class RunRequests:
    """The runs that the form describes, baseline first, or the faults that prevent them."""

    requests: tuple[Request, ...] = ()
    labels: tuple[str, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    """Messages by the field's name in the form."""

    @property
    def count(self) -> int:
        return len(self.requests)


def form_fields_of(fields: Mapping[str, Any], listing: Mapping[str, Any]) -> FormFields:
    """`w:batch`, `o:checkpointing` and `o:checkpointing:every` are the names of knobs in the form."""
    workload = str(fields.get("workload", ""))
    if not _row(listing["workloads"], workload):
        # The first function of the owner's program, or else Llama.
        names = [str(row["name"]) for row in listing["workloads"]]
        workload = names[0] if ":" in names[0] or _FIRST_WORKLOAD not in names else _FIRST_WORKLOAD
    card, memory = str(fields.get("card", "")), str(fields.get("memory", FIRST_MEMORY)).strip()
    parallel = {name: str(fields.get(PREFIX + name, "")).strip() for name in (GPUS, *LAYOUT_SETTINGS)}
    their_knobs = [(key.split(":"), knob_text(value)) for key, value in fields.items() if key.startswith("o:")]
    form = FormFields(
        workload=workload,
        config=str(fields.get("config", "")),
        knobs={key[2:]: knob_text(value) for key, value in fields.items() if key.startswith("w:")},
        chosen=tuple(row["name"] for row in listing["optimizations"] if fields.get(f"o:{row['name']}") is True),
        their_knobs={(parts[1], parts[2]): text for parts, text in their_knobs if len(parts) == 3},
        # A name of the menu, or what was typed in the place of one.
        card=(memory or OTHER_CARD) if card == OTHER_CARD else card,
        # `conversion` is an old name of stored forms and links.
        options={
            **({"load": load_of(str(fields["conversion"]))} if "conversion" in fields else {}),
            **{name: str(fields[name]) for name in _OPTIONS if name in fields},
        },
        keep_output=fields.get("keep_output") is True,
        numerics=fields.get("numerics", True) is True,
        parallel={name: text for name, text in parallel.items() if text},
        search={key: value for key, value in fields.items() if key.startswith("fit:")},
    )
    # A training step has AdamW unless another one or none is chosen; a forward pass has none.
    modes = modes_of(form, listing)
    optimizer = form.options.get("optimizer", "adamw" if modes == ["training"] else "none")
    return replace(form, options={**form.options, "optimizer": "none" if modes == ["inference"] else optimizer})


@dataclass(frozen=True)
class RunLink:
    """A form that a link describes, and variants pinned beside it: texts that anybody may have written."""

    fields: Mapping[str, str | bool]
    pins: tuple[tuple[str, Mapping[str, str | bool]], ...] = ()
    """Labels, and the fields of a form for each."""
    story: str = ""
    is_search: bool = False


_LONGEST_LINK, _LONGEST_LABEL, MOST_PINNED = 8000, 120, 8
"""Letters, which servers accept in an address."""


def link_of(fields: Mapping[str, Any], pinned: Sequence[tuple[Request, str]], story: str, *, is_search: bool) -> str:
    """Return the query of an address: the form, and as many pinned variants as have room; empty if the form has none.

    `pinned` leave out what they share with the form, besides knobs.
    """
    own = {key: value for key, value in fields.items() if value not in (False, "") or key == "numerics"}
    own = {key: value for key, value in own.items() if key.count(":") < 2 or own.get(key.rpartition(":")[0]) is True}
    query = {"tab": "run", "run": own, "story": story, "fit": "1" if is_search else ""}
    pins = [(label[:_LONGEST_LABEL], _pin_fields(request, own)) for request, label in pinned]
    for count in range(len(pins), -1, -1):
        values = {**query, "pins": pins[:count]}
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            for key, value in values.items()
            if value
        }
        if len(text := urlencode(texts)) <= _LONGEST_LINK:
            return text
    return ""


def _pin_fields(request: Request, shared: Mapping[str, Any]) -> dict[str, str | bool]:
    general = {"workload": request.workload, "config": request.config, "card": request.card}
    general |= {name: str(getattr(request, name)) for name in _OPTIONS}
    own: dict[str, str | bool] = {key: text for key, text in general.items() if text != shared.get(key, "")}
    own |= {f"w:{key}": text for key, text in request.settings.items()}
    own |= {PREFIX + key: text for key, text in request.parallel.items()}
    for name, knobs in request.optimizations:
        own |= {f"o:{name}": True, **{f"o:{name}:{key}": text for key, text in knobs.items()}}
    return own if request.keep_output == shared.get("keep_output", False) else {**own, "keep_output": True}


def read_link(query: Mapping[str, str]) -> RunLink | None:
    """Parse the query of an address, without the knobs of what is off; None for another link."""
    texts = [query.get(key, "") for key in ("run", "pins")]
    if query.get("tab") != "run" or sum(map(len, texts)) > _LONGEST_LINK:
        return None
    fields: Any = None
    pins: Any = None
    with suppress(ValueError, RecursionError):
        fields = json.loads(texts[0])
        pins = json.loads(texts[1])
    if not _are_fields(fields):
        return None
    shared = {key: value for key, value in fields.items() if ":" not in key}
    whole = [pin for pin in pins if isinstance(pin, list) and len(pin) == 2] if isinstance(pins, list) else []
    linked = [(label, {**shared, **own}) for label, own in whole if isinstance(label, str) and _are_fields(own)]
    named = tuple((label[:_LONGEST_LABEL], own) for label, own in linked[:MOST_PINNED])
    return RunLink(fields, named, query.get("story", "")[:_LONGEST_LABEL], query.get("fit") == "1")


def _are_fields(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str | bool) for one in value.values())


def _card_faults(form: FormFields, listing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if form.card == OTHER_CARD:
        yield "memory", "Give its memory, such as 48GiB."
    elif form.card and _row(listing["cards"], form.card) is None:
        try:
            card_named(form.card)
        except UsageError:
            yield "memory", f"{form.card[:40]} is not a size (48GiB) or a card with a size (RTX 4090, 48GiB)."


def knob_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def requests_of(form: FormFields, listing: Mapping[str, Any], most: int = MOST_VARIANTS) -> RunRequests:
    """The baseline is the workload as it is; then one run for each combination of the values that were given."""
    workload = _row(listing["workloads"], form.workload)
    if workload is None:
        return RunRequests(faults={"workload": "There is no such workload."})
    rows = _chosen_rows(form, listing)
    faults = dict([*_conflicts(form, listing), *_knob_faults("w", workload["knobs"], form.knobs)])
    for row in rows:
        faults |= _knob_faults(f"o:{row['name']}", row["knobs"], _knobs_of(form, row["name"]))
    faults |= _card_faults(form, listing)
    config, wrong = config_of(form.config) if form.workload == CONFIG else ("", "")
    if wrong:
        return RunRequests(faults={**faults, "config": wrong})
    parallel = active_parallel(form.parallel)
    if wrong_numbers := dict(_number_faults(form.options, parallel)):
        return RunRequests(faults={**faults, **wrong_numbers})
    # Counted before they are made: a form may hold a thousand values twice.
    values = [_values_by_knob(workload, form.knobs)]
    values += [_values_by_knob(row, _knobs_of(form, row["name"])) for row in rows]
    size_count, *change_counts = (prod(map(len, each.values())) for each in values)
    count = size_count * (1 + prod(change_counts) if rows else 1)
    if count > most:
        message = f"These would be {count:,} variants; the limit is {most}. Give fewer values."
        return RunRequests(faults={**faults, "run": message})
    try:
        sizes = list(_combinations(workload, values[0]))
        combinations = [
            [(row["name"], knobs) for knobs in _combinations(row, each)]
            for row, each in zip(rows, values[1:], strict=True)
        ]
        changed = list(product(*combinations)) if rows else []
        base = replace(_request(form), config=config, parallel=parallel)
    except UsageError as error:
        return RunRequests(faults={**faults, "run": str(error)})
    varied = [knob for knob in workload["knobs"] if len({size.get(knob["name"]) for size in sizes}) > 1]
    requests = []
    for settings, change in product(sizes, [(), *changed]):
        optimizations = tuple((name, dict(knobs)) for name, knobs in change)
        several = ", ".join(_workload_label(knob, settings) for knob in varied)
        label = ": ".join(filter(None, (several, _label(change, changed, listing))))
        requests.append(replace(base, settings=settings, optimizations=optimizations, label=label))
    return RunRequests(tuple(requests), tuple(request.label for request in requests), faults)


def _chosen_rows(form: FormFields, listing: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the optimizations that are switched on, in the order of `form.chosen`."""
    rows = {row["name"]: row for row in listing["optimizations"]}
    return [rows[name] for name in form.chosen]


def _knobs_of(form: FormFields, name: str) -> dict[str, str]:
    return {key: text for (owner, key), text in form.their_knobs.items() if owner == name}


def _request(form: FormFields) -> Request:
    fields_of_run: dict[str, Any] = {"workload": form.workload, **form.options}
    for name in ("warmup", "steps"):
        fields_of_run[name] = int(form.options.get(name, "1"))
    fields_of_run |= {"card": form.card} if form.card else {}
    return Request.from_json({**fields_of_run, "keep_output": form.keep_output, "numerics": form.numerics})


def _combinations(row: Mapping[str, Any], values: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """One for each combination of the values given, of knobs that differ from their defaults."""
    defaults = {knob["name"]: knob_text(knob["default"]) for knob in row["knobs"]}
    for chosen in product(*values.values()):
        yield {key: text for key, text in zip(values, chosen, strict=True) if text != defaults[key]}


def _values_by_knob(row: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, list[str]]:
    return {knob["name"]: values_of(knob, texts[knob["name"]]) for knob in row["knobs"] if knob["name"] in texts}


def values_of(knob: Mapping[str, Any], text: str) -> list[str]:
    """`1, 2, 4` are three values, except where a text may hold commas itself."""
    if text == EVERY_CHOICE and knob["choices"]:
        return [knob_text(choice) for choice in knob["choices"]]
    if knob["type"] == "text" and not knob["choices"]:
        return [text.strip()]
    return list(dict.fromkeys(_split(text))) or [knob_text(knob["default"])]


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _label(
    chosen: tuple[tuple[str, dict[str, str]], ...],
    all_chosen: list[tuple[tuple[str, dict[str, str]], ...]],
    listing: Mapping[str, Any],
) -> str:
    """Return the titles of the optimizations, each with the knobs that vary between variants.

    A single varied knob with a text of its own replaces the title: "Every 2nd block".
    """
    if not chosen:
        return BASELINE
    parts = []
    rows = {row["name"]: row for row in listing["optimizations"]}
    for at, (name, knobs) in enumerate(chosen):
        row = rows[name]
        varied = {key for one in all_chosen for key in one[at][1]}
        varied_knobs = [(knob["name"], knob) for knob in row["knobs"] if knob["name"] in varied]
        texts = [
            label_of_value(key, knobs.get(key, knob_text(knob["default"])), knob.get("says", ""))
            for key, knob in varied_knobs
        ]
        alone = len(varied_knobs) == 1 and varied_knobs[0][1].get("says")
        parts.append(texts[0] if alone else ", ".join([row["title"], *texts]))
    together = " + ".join(parts)
    return together[:1].upper() + together[1:]


def _workload_label(knob: Mapping[str, Any], settings: Mapping[str, str]) -> str:
    text = settings.get(knob["name"], knob_text(knob["default"]))
    return text if knob["choices"] and knob["type"] == "text" else f"{knob['name'].replace('_', ' ')} {text}"


def _conflicts(form: FormFields, listing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the optimizations that conflict with others or with the mode, and why. None is disabled: it says why."""
    modes = modes_of(form, listing)
    for row in _chosen_rows(form, listing):
        name = row["name"]
        others = [mode for mode in modes if row["needs"] not in ("any", mode)]
        if others:
            yield f"o:{name}", f"It works in {row['needs']} only, but this is {others[0]}."
        for other, reason in row["not_with"].items():
            if other in form.chosen:
                yield f"o:{name}", reason
                yield f"o:{other}", reason


def search_order(fields: Mapping[str, Any], requests: RunRequests) -> SearchOrder:
    """Return the search for the form's workload, without its optimizations, which the search chooses itself."""
    sizes = {tuple(sorted(request.settings.items())) for request in requests.requests}
    if requests.faults or not requests.requests:
        raise UsageError("Nothing was searched. Fix the marked fields first.")
    if len(sizes) > 1:
        raise UsageError("A search needs one value for each knob of the workload.")
    keep, largest = str(fields.get("fit:keep", "outputs")), str(fields.get("fit:largest", ""))
    if keep not in dict(SEARCH_KEEPS) or largest not in dict(SEARCH_LARGEST):
        raise UsageError("There is no such search.")
    request = replace(requests.requests[0], optimizations=(), numerics=False, label="")
    return SearchOrder(request, keep, largest, fields.get("fit:grid") is True)


def without_effect(form: FormFields, listing: Mapping[str, Any]) -> dict[str, str]:
    """Return, by name, why an optimization that is off would have no effect."""
    modes, workload = modes_of(form, listing), _row(listing["workloads"], form.workload)
    reasons = {row["name"]: reason_by_model(row, workload, modes) for row in listing["optimizations"]}
    return {name: reason for name, reason in reasons.items() if reason and name not in form.chosen}


def changed(
    fields: Mapping[str, Any], before: Mapping[str, Any], listing: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """Return the fields without those of another workload, and whether the form has to be drawn anew."""
    now, then = form_fields_of(fields, listing), form_fields_of(before, listing)
    if now.workload != then.workload:
        return {key: value for key, value in fields.items() if not key.startswith("w:")}, True
    # A menu becomes checkboxes, or checkboxes a menu.
    workload = _row(listing["workloads"], now.workload) or {"knobs": ()}
    rows = [("w", workload), *((f"o:{row['name']}", row) for row in listing["optimizations"])]
    menus = [f"{prefix}:{knob['name']}" for prefix, row in rows for knob in row["knobs"] if knob["choices"]]
    is_redrawn = any(fields.get(name) in (EVERY_CHOICE, "") for name in menus)
    is_redrawn = is_redrawn or (fields.get("card") == OTHER_CARD) != (before.get("card") == OTHER_CARD)
    return dict(fields), is_redrawn or modes_of(now, listing) != modes_of(then, listing)


def field_of_refusal(refusal: str, requests: RunRequests) -> str:
    """Return the field that a refusal is about: it begins with a name, as in `ltx_video: frames ...`."""
    if place := _axis_of_refusal(refusal):
        return place
    name, colon, detail = refusal.partition(":")
    if not colon or not requests.count:
        return "run"
    knob = detail.split()[0] if detail.split() else ""
    if name == requests.requests[0].workload:
        return f"w:{knob}" if any(knob in request.settings for request in requests.requests) else "knobs"
    own_knobs = next((knobs for other, knobs in requests.requests[-1].optimizations if other == name), None)
    if own_knobs is None:
        return "run"
    return f"o:{name}:{knob}" if knob in own_knobs else f"o:{name}"


def modes_of(form: FormFields, listing: Mapping[str, Any]) -> list[str]:
    """training, inference or both; none where the workload does not let one choose."""
    row = _row(listing["workloads"], form.workload)
    knob = _row(row["knobs"], "mode") if row else None
    modes = values_of(knob, form.knobs.get("mode", str(knob["default"]))) if knob else []
    # LoRA trains too, though not the weights.
    return ["training" if mode == "lora" else mode for mode in modes]


def _row(rows: Any, name: str) -> dict[str, Any] | None:
    return next((row for row in rows if row["name"] == name), None)
