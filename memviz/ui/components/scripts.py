"""The page's scripts are ES modules; `bundle` makes one plain script of those that a page or a report needs.

How it works, without node: starting at the entries, every `import { a, b as c } from "./x.js";` is followed, and each
module is written once, after those that it imports, as a function that returns what it exports:

    modules["words.js"] = (() => { ...; return { bytesText }; })();

An import becomes `const { a, b: c } = modules["x.js"];`, and `export` before a function, class or const is left out.
So type checkers and browsers see modules, and whoever embeds the text sees one script that needs no address. Modules
may import relative paths by name only, each import on one line, and not in a circle; anything else is refused here.
What an entry exports is reached as `memviz.<its file's stem>`, as in `memviz.timeline.mount(element, gradio)`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_HERE = Path(__file__).parent
_IMPORT = re.compile(r'^import \{ ([^{}\n]+) \} from "(\.\.?/[^"\n]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:(?:async )?function\*? |class |const )(\w+))", re.MULTILINE)
_NOT_UNDERSTOOD = re.compile(r"^(?:.*\*/)?[ \t]*(?:import|export)\b(?!\().*$", re.MULTILINE)
_GLOBAL = "const memviz = (globalThis.memviz ??= {});"


def bundle(*entries: Path) -> str:
    """One script, to be put into a `<script>` as it is."""
    modules: dict[Path, str] = {}
    for entry in entries:
        _add(entry.resolve(), modules, importing=())
    reached = [f'memviz["{entry.stem}"] = modules["{_name(entry.resolve())}"];' for entry in entries]
    lines = ["(() => {", '"use strict";', "const modules = {};", *modules.values(), _GLOBAL, *reached, "})();", ""]
    return "\n".join(lines)


def _add(path: Path, modules: dict[Path, str], importing: tuple[Path, ...]) -> None:
    if path in importing:
        circle = " -> ".join(_name(script) for script in (*importing, path))
        raise ValueError(f"These scripts import each other in a circle: {circle}")
    if path in modules:
        return
    source = path.read_text(encoding="utf-8")
    for match in _IMPORT.finditer(source):
        _add((path.parent / match[2]).resolve(), modules, (*importing, path))
    modules[path] = _as_function(path, source)


def _as_function(path: Path, source: str) -> str:
    exports = [match[1] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(lambda match: _import(path, match), source))
    wrong = _NOT_UNDERSTOOD.search(body)
    if wrong or "</script" in body:
        raise ValueError(f"{_name(path)} cannot be bundled: {wrong[0] if wrong else 'it ends a script'}")
    return f'modules["{_name(path)}"] = (() => {{\n{body}\nreturn {{ {", ".join(exports)} }};\n}})();'


def _import(path: Path, match: re.Match[str]) -> str:
    names = match[1].replace(" as ", ": ")
    return f'const {{ {names} }} = modules["{_name((path.parent / match[2]).resolve())}"];'


def _name(path: Path) -> str:
    return Path(os.path.relpath(path, _HERE)).as_posix()
