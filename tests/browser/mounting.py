"""Mount one component on an empty page with Python behind it and without Gradio: fast and isolated."""

import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memviz.trace.model import Trace
from memviz.ui.components.component import Component
from memviz.ui.components.plots import MemoryTimeline, piece_server
from memviz.ui.components.scripts import bundle
from memviz.ui.payloads.timelines import timeline_value

_UI = Path(__file__).parents[2] / "memviz" / "ui"
_COMPONENTS = _UI / "components"

PAGE = """<!doctype html><html><head><style>body {{ margin: 16px; font-family: sans-serif; background: var(--mv-bg); }}
{style}</style></head><body><div id="host"><div class="mv-place"></div></div></body></html>"""

MOUNT = """
async ([mount, functions, value]) => {
  window.heard = [];
  window.addEventListener("memviz:go", ({ detail }) => window.heard.push(detail));
  window.say = (state) => window.dispatchEvent(new CustomEvent("memviz:state", { detail: state }));
  const ask = (name) => async (asked) => JSON.parse(await window.python(name, JSON.stringify(asked)));
  const server = Object.fromEntries(functions.map((name) => [name, ask(name)]));
  const props = { value };
  let changed = () => {};
  window.give = (next) => { props.value = next; changed(); };
  const watch = (_, call) => { changed = call; };
  memviz[mount].mount(document.getElementById("host"), { props, server, watch, tell: { select: () => {} } });
}
"""


TIMELINE = "document.getElementById('host').memviz"
"""The component that is mounted, in JavaScript."""
_behind: weakref.WeakKeyDictionary[Any, dict[str, Callable[[str], str]]] = weakref.WeakKeyDictionary()
"""Functions that each page may call; a function exposed to a page stays exposed."""


@dataclass
class Mounted:
    page: Any
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Requests that the browser sent to the server."""
    errors: list[str] = field(default_factory=list)

    @property
    def heard(self) -> list[dict[str, Any]]:
        """`memviz:go` so far."""
        return self.page.evaluate("window.heard")

    def say(self, **state: Any) -> None:
        """Send a state as the timeline would."""
        self.page.evaluate("(state) => window.say(state)", state)


def load(page: Any, *modules: str) -> None:
    """Load modules by their path in the components folder; each exports `memviz.<stem>`."""
    page.add_script_tag(content=bundle(*(_COMPONENTS / module for module in modules)))


def mount(
    page: Any, component: type[Component], *, serve: list[Callable[[Any], Any]], value: Any, more: tuple[str, ...] = ()
) -> Mounted:
    """Mount a component; `more` are modules that the test itself uses."""
    shown = Mounted(page)
    page.on("pageerror", lambda error: shown.errors.append(str(error)))
    style = (_UI / "shell" / "page_frame.css").read_text() + MemoryTimeline.style() + component.style()
    if page not in _behind:
        page.expose_function("python", lambda name, asked: _behind[page][name](asked))
    _behind[page] = {function.__name__: _answering(function, shown) for function in serve}
    # Clear the previous content, and move the mouse away.
    page.goto("about:blank")
    page.mouse.move(0, 0)
    page.set_content(PAGE.format(style=style))
    load(page, *more, str(component.script))
    page.evaluate(MOUNT, [component.script.stem, [function.__name__ for function in serve], value])
    return shown


def mount_timeline(page: Any, trace: Trace, *, key: str = "trace", state: dict[str, Any] | None = None) -> Mounted:
    """Mount the timeline of the first device, wait until it is drawn, and note its states in `window.states`."""
    device = trace.devices[0]
    value = timeline_value(trace, device, key, state=state)
    shown = mount(page, MemoryTimeline, serve=[piece_server(lambda _: (trace, device))], value=value)
    page.locator(".mvt[data-drawn]").wait_for()
    page.evaluate("window.states = []; addEventListener('memviz:state', ({ detail }) => window.states.push(detail))")
    return shown


def take_tool(page: Any, name: str) -> None:
    """Press what is in the timeline's menu of tools."""
    page.locator(".mvt-tools summary").first.click()
    page.locator(".mvt-tools").first.get_by_role("button", name=name, exact=True).click()
    page.evaluate("document.querySelectorAll('.mvt-tools').forEach((menu) => (menu.open = false))")


def _answering(function: Callable[[Any], Any], shown: Mounted) -> Callable[[str], str]:
    def answer(text: str) -> str:
        asked = json.loads(text)
        shown.asked.append(asked)
        return json.dumps(function(asked))

    return answer
