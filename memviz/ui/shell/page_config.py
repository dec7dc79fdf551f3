"""What Gradio's page is told of its components, without those that nobody sees.

Programs ask by components of their own. Gradio's page would load the scripts of all their kinds, build each of them and
look at every event that they may have. Programs read the whole at another address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_CONFIG = re.compile(rb"(?<=window\.gradio_config = )\{.*?\}(?=;</script>)", re.DOTALL)
_IN_A_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&'\u2028\u2029"}

Rewrite = Callable[[Mapping[str, Any]], dict[str, Any]]


def seen_by_people(config: Mapping[str, Any], hidden: int) -> dict[str, Any]:
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
    """Whether nothing that is left can begin it."""
    targets = [number for number, _ in event["targets"]]
    return bool(targets) and gone.issuperset(targets)
