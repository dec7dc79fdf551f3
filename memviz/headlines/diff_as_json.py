"""A comparison as plain values, with the sentence that the page says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memviz.analysis.comparing.as_json import diff_json
from memviz.analysis.comparing.changes import Changes, telling
from memviz.analysis.comparing.match_allocations import Pair
from memviz.analysis.comparing.setting_differences import setting_differences
from memviz.headlines.compare import compare
from memviz.headlines.headline import headline_json


def compared_json(sides: Sequence[Pair], comparison: Changes, top: int | None = None) -> dict[str, Any]:
    headline = compare(telling(sides))
    settings = setting_differences([trace for trace, _ in sides])
    return {"headline": headline_json(headline), **diff_json(comparison, settings, top=top)}
