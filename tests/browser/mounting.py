"""One component on an empty page, with Python behind it and no Gradio between: quick, and nothing else to fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UI = Path(__file__).parents[2] / "memviz" / "ui"
TIMELINE = ("memory_timeline/raster.js", "memory_timeline/words.js", "memory_timeline/timeline.js")

PAGE = """<!doctype html><html><head><style>body {{ margin: 16px; font-family: sans-serif; background: var(--mv-bg); }}
{style}</style></head><body><div id="host"><div class="{place}"></div></div></body></html>"""

MOUNT = """
async ([mount, functions, value]) => {
  window.heard = [];
  window.addEventListener("memviz:go", ({ detail }) => window.heard.push(detail));
  window.say = (state) => window.dispatchEvent(new CustomEvent("memviz:state", { detail: state }));
  const ask = (name) => async (asked) => JSON.parse(await window[`py_${name}`](JSON.stringify(asked)));
  const server = Object.fromEntries(functions.map((name) => [name, ask(name)]));
  const props = { value };
  let changed = () => {};
  window.give = (next) => { props.value = next; changed(); };
  const watch = (_, call) => { changed = call; };
  globalThis[mount].mount(document.getElementById("host"), { props, server, watch });
}
"""


@dataclass
class Mounted:
    page: Any
    asked: list[dict[str, Any]] = field(default_factory=list)
    """What the browser asked the server for."""
    errors: list[str] = field(default_factory=list)

    @property
    def heard(self) -> list[dict[str, Any]]:
        """`memviz:go` so far."""
        return self.page.evaluate("window.heard")

    def say(self, **state: Any) -> None:
        """What the timeline would say."""
        self.page.evaluate("(state) => window.say(state)", state)


def mount(
    page: Any, folder: str, *, scripts: tuple[str, ...], serve: list[Callable[[Any], Any]], value: Any
) -> Mounted:
    """`folder` names the component and its JavaScript object, as `event_list` does memvizEventList."""
    shown = Mounted(page)
    page.on("pageerror", lambda error: shown.errors.append(str(error)))
    style = (UI / "shell" / "page_frame.css").read_text() + (UI / "components" / folder / f"{folder}.css").read_text()
    style += (UI / "components" / "memory_timeline" / "timeline.css").read_text()
    name = "memviz" + "".join(part.capitalize() for part in folder.split("_"))
    for function in serve:
        page.expose_function(f"py_{function.__name__}", _answering(function, shown))
    page.set_content(PAGE.format(style=style, place=f"mv{'e' if folder == 'event_list' else 's'}-place"))
    for script in scripts:
        page.add_script_tag(path=str(UI / "components" / script))
    page.evaluate(MOUNT, [name, [each.__name__ for each in serve], value])
    return shown


def _answering(function: Callable[[Any], Any], shown: Mounted) -> Callable[[str], str]:
    def answer(text: str) -> str:
        asked = json.loads(text)
        shown.asked.append(asked)
        return json.dumps(function(asked))

    return answer
