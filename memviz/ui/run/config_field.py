"""The field for a config.json in the Run tab: a text that is pasted, or a file that is dropped or chosen."""

from __future__ import annotations

from functools import lru_cache

from memviz.errors import UsageError
from memviz.runner.config_source import FILE as CONFIG
from memviz.runner.config_source import checked_config
from memviz.runner.hub_config import fetched, is_hub_id, is_on
from memviz.ui.html.markup import Html, joined, tag

__all__ = ["CONFIG", "config_field_html", "config_of"]

_MOST_LETTERS = 1 << 20
"""What the page sends is bounded anyway; this says so at the field."""


def config_of(text: str) -> tuple[str, str]:
    """The configuration, or what is wrong with it. No file of this machine is read, whatever stands there."""
    if not text.strip():
        return "", f"Paste a {CONFIG} here, drop the file, or choose it."
    if len(text) > _MOST_LETTERS:
        return "", f"It is longer than {_MOST_LETTERS:,} letters. Take its lists of labels out, and say num_labels."
    try:
        return _checked(text.strip(), is_on()), ""
    except UsageError as error:
        return "", str(error)


@lru_cache(maxsize=32)
def _checked(text: str, from_the_hub: bool) -> str:
    """A form is read again with each letter that is typed."""
    if from_the_hub and is_hub_id(text):
        return checked_config(fetched(text, _MOST_LETTERS), text)
    return checked_config(text)


def config_field_html(text: str) -> Html:
    hub = ", or owner/model of the Hugging Face hub" if is_on() else ""
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
        tag("label", tag("span", f"Its {CONFIG}: paste it, drop it here, or choose it{hub}"), area, class_="mv-wide"),
        tag("p", chooser, class_="mv-config-file"),
        tag("p", class_="mv-fault", data_fault="config", role="alert"),
    )
