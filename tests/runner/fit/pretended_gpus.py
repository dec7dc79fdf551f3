"""Imported by a worker of Dask that is to have two GPUs that are not there: each takes a moment to measure.

What is measured is a run of the tests' own. Each writes when it began and when it was done into the folder that
`PRETENDED_GPUS` names.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from memviz.runner.fit import measurement
from memviz.runner.request import Request
from tests.runner.runs import run

UUIDS = ("GPU-one", "GPU-two")
DEVICE = "NVIDIA Pretended 24GB"


def gpus_here() -> dict[str, Any]:
    return {"gpus": [{"name": DEVICE, "uuid": uuid} for uuid in UUIDS], "why": ""}


def measured_here(request: dict[str, Any], uuid: str) -> dict[str, Any]:
    began = time.time()
    time.sleep(0.3)
    wanted = Request.from_json(request)
    layers = wanted.settings.get("layers", "")
    if layers == "7":
        return {"kind": "failed", "number": 0, "what": "out of memory", "text": "CUDA out of memory.", "run": None}
    done = replace(run(), request=wanted, mode="measured", device=DEVICE, peak_reserved_bytes=int(layers or 1) << 30)
    folder = Path(os.environ["PRETENDED_GPUS"])
    (folder / f"{uuid} {began}").write_text(str(time.time()))
    return {"kind": "done", "number": 0, "what": "", "text": "", "run": done.as_json()}


measurement.gpus_here = gpus_here
measurement.measured_here = measured_here
