"""The data of a figure as a browser receives it."""

import json
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go

MARKUP = '<b>bold</b><a href="javascript:x">$y$ %{x}'
HARMLESS = "&lt;b&gt;bold&lt;/b&gt;"
LARGEST = 300_000


def spec(figure: go.Figure) -> dict[str, Any]:
    """Through plotly's own serialiser, so that a broken figure fails; and small enough for a page."""
    text = figure.to_json()
    assert len(text) <= LARGEST
    return json.loads(text)


def texts(figure: go.Figure) -> list[str]:
    return list(_texts(spec(figure)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def markup_in(figure: go.Figure) -> list[str]:
    """Texts in which plotly would find more than we write ourselves: tags, TeX, or a template of the trace's."""
    found = []
    for text in texts(figure):
        rest = text.replace("<br>", "").replace("<extra></extra>", "")
        if "<" in rest or "$" in rest:
            found.append(text)
    return found + [template for template in _templates(figure) if "%{x}" in template]


def _templates(figure: go.Figure) -> list[str]:
    return [trace[key] for trace in spec(figure)["data"] for key in ("hovertemplate", "texttemplate") if key in trace]


def trace_named(figure: go.Figure, name: str) -> dict[str, Any]:
    return next(trace for trace in spec(figure)["data"] if trace.get("name") == name)


def titles(figure: go.Figure) -> str:
    return str(figure.layout.title.text)


def notes(figure: go.Figure) -> list[str]:
    return [annotation.text for annotation in figure.layout.annotations]
