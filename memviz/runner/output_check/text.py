"""How differences read: in scientific notation, since `%.5f` shows 1e-8 as nothing at all."""

from __future__ import annotations

import math
import re

from memviz.units import percent_text

_PLACE = re.compile(r"(?:^|\.)(?:(?P<list>[A-Za-z_]\w*)\.)?(?P<index>\d+)(?:\.(?P<inside>[^\d].*))?$")


def scientific(value: float | None) -> str:
    """'1.3e-07'; nothing at all is '0'."""
    if value is None:
        return "–"
    if math.isnan(value) or math.isinf(value):
        return "not a number" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"
    return "0" if value == 0 else f"{value:.1e}"


def share_text(value: float) -> str:
    """A relative difference: '139 %', '2.8 %', and '2.1e-07' where a percentage would have too many zeros."""
    return percent_text(value, 1) if 0.001 <= abs(value) < math.inf else scientific(value)


def spoken(path: str) -> str:
    """'layers.0' is 'layer 0', 'transformer_blocks.3.ff' is 'ff of transformer block 3', '' the output."""
    if not path:
        return "the output"
    found = _PLACE.search(path)
    if found is None:
        return path
    words = (found["list"] or "").replace("_", " ").strip()
    name = "layer" if len(words) < 3 else words.removesuffix("s")
    block = f"{name} {found['index']}"
    return f"{found['inside']} of {block}" if found["inside"] else block
