"""A replay as plain values, with the sentence that the page says of it."""

from __future__ import annotations

from typing import Any

from memviz.allocator.as_json import replay_json
from memviz.allocator.question import ReplayAnswer
from memviz.analysis.summary import device_number
from memviz.headlines.what_if import what_if


def replayed_json(answer: ReplayAnswer) -> dict[str, Any]:
    said = str(what_if(answer.found, answer.searched))
    return {"device": device_number(answer.device), **replay_json(answer.found, answer.searched, said)}
