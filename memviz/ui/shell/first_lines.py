"""What a page loads, named in its first lines.

Gradio's page asks for one script, which names the next ones, and so on, five times over; only then does it know which
kinds of components it shows. All of them are known here beforehand, from Gradio's own table of what each kind needs.
Where that cannot be read, nothing is named, and the page comes as Gradio sends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import gradio

from memviz.ui.html.markup import Html, esc

FRONTEND = Path(gradio.__file__).parent / "templates" / "frontend"
_ENTRY = re.compile(r'<script type="module"[^>]* src="\./assets/([\w.-]+\.js)"')
_STATIC = re.compile(r'(?:from|import)"\./([\w.-]+\.js)"')
_LATER = re.compile(
    r"import\(`\./([\w.-]+\.js)`\)(?:\.then\([^()]*\)|;return\{default:\w+\}\})?(?:,__vite__mapDeps\(\[([\d,]*)\]\))?"
)
_TABLE = re.compile(r"\bm\.f=(\[[^\]]*\])")
_NAMES = re.compile(r'"\./([\w.-]+)"')
_COMPONENT = re.compile(r"\bcomponent:\(\)=>")
_TABLE_OF_KINDS, _PAGE, _BLOCKS = "core-", "Index-", "Blocks-"
_FURTHEST = 2000
"""Characters from a kind's name to its component."""


def files_of_page(frontend: Path, kinds: Iterable[str]) -> list[str]:
    """Names of Gradio's files that a page with components of these kinds loads, in the order of their first mention."""
    try:
        return list(dict.fromkeys(_files(frontend, kinds)))
    except (OSError, UnicodeDecodeError):
        return []


def first_lines(files: Iterable[str]) -> Html:
    return Html("".join(_line(file) for file in files))


def _line(file: str) -> str:
    how = 'rel="modulepreload"' if file.endswith(".js") else 'rel="preload" as="style"'
    return f'<link {how} crossorigin href="./assets/{esc(file)}">'


def _files(frontend: Path, kinds: Iterable[str]) -> Iterator[str]:
    entry = _ENTRY.search((frontend / "index.html").read_text(encoding="utf-8"))
    if entry is None:
        return
    scripts = _Scripts(frontend / "assets")
    yield from scripts.needed(entry[1])
    table = ""
    for name, files in scripts.later(entry[1]):
        if name.startswith(_TABLE_OF_KINDS):
            table = name
        if name.startswith((_PAGE, _TABLE_OF_KINDS)):
            yield from files
        if name.startswith(_PAGE):
            yield from (file for blocks, more in scripts.later(name) if blocks.startswith(_BLOCKS) for file in more)
    for kind in kinds if table else ():
        yield from scripts.component(table, kind)


class _Scripts:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, str] = {}

    def text(self, name: str) -> str:
        if name not in self._read:
            self._read[name] = (self._folder / name).read_text(encoding="utf-8")
        return self._read[name]

    def needed(self, name: str) -> list[str]:
        """With all that it imports, and what these import."""
        found = [name]
        for script in found:
            found += [other for other in _STATIC.findall(self.text(script)) if other not in found]
        return found

    def later(self, name: str) -> Iterator[tuple[str, list[str]]]:
        """What it imports while it runs, each with all that comes along."""
        for match in _LATER.finditer(self.text(name)):
            yield match[1], self._along(name, match)

    def component(self, table: str, kind: str) -> list[str]:
        text = self.text(table)
        begin = re.search(rf"[{{,]{re.escape(kind)}:\{{", text)
        place = begin and _COMPONENT.search(text, begin.end(), begin.end() + _FURTHEST)
        match = place and _LATER.search(text, place.end(), place.end() + _FURTHEST)
        return self._along(table, match) if match else []

    def _along(self, name: str, match: re.Match[str]) -> list[str]:
        table = _TABLE.search(self.text(name))
        names = _NAMES.findall(table[1]) if table else []
        along = [names[int(number)] for number in (match[2] or "").split(",") if number and int(number) < len(names)]
        return [*self.needed(match[1]), *along]
