"""All styles of the page apply together, so no component may style another's parts."""

import re
from collections import defaultdict
from pathlib import Path

COMPONENTS = Path(__file__).parents[2] / "memviz" / "ui" / "components"
ONE_INSIDE_ANOTHER = {
    *(("mvt", name) for name in ("arrivals", "segment_map", "reserved_plot", "waterfall")),
    ("mvs", "segment_pair"),
}
"""A drawing whose style another component shares or extends."""


def test_a_component_has_names_of_its_own() -> None:
    """Words of the whole page begin with mv-; a component's with letters of its own, as in .mvt-plot."""
    owners = defaultdict(set)
    for style in COMPONENTS.glob("*/*.css"):
        for prefix in re.findall(r"\.(mv[a-z]+)\b", style.read_text(encoding="utf-8")):
            if (prefix, style.parent.name) not in ONE_INSIDE_ANOTHER:
                owners[prefix].add(style.parent.name)
    assert {prefix: names for prefix, names in owners.items() if len(names) > 1} == {}
    assert len(owners) > 5
