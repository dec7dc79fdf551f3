"""Every captured snapshot replayed under its own settings: the model has to land on each recorded address."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.gpu.case import Case
from tests.gpu.results import Results

NEEDS_GPU = False
AT_ONCE = 4
_FROM = ("capture", "what-if")


def cases(results: Results, *, small: bool) -> list[Case]:
    return [
        Case("replay", f"{part}-{each['name']}", {"part": part, "of": each["name"]}, 15)
        for part in _FROM
        for each in results.of(part)
        if "result" in each
    ]


def prepare() -> None:
    import memviz.allocator.replay
    import memviz.trace.load  # noqa: F401


def run(case: Case, out: Path) -> dict[str, Any]:
    taken = Results(out).result(case.arguments["part"], case.arguments["of"])
    assert taken is not None
    return replayed(out / case.arguments["part"] / taken.get("repeated", taken)["file"])


def replayed(path: Path) -> dict[str, Any]:
    from memviz.allocator.agreement import addresses
    from memviz.allocator.replay import replay
    from memviz.analysis.timeline import timeline
    from memviz.trace.load import load_trace
    from tests.gpu.comparing import gpu_of

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
        "addresses": addresses(done),
        "addresses_off": done.agreement.address_mismatches,
        "exact": done.exact,
        "first": None if first is None else f"event {first.event}: {first.expected}, got {first.got}. {first.why}",
        "reserved": {"recorded": timeline(device).reserved_peak_bytes, "replayed": done.peak_reserved_bytes},
        "notes": [each.text for each in done.trace.notes],
        "seconds": round(took, 3),
    }
