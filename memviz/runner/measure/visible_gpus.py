"""Which GPUs a run could be measured on here: `python -m memviz.runner.measure.visible_gpus` says it as JSON.

It is asked for in a process of its own, since a driver that was started holds memory of every card until its process
ends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.measure.disturbances import uuid_of


def visible_gpus() -> dict[str, Any]:
    """Their names and the driver's own words for them, or why there is none."""
    try:
        accelerator = find_accelerator()
        accelerator.start()
    except UsageError as error:
        return {"gpus": [], "why": str(error).split(" Recording needs")[0]}
    return {"gpus": gpus_of(accelerator), "why": ""}


def gpus_of(accelerator: Accelerator) -> list[dict[str, str]]:
    """All that can be chosen by a word of the driver's; the first, where there is no such word."""
    known = [
        {"name": accelerator.name_of(index), "uuid": uuid_of(accelerator, index)}
        for index in range(accelerator.count())
    ]
    chosen = [gpu for gpu in known if gpu["uuid"]] if accelerator.kind == "cuda" else []
    return chosen or known[:1]


if __name__ == "__main__":
    json.dump(visible_gpus(), sys.stdout)
