"""HTML as text, for tests of views: the visible text, and whether text has become markup."""

from html.parser import HTMLParser

HOSTILE = "<b>x</b></script>${1+1}{{value}}\"'"
"""Must be escaped in names of functions, files and annotations."""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def _read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader


def words(html: str) -> str:
    """Return the visible text, with single spaces."""
    return " ".join(" ".join(_read(html).words).split())


def elements(html: str, tag: str, **wanted: str) -> list[dict[str, str | None]]:
    """Return the attributes of matching elements; `data_act="tab"` matches `data-act`."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in wanted.items()}
    return [found for name, found in _read(html).tags if name == tag and named.items() <= found.items()]


def tags(html: str) -> set[str]:
    return {name for name, _ in _read(html).tags}


def rows(html: str) -> list[list[str]]:
    """Cells of every table row as a reader sees them."""
    found: list[list[str]] = []
    for part in html.split("<tr")[1:]:
        cells = [words(f"<td{cell}") for cell in part.replace("<th", "<td").split("<td")[1:]]
        found.append(cells)
    return found
