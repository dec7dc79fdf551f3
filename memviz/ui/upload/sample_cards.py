"""Pictures and peaks of the samples, drawn from the files themselves and kept beside this file.

To draw them takes as long as half of all else that a page begins with. They are made again by
`python -m memviz.ui.upload.sample_cards`, and a test holds what is kept to what would be drawn.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memviz.analysis.timeline import timeline
from memviz.analysis.which_device import chosen_device
from memviz.figures.packed_timeline import thumbnail
from memviz.trace.load import load_trace
from memviz.ui.upload.samples import OFFERED_SAMPLES, SAMPLES, OfferedSample

_KEPT = Path(__file__).with_suffix(".json")
_WIDTH, _HEIGHT = 520, 300


@dataclass(frozen=True)
class SampleCard:
    """One picture and one peak for each of the sample's files, the pictures on one scale."""

    pictures: tuple[bytes, ...]
    peaks: tuple[int, ...]


def card_of(sample: OfferedSample) -> SampleCard:
    kept = _kept()[sample.name]
    return SampleCard(tuple(map(base64.b64decode, kept["pictures"])), tuple(kept["peaks"]))


def drawn(sample: OfferedSample) -> SampleCard:
    traces = [load_trace(SAMPLES / name) for name in sample.files]
    devices = [chosen_device(trace) for trace in traces]
    peaks = tuple(timeline(device).peak_bytes for device in devices)
    width = _WIDTH // len(traces)
    pictures = (
        thumbnail(trace, device, width=width, height=_HEIGHT, top=max(peaks))
        for trace, device in zip(traces, devices, strict=True)
    )
    return SampleCard(tuple(pictures), peaks)


@cache
def _kept() -> dict[str, dict[str, Any]]:
    kept: dict[str, dict[str, Any]] = json.loads(_KEPT.read_text(encoding="utf-8"))
    return kept


def write() -> None:
    cards = {sample.name: drawn(sample) for sample in OFFERED_SAMPLES}
    rows = {
        name: {
            "peaks": card.peaks,
            "pictures": [base64.b64encode(picture).decode("ascii") for picture in card.pictures],
        }
        for name, card in cards.items()
    }
    _KEPT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
