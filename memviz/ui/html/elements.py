"""Elements that several views share: buttons, form fields, tables, and rows of facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from memviz.text import Html, tag


def button(words: object, act: str | None, kind: str | None = "mv-quiet", **attributes: object) -> Html:
    """A button whose click the page reports as `act`; `attributes` as in `tag`."""
    return tag("button", words, type="button", class_=kind, data_act=act, **attributes)


def link(words: object, **attributes: object) -> Html:
    """A button that looks like a link; the page's script reads from `attributes` what a click does."""
    return button(words, None, "mv-link", **attributes)


def switch(
    act: str,
    label: str,
    choices: Mapping[str, str],
    chosen: str,
    *,
    kind: str = "mv-switch",
    disabled: Mapping[str, str] = MappingProxyType({}),
) -> Html:
    """Buttons of which one is pressed; a disabled one gives its reason."""
    buttons = [
        button(
            words,
            act if value not in disabled else None,
            None,
            data_value=value,
            aria_pressed="true" if value == chosen else "false",
            aria_disabled="true" if value in disabled else None,
            title=disabled.get(value),
        )
        for value, words in choices.items()
    ]
    return tag("div", *buttons, class_=kind, role="group", aria_label=label)


def text_input(name: str, value: str, **attributes: object) -> Html:
    return tag(
        "input", type="text", name_=name, value=value, autocomplete="off", spellcheck="false", **attributes
    )  # fmt: skip


def menu(name: str, value: str, options: Iterable[tuple[str, str]], **attributes: object) -> Html:
    """`options` are pairs of a value and its words."""
    made = [tag("option", words, value=choice, selected=choice == value) for choice, words in options]
    return tag("select", *made, name_=name, **attributes)


def checkbox(name: str, on: bool, words: str, title: str | None = None, **attributes: object) -> Html:
    box = tag("input", type="checkbox", name_=name, checked=on, **attributes)
    return tag("label", box, tag("span", words), class_="mv-check", title=title)


def labelled(words: str, control: Html, *more: Html, **attributes: object) -> Html:
    return tag("label", tag("span", words), control, *more, **{"class_": "mv-wide", **attributes})


def fault_place(field: str) -> Html:
    """The place below a form's field where the page shows what is wrong with it."""
    return tag("p", class_="mv-fault", data_fault=field, role="alert")


def number(*content: object, more: str = "", title: str | None = None) -> Html:
    """A cell of figures, aligned on the right; `more` are classes."""
    return tag("td", *content, class_=f"mv-number {more}".rstrip(), title=title)


def table(
    heads: Iterable[tuple[object, str | None]], rows: Iterable[Html], kind: str = "mv-table", foot: Sequence[Html] = ()
) -> Html:
    """`heads` are pairs of words and a class."""
    head = tag("tr", *(tag("th", words, scope="col", class_=of) for words, of in heads))
    parts = [tag("thead", head), tag("tbody", *rows), *([tag("tfoot", *foot)] if foot else [])]
    return tag("table", *parts, class_=kind)


def facts_html(facts: Iterable[tuple[str, object]]) -> Html:
    """Figures below a headline, each behind its words."""
    return tag("p", *(tag("span", words, " ", tag("b", value)) for words, value in facts), class_="mv-facts")
