"""The form of the What if tab: how much memory, which settings. PyTorch's own names, one sentence each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from memviz.allocator.context import UNKNOWN
from memviz.allocator.replayer import CARD_BYTES, CardMemory
from memviz.allocator.settings import environment_text
from memviz.text import Html, joined, tag
from memviz.ui.html.elements import button, fault_place, menu, text_input
from memviz.ui.what_if.question import ANY_CARD, KEYS, RELEASES, ParsedQuestion, Question, what_if_query
from memviz.units import bytes_text


@dataclass(frozen=True)
class _Knob:
    field: str
    sentence: str
    off: str
    """Shown for an empty field."""
    usual: tuple[str, ...]


_MAX_SPLIT = "Blocks of this size or larger are not split."
_ROUNDUP = "Rounds requests up, so that more blocks can be reused."
_THRESHOLD = "Frees unused segments early; works only with per_process_memory_fraction."
_KNOBS = (
    _Knob("max_split", _MAX_SPLIT, "no limit", ("21", "32", "64", "128", "256", "512")),
    _Knob("roundup", _ROUNDUP, "off", ("2", "4", "8", "16", "[256:1,512:2,1024:4,>:8]")),
    _Knob("threshold", _THRESHOLD, "off", ("0.6", "0.8", "0.9")),
)
_EXPANDABLE = "One growing range per pool instead of fixed segments."
_MORE = "Other keys, as in PYTORCH_CUDA_ALLOC_CONF."
_RELEASE = "PyTorch release of the keys. Placement of memory is the same since 2.0."


@dataclass(frozen=True)
class KnownMemory:
    """Memory that the process could use, if the recording shows it."""

    memory: int | None
    is_exact: bool = True
    """It ran out, and the driver said how much was free. Otherwise it got so much, and was refused more."""


def form_value(question: Question, parsed: ParsedQuestion, memory: KnownMemory, *, version: str) -> dict[str, Any]:
    """Return the form's value. Only another `version` redraws it, so typing is not interrupted."""
    conf = parsed.settings.to_text() if parsed.settings is not None else None
    pasted = Html("")
    if conf is not None:
        # It may break where a person would break it.
        line = environment_text(conf)
        parts = [part for piece in re.split("(?<=[=,])", line) for part in (piece, Html("<wbr>"))]
        copy = button("Copy", None, None, data_mv_copy=line)
        pasted = joined(tag("p", tag("span", "Paste before starting Python"), copy), tag("code", *parts))
    return {
        "version": version,
        "html": form_html(question, parsed.overhead_bytes, memory),
        "faults": dict(parsed.faults),
        "parts": {"pasted": pasted, "link": tag("i", data_mv_query=what_if_query(question))},
    }


def form_html(question: Question, overhead_bytes: int, known_memory: KnownMemory) -> Html:
    switch = {"type": "checkbox", "name_": "expandable", "checked": question.expandable, "role": "switch"}
    expandable = tag("input", **switch, aria_describedby=_help_id("expandable"))
    more = text_input("more", question.more, placeholder="large_segment_size_mb:40", aria_describedby=_help_id("more"))
    releases = [(f"{major}.{minor}", f"torch {major}.{minor}") for major, minor in RELEASES]
    release = menu("release", question.release, releases, aria_describedby=_help_id("release"))
    first, *others = (_knob(knob, getattr(question, knob.field)) for knob in _KNOBS)
    rare = [
        *others,
        _setting("more", tag("span", "other keys"), more, _MORE, "mv-wide"),
        _setting("release", tag("code", "allocator rules of"), release, _RELEASE),
    ]
    is_rare_used = bool(question.roundup or question.threshold or question.more)
    fields = [
        _memory(question, overhead_bytes, known_memory),
        _overhead(question),
        _setting("expandable", tag("code", "expandable_segments"), expandable, _EXPANDABLE),
        first,
        tag("details", tag("summary", "More settings"), *rare, class_="mv-rare", open=is_rare_used),
    ]
    buttons = (
        tag("button", "Replay", type="submit", class_="mv-primary", data_act="replay"),
        button("Find the best", "best", None),
    )
    return joined(
        tag("details", tag("summary", "Memory and settings"), *fields, class_="mv-fields"),
        tag("p", *buttons, class_="mv-buttons"),
        tag("div", class_="mv-pasted", data_part="pasted"),
        tag("div", data_part="link"),
    )


def _memory(question: Question, overhead_bytes: int, known_memory: KnownMemory) -> Html:
    cards = [tag("option", "of any card", value=ANY_CARD, selected=not question.card)]
    for gib in (size >> 30 for size in CARD_BYTES):
        usable = _usable(gib, overhead_bytes)
        text = f"{gib} GiB card, {usable.removesuffix(' GiB')} usable"
        cards.append(tag("option", text, value=str(gib), data_usable=usable, selected=question.card == str(gib)))
    value = _usable(int(question.card), overhead_bytes) if question.card.isdigit() else question.memory
    label = "Memory for this process"
    described = None if known_memory.memory is None else _help_id("memory")
    field = text_input("memory", value, placeholder="without limit", aria_label=label, aria_describedby=described)
    card = tag("select", *cards, name_="card", data_fills="memory", aria_label="Card")
    row = tag("div", field, card, class_="mv-combo mv-memory")
    known = Html("")
    if known_memory.memory is not None:
        condition = "at the OOM: reserved plus free on the device."
        if not known_memory.is_exact:
            condition = "at least: it reserved that much before a request failed and the cache was freed."
        known = _help("memory", f"{bytes_text(known_memory.memory)} was available {condition}")
    return tag("div", tag("h3", "Memory"), row, fault_place("memory"), known, class_="mv-field")


def _usable(gib: int, overhead_bytes: int) -> str:
    usable = CardMemory(gib << 30, overhead_bytes).usable_bytes / (1 << 30)
    return f"{usable:.2f}".rstrip("0").rstrip(".") + " GiB"


def _overhead(question: Question) -> Html:
    """Shown while a card is chosen."""
    field = text_input("overhead", question.overhead, size="8", aria_describedby=_help_id("overhead"))
    text = f"Not in the file. Measured: {UNKNOWN.interval}, by GPU generation."
    row = tag("label", tag("span", "CUDA context and libraries"), field)
    return tag("div", row, _help("overhead", text), fault_place("overhead"), class_="mv-field mv-assumed")


def _setting(name: str, label: Html, control: Html, sentence: str, kind: str | None = None) -> Html:
    """One setting: its name, its control, help that shows beside it, and the place for its fault."""
    row = tag("label", label, control, class_=kind)
    return tag("div", row, _help(name, sentence), fault_place(name), class_="mv-field")


def _help_id(name: str) -> str:
    return f"what-if-help-{name}"


def _help(name: str, sentence: str) -> Html:
    """Shown while the field is pointed at or has the focus."""
    return tag("p", sentence, id=_help_id(name), role="tooltip", class_="mv-help")


def _knob(knob: _Knob, value: str) -> Html:
    """A text field for any value, and a menu of the usual ones."""
    usual = [tag("option", "", value="", hidden=True), tag("option", knob.off, value="off")]
    usual += [tag("option", choice, value=choice) for choice in knob.usual]
    choices = tag("select", *usual, data_for=knob.field, aria_label="Usual values")
    typed = text_input(knob.field, value, placeholder=knob.off, aria_describedby=_help_id(knob.field))
    control = tag("span", typed, choices, class_="mv-combo")
    return _setting(knob.field, tag("code", KEYS[knob.field]), control, knob.sentence)
