"""What every component is: one element of Gradio's, drawn by a script of ours from one value.

A subclass names its `script`, whose `mount(element, gradio)` is called in the browser with `props`, `watch`, `server`
and `tell`: `gradio.tell.select(data)` is the event `select` in Python. `base.js` has the class that scripts build on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import gradio as gr

from memviz.errors import MemvizError, UsageError
from memviz.trace.model import DeviceTrace, Trace

PLACE = '<div class="mv-place"></div>'
"""What a script draws goes in here."""
Find = Callable[[str], tuple[Trace, DeviceTrace] | None]
"""The trace and device behind a key; None for a key that nobody (any more) has."""
Request = dict[str, Any]
Answer = TypeVar("Answer")


class Component(gr.HTML):
    script: ClassVar[Path]
    looks: ClassVar[Path | None] = None
    """Its style sheet."""
    tells: ClassVar[tuple[str, ...]] = ()
    """Events of Gradio's that the script sets off."""

    def __init__(
        self,
        value: str | None = None,
        *,
        html_template: str = PLACE,
        server_functions: Sequence[Callable[[Any], Any]] = (),
        **options: Any,
    ) -> None:
        super().__init__(
            value,
            html_template=html_template,
            js_on_load=_mounting(self.script.stem, self.tells, has_server=bool(server_functions)),
            server_functions=list(server_functions),
            apply_default_css=False,
            **options,
        )

    @classmethod
    def style(cls) -> str:
        return cls.looks.read_text(encoding="utf-8") if cls.looks else ""

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def _mounting(name: str, tells: tuple[str, ...], *, has_server: bool) -> str:
    # Gradio looks for an event's name, in quotes, in this very text.
    tell = ", ".join(f"{event}: (data) => trigger('{event}', data)" for event in tells)
    server = "server" if has_server else "server: {}"
    return f"memviz.{name}.mount(element, {{ props, watch, {server}, tell: {{ {tell} }} }});"


def served(answer: Callable[[Request], Answer]) -> Callable[[Any], Answer]:
    """`answer` as a server function: it is given a dict whatever a browser sends, and its errors are shown there."""

    @wraps(answer)
    def ask(request: Any) -> Answer:
        sent = request[0] if isinstance(request, list) and request else request
        try:
            return answer(sent if isinstance(sent, dict) else {})
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return ask


def trace_asked_for(find: Find, request: Request) -> tuple[Trace, DeviceTrace]:
    pair = find(str(request.get("key", "")))
    if pair is None:
        raise UsageError("This trace is not open any more.")
    return pair
