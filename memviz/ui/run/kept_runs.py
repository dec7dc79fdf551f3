"""The runs that were kept for this visitor: a name that can be changed, the figures, and what to do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memviz.headlines.run import reserved_bytes
from memviz.runner.jobs.kept_runs import KeptRun
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import rounded

_SHOWN = 50


def kept_value(kept: Sequence[KeptRun], fault: str = "") -> dict[str, Any]:
    version = "|".join([fault, *(f"{run.id}{run.name}" for run in kept)])
    return {"version": version, "html": _html(kept) if kept else "", "faults": {"kept": fault}, "parts": {}}


def _html(kept: Sequence[KeptRun]) -> Html:
    rows = [tag("tr", *_cells(run)) for run in kept[:_SHOWN]]
    return tag(
        "details",
        tag("summary", tag("h2", f"Kept runs, {len(kept)}", class_="mv-h2")),
        tag("p", _WORDS, class_="mv-soft"),
        tag("p", class_="mv-fault", data_fault="kept", role="alert"),
        tag("table", tag("thead", tag("tr", *_HEAD)), tag("tbody", *rows), class_="mv-table mv-kept-runs"),
    )


_WORDS = "Only this browser sees them. They outlive a restart of the page, and go after 30 days unseen."
_HEAD = (
    tag("th", "Name", scope="col"),
    tag("th", "Workload", scope="col"),
    tag("th", "Allocated", scope="col", class_="mv-number"),
    tag("th", "Reserved", scope="col", class_="mv-number"),
    tag("th", tag("span", "What to do", class_="mv-hidden"), scope="col"),
)
_ACTS = (("Open", "reopen"), ("Rename", "rename"), ("Delete", "delete"))


def _cells(kept: KeptRun) -> list[Html]:
    name = tag("input", type="text", name_=f"name:{kept.id}", value=kept.name, aria_label=f"Name of {kept.name}")
    run = kept.run
    where = f"{run.mode} {'for' if run.mode == 'predicted' else 'on'} {run.device}"
    return [
        tag("td", name),
        tag("td", f"{run.request.workload}, {where}"),
        tag("td", rounded(run.peak_allocated_bytes), class_="mv-number"),
        tag("td", rounded(reserved_bytes(run)), class_="mv-number"),
        tag("td", *(_button(words, act, kept) for words, act in _ACTS)),
    ]


def _button(words: str, act: str, kept: KeptRun) -> Html:
    label = f"{words} {kept.name}"
    return tag("button", words, type="button", class_="mv-quiet", data_act=act, data_id=kept.id, aria_label=label)
