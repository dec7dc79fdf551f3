"""The page as all visitors get it: made and compressed once, and without hidden components.

Gradio would write the page and compress its eighty files for each visitor. Its script names the next ones, five
times over, so the head names all of them, from Gradio's table of what each component needs. Programs read the whole
configuration at another address.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import gradio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memviz.ui.html.markup import Html, esc

_CONFIG = re.compile(rb"(?<=window\.gradio_config = )\{.*?\}(?=;</script>)", re.DOTALL)
_IN_A_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&'\u2028\u2029"}

Rewrite = Callable[[Mapping[str, Any]], dict[str, Any]]


def without_hidden(config: Mapping[str, Any], hidden: int) -> dict[str, Any]:
    """Without the block of this number, what is in it, and the events of nothing else."""
    gone: set[int] = set()
    layout = _without(config["layout"], hidden, gone)
    events = [each for each in config["dependencies"] if not _is_of(each, gone)]
    components = [each for each in config["components"] if each["id"] not in gone]
    kept_events = {each["id"] for each in events}
    pages = {name: _page(page, hidden, gone, kept_events) for name, page in config.get("page", {}).items()}
    return {**config, "layout": layout, "dependencies": events, "components": components, "page": pages}


def kinds_of(config: Mapping[str, Any]) -> set[str]:
    return {component["type"] for component in config["components"]}


def rewritten(page: bytes, rewrite: Rewrite) -> bytes:
    """The page with another configuration; as it is where it has none that can be read."""
    found = _CONFIG.search(page)
    if found is None:
        return page
    try:
        config = rewrite(json.loads(found[0]))
    except (ValueError, KeyError):
        return page
    text = json.dumps(config, ensure_ascii=False, separators=(",", ":")).translate(_IN_A_SCRIPT)
    return page[: found.start()] + text.encode() + page[found.end() :]


def _page(page: dict[str, Any], hidden: int, gone: set[int], events: set[int]) -> dict[str, Any]:
    return {
        **page,
        "layout": _without(page["layout"], hidden, set()),
        "components": [number for number in page["components"] if number not in gone],
        "dependencies": [number for number in page["dependencies"] if number in events],
    }


def _without(node: dict[str, Any], hidden: int, gone: set[int]) -> dict[str, Any]:
    """The same tree without that node; what was there is noted."""
    left = []
    for child in node.get("children") or ():
        if child["id"] == hidden:
            gone.update(_numbers(child))
        else:
            left.append(_without(child, hidden, gone))
    return {**node, "children": left} if "children" in node else node


def _numbers(node: dict[str, Any]) -> Iterator[int]:
    yield node["id"]
    for child in node.get("children") or ():
        yield from _numbers(child)


def _is_of(event: dict[str, Any], gone: set[int]) -> bool:
    """Return True if every component that triggers the event is gone."""
    targets = [number for number, _ in event["targets"]]
    return bool(targets) and gone.issuperset(targets)


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


def preload_html(files: Iterable[str]) -> Html:
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
        """Yield the dynamic imports of a script, each with the scripts that load along with it."""
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


_ASSETS, _FONTS, _THEME = "/assets/", "/static/fonts/", "/theme.css"
SCRIPT = "/gradio_api/memviz/page.js"
_MOST, _MOST_BYTES = 400, 4 << 20
_LEAST_PACKED = 500
_A_DAY, _FOR_EVER = b"public, max-age=86400", b"public, max-age=31536000, immutable"
"""A name of Gradio's assets holds what they are; the other addresses that end so are asked for with it."""
_DECIDES_THE_ADDRESS = ("host", "x-forwarded-host", "x-forwarded-proto", "x-gradio-server")
_ASKED_IN_PART = ("range", "if-none-match", "if-modified-since", "if-range")
_OWN_ANSWER = (b"deep_link", b"all_endpoints")
"""In a query: Gradio's page is another one then."""
_BASE = re.compile(rb"<base [^>]*>")
_THEME_HASH = re.compile(rb'"theme_hash":\s*"(\w+)"')


@dataclass(frozen=True)
class _Kept:
    body: bytes
    packed: bytes | None
    kind: bytes
    caching: bytes | None

    @classmethod
    def of(cls, body: bytes, kind: bytes, caching: bytes | None) -> _Kept:
        is_text = kind.startswith((b"text/", b"application/javascript"))
        packed = gzip.compress(body, 6) if is_text and len(body) >= _LEAST_PACKED else None
        return cls(body, packed, kind, caching)

    async def send(self, headers: Headers, send: Send) -> None:
        takes_packed = self.packed is not None and "gzip" in headers.get("accept-encoding", "")
        body = self.packed if takes_packed and self.packed is not None else self.body
        sent = [(b"content-type", self.kind), (b"content-length", str(len(body)).encode())]
        if self.packed is not None:
            sent.append((b"vary", b"Accept-Encoding"))
        if takes_packed:
            sent.append((b"content-encoding", b"gzip"))
        if self.caching is not None:
            sent.append((b"cache-control", self.caching))
        await send({"type": "http.response.start", "status": 200, "headers": sent})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class SharedPage:
    def __init__(self, first_lines: Html, script: str, seen: Rewrite = dict) -> None:
        """`first_lines` come into the head of the page, and then `script`, which runs before Gradio's.

        `seen`: of the page's configuration, what browsers are given.
        """
        self.seen = seen
        self._script = _Kept.of(script.encode(), b"application/javascript", _FOR_EVER)
        address = f".{SCRIPT}?v={sha256(script.encode()).hexdigest()[:16]}"
        self._lines = f'{first_lines}<script defer src="{address}"></script>'.encode()
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()

    async def answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> bool:
        """False where somebody else has to."""
        path: str = scope["path"]
        headers = Headers(scope=scope)
        if scope["method"] != "GET" or any(name in headers for name in _ASKED_IN_PART):
            return False
        if path == SCRIPT:
            await self._script.send(headers, send)
            return True
        is_page = path == "/"
        if not is_page and path != _THEME and not path.startswith((_ASSETS, _FONTS)):
            return False
        is_alike = not is_page or _is_alike(scope)
        key = (path, *(headers.get(name, "") for name in _DECIDES_THE_ADDRESS), scope["scheme"]) if is_page else (path,)
        kept = self._kept.get(key) if is_alike else None
        if kept is None:
            start, body = await _answered(app, scope, receive)
            if is_page:
                theme = _line_of_theme(body)
                body = _BASE.sub(lambda base: base[0] + theme + self._lines, body, count=1)
                body = rewritten(body, self.seen)
            kept = _to_keep(start, body, path) if is_alike else None
            if kept is None:
                await _send_on(start, body, send)
                return True
            self._kept[key] = kept
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        await kept.send(headers, send)
        return True


class StaticCache:
    """Middleware that answers requests from the cache, inside the request guard."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            same: SharedPage = scope["app"].get_blocks().same_for_all
            if await same.answer(self._app, scope, receive, send):
                return
        await self._app(scope, receive, send)


def _line_of_theme(page: bytes) -> bytes:
    """Gradio knows its hash once it is up."""
    said = _THEME_HASH.search(page)
    return b'<link rel="preload" as="style" href=".%s?v=%s">' % (_THEME.encode(), said[1]) if said else b""


async def _answered(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[Message, bytes]:
    """Return Gradio's own response, uncompressed."""
    start: Message = {}
    parts: list[bytes] = []

    async def hear(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    await app({**scope, "headers": _plain(scope)}, receive, hear)
    return start, b"".join(parts)


def _to_keep(start: Message, body: bytes, path: str) -> _Kept | None:
    headers = Headers(raw=start["headers"])
    if start["status"] != 200 or "set-cookie" in headers or len(body) > _MOST_BYTES:
        return None
    caching = None if path == "/" else _A_DAY if path.startswith(_FONTS) else _FOR_EVER
    return _Kept.of(body, headers.get("content-type", "").encode(), caching)


async def _send_on(start: Message, body: bytes, send: Send) -> None:
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["content-length"] = str(len(body))
    await send({**start, "headers": headers.raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _plain(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]


def _is_alike(scope: Scope) -> bool:
    """Return True if every visitor gets the same page; with authentication Gradio's page has the user's name."""
    app: Any = scope["app"]
    if getattr(app, "auth", None) is not None or getattr(app, "auth_dependency", None) is not None:
        return False
    return not any(word in scope.get("query_string", b"") for word in _OWN_ANSWER)
