"""What the predictor ships of the recordings: `python -m tests.truth.held_against` writes it.

For every recording its peaks, recorded and predicted, and the families of operators that it has.
"""

from __future__ import annotations

import json
from contextlib import chdir
from tempfile import TemporaryDirectory
from typing import Any

from memviz.runner.predict.cards import card_named
from memviz.runner.predict.held_against import DATA
from memviz.runner.predict.operator_families import families_of
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.predict.predicted_trace import trains
from tests.truth.comparison import compare
from tests.truth.programs import PROGRAMS
from tests.truth.recordings import Recording, recordings

RECORDINGS = "recordings"


def row(name: str) -> dict[str, Any]:
    result = compare(name)
    truth, told = result.recording.peaks, result.predicted
    return {
        **_class_of(name, result.recording),
        "live": [truth.live, told.live],
        "allocated": [truth.allocated, told.allocated],
        "reserved": [truth.reserved, told.reserved],
    }


def _class_of(name: str, recorded: Recording) -> dict[str, Any]:
    """The program runs once more for it: a comparison keeps no operators."""
    card = card_named(recorded.card)
    with TemporaryDirectory() as folder, chdir(folder), PredictedDevice(card, release=recorded.release) as device:
        PROGRAMS[name]()
        is_training = trains(device.finish())
    return {
        "name": name,
        "card": recorded.card,
        "torch": ".".join(map(str, recorded.release)),
        "class": "training" if is_training else "inference",
        "families": sorted(families_of(device.recorder.operators)),
    }


def write(part: str, rows: list[dict[str, Any]]) -> None:
    """The other part stays."""
    known = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    known[part] = rows
    lines = ["{"]
    for number, (name, items) in enumerate(sorted(known.items())):
        lines.append(f"  {json.dumps(name)}: [")
        lines += [f"    {json.dumps(item)}{',' if at + 1 < len(items) else ''}" for at, item in enumerate(items)]
        lines.append("  ]," if number + 1 < len(known) else "  ]")
    DATA.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")


if __name__ == "__main__":
    write(RECORDINGS, [row(name) for name in recordings()])
