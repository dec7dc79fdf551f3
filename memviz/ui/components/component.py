"""The base of all components, and those that show HTML: panel, search field, form, tab turns, arriving files.

A subclass names its script, whose `mount(element, gradio)` is called in the browser with `props`, `watch`,
`server` and `tell`: `gradio.tell.select(data)` is the event `select` in Python. `base.js` has the class that
scripts build on.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import gradio as gr

from memviz.errors import MemvizError, UsageError
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.scripts import bundle

_HERE = Path(__file__).parent
Find = Callable[[str], tuple[Trace, DeviceTrace] | None]
"""Return the trace and device of a key; None if it is not open."""
Request = dict[str, Any]
Answer = TypeVar("Answer")


class Component(gr.HTML):
    source: ClassVar[str]
    """Its script in this folder, without `.js`; a style sheet beside it belongs to it."""
    script: ClassVar[Path]
    tells: ClassVar[tuple[str, ...]] = ()
    """Events of Gradio's that the script sets off."""

    def __init__(
        self,
        value: str | None = None,
        *,
        html_template: str = '<div class="mv-place"></div>',
        server_functions: Sequence[Callable[[Any], Any]] = (),
        **options: Any,
    ) -> None:
        super().__init__(
            value,
            html_template=html_template,
            js_on_load=self._mounting("server" if server_functions else "server: {}"),
            server_functions=list(server_functions),
            apply_default_css=False,
            **options,
        )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.script = _HERE / f"{cls.source}.js"

    @classmethod
    def style(cls) -> str:
        looks = cls.script.with_suffix(".css")
        return looks.read_text(encoding="utf-8") if looks.exists() else ""

    def _mounting(self, server: str) -> str:
        # Gradio looks for an event's name, in quotes, in this very text.
        tell = ", ".join(f"{event}: (data) => trigger('{event}', data)" for event in self.tells)
        return f"memviz.{self.script.stem}.mount(element, {{ props, watch, {server}, tell: {{ {tell} }} }});"

    # One text: of an object Gradio would send differences from one yield to the next and apply them to the object that
    # it has handed over, and a value that is not drawn yet when `gr.skip()` follows would be lost.
    def postprocess(self, value: Any) -> str | None:
        # Numbers of numpy become Python's.
        return json.dumps(value, default=lambda each: each.tolist()) if isinstance(value, dict) else value

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def served(answer: Callable[[Request], Answer]) -> Callable[[Any], Answer]:
    """Wrap `answer` as a server function: it always receives a dict, and its errors are shown in the browser."""

    @wraps(answer)
    def ask(request: Any) -> Answer:
        sent = request[0] if isinstance(request, list) and request else request
        try:
            return answer(sent if isinstance(sent, dict) else {})
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return ask


def requested_trace(find: Find, request: Mapping[str, Any]) -> tuple[Trace, DeviceTrace]:
    pair = find(str(request.get("key", "")))
    if pair is None:
        raise UsageError("This trace is no longer open.")
    return pair


class Panel(Component):
    """A piece of the page in plain HTML that reports clicks.

    A button with `data-act` is a control: a click on it becomes Gradio's `click` with the button's data.
    """

    source = "panel"
    tells: ClassVar[tuple[str, ...]] = ("click",)

    def __init__(self, value: str = "", **options: Any) -> None:
        super().__init__(value, html_template="${value}", **options)

    def api_info(self) -> dict[str, Any]:
        return {"type": "string"}


def clicked(event: gr.EventData) -> dict[str, str]:
    """The data of what was clicked. It comes from a browser: texts only."""
    data = event._data if isinstance(event._data, dict) else {}
    return {str(key): str(value) for key, value in data.items()}


LONGEST = 200
"""Characters of a query."""
_TEMPLATE = f"""
<label class="mv-find" data-mv-find>
  <span>Find</span>
  <input type="search" maxlength="{LONGEST}" spellcheck="false" autocomplete="off"
    placeholder="function, file, &gt;10MiB, &lt;1s"
    title="All words must be found in functions, files, modules or categories.
Limits: &gt;10MiB, &lt;512KiB, &gt;1s, &lt;5ms, &gt;1000ev">
  <kbd>/</kbd>
</label>
"""


class FindField(Component):
    source = "find_field"
    tells = ("input",)

    def __init__(self, **options: Any) -> None:
        super().__init__(html_template=_TEMPLATE, **options)


def typed(event: gr.EventData) -> str:
    """It comes from a browser: a text of bounded length."""
    query = event._data.get("query", "") if isinstance(event._data, dict) else ""
    return str(query)[:LONGEST]


class PlainForm(Component):
    """`input` carries the fields after a change, `click` the fields and the data of the button (`act` and more).

    `value` is a dict: `html` is drawn when `version` changes, `faults` go by field to the elements with `data-fault`,
    and `parts` replace the content of elements with `data-part`, so a visitor is not interrupted while typing.
    A select with `data-for` holds usual values for that field; one with `data-fills` fills that field with the
    `data-usable` of the chosen option, until something else is typed there. The text of a file chosen where
    `data-reads` names a field, or dropped on one with `data-dropped`, becomes that field's value.
    """

    source = "plain_form/plain_form"
    tells = ("input", "click")


def form_fields(event: gr.EventData) -> dict[str, Any]:
    """The fields by name. They come from a browser: texts and booleans only."""
    data = event._data if isinstance(event._data, dict) else {}
    return {str(key): value if isinstance(value, bool) else str(value) for key, value in data.items() if key != "turn"}


def turn_of(event: gr.EventData) -> int:
    """When a form sent this, in milliseconds: events can overtake each other. 0 where that is not said."""
    text = clicked(event).get("turn", "")
    return int(text[:15]) if text.isdecimal() else 0


class TabTurn(Panel):
    """Turns the page to a tab, unless its visitor has chosen a tab since asking; Gradio's `selected` cannot do that.

    `submit` stays within the page; `select` reports a turn that was left out, with the tab that is shown.
    """

    source = "turn"
    tells = ("submit", "select")
    chosen = "() => memviz.turn.chosen()"
    """The update for Gradio's tabs, in the browser, where nothing else has to travel."""


def turn_to(tab: str) -> str:
    """The value that turns the page; to the same tab again is another turn."""
    return f"{tab} {secrets.token_hex(4)}"


def worker_html() -> str:
    """Return the worker's script as inline text, which needs no address of its own."""
    return f'<script type="text/plain" id="memviz-worker">{bundle(_HERE / "arrivals" / "worker.js")}</script>'


class Arrivals(Component):
    """Its `click` carries `stored`, a key of the store whose trace is open now; or `refused`, a name, and `reason`."""

    source = "arrivals/arrivals"
    tells = ("click",)
