"""Every captured snapshot replayed under its own settings: the model has to land on each recorded address."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from memviz.allocator.replay_result import allocation_count
from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from tests.gpu import capture, what_if
from tests.gpu.case import Case
from tests.gpu.comparing import gpu_of
from tests.gpu.results import Results
from tests.replays import replay

CASES = tuple(
    Case("replay", f"{each.part}-{each.name}", seconds=15, needs_gpu=False, of=(each.part, each.name))
    for each in (*capture.CASES, *what_if.CASES)
)


def run(case: Case, out: Path) -> dict[str, Any]:
    taken = case.result_in(Results(out))
    path = out / taken["part"] / taken["result"].get("repeated", taken["result"])["file"]
    trace = load_trace(path)
    device = gpu_of(trace)
    began = time.perf_counter()
    done = replay(trace, device)
    took = time.perf_counter() - began
    assert done.agreement is not None
    first = done.agreement.first_mismatch
    return {
        "file": path.name,
        "settings": done.settings.to_text(),
        "events": len(device.events),
        "addresses": allocation_count(done),
        "addresses_off": done.agreement.address_mismatches,
        "exact": done.exact,
        "first": None if first is None else f"event {first.event}: {first.expected}, got {first.got}. {first.why}",
        "reserved": {"recorded": timeline(device).reserved_peak_bytes, "replayed": done.peak_reserved_bytes},
        "notes": [note.text for note in done.trace.notes],
        "seconds": round(took, 3),
    }
