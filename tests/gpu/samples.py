"""The small captures as they may go into `sample_traces/`: no paths, packed, with the table that their README owes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gpu.case import Case
from tests.gpu.results import Results

NEEDS_GPU = False
AT_ONCE = 4
LARGEST = 600_000
"""Bytes of a packed file that still belongs into a repository."""


def cases(results: Results, *, small: bool) -> list[Case]:
    done = [each for each in results.of("capture") if "result" in each and shown(each["name"])]
    return [Case("samples", each["name"], {"of": each["name"]}, 10) for each in done]


def prepare() -> None:
    import memviz.trace.strip  # noqa: F401


def run(case: Case, out: Path) -> dict[str, Any]:
    from memviz.analysis.timeline import timeline
    from memviz.trace.formats.replacing import replacing
    from memviz.trace.formats.write_snapshot import write_pickle
    from memviz.trace.load import load_trace
    from memviz.trace.strip import strip_paths
    from tests.gpu.comparing import gpu_of

    captured = Results(out).read("capture", case.arguments["of"])
    assert captured is not None
    trace = load_trace(out / "capture" / captured["result"]["file"])
    machine = captured["machine"]
    facts = {
        **trace.about.facts,
        "command": captured["command"],
        "driver": machine["nvidia_smi"],
        "shows": shown(case.name),
    }
    about = replace(trace.about, origin="measured", on=machine["device"], facts=facts)
    path = Results(out).folder_of("samples") / f"{case.name}.pickle.gz"
    with replacing(path) as file:
        write_pickle(strip_paths(replace(trace, about=about)), file)
    line = timeline(gpu_of(trace))
    return {
        "file": path.name,
        "shows": shown(case.name),
        "bytes": path.stat().st_size,
        "is_small": path.stat().st_size <= LARGEST,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "events": len(gpu_of(trace).events),
        "peak_bytes": line.peak_bytes,
        "reserved_bytes": line.reserved_peak_bytes,
        "model": captured["result"].get("describes", "plain torch"),
        "command": captured["result"].get("as_run", captured["command"]),
        "captured_on": machine,
    }


def shown(name: str) -> str:
    """What people see in it; empty for captures that are no samples."""
    from tests.gpu.programs import PROGRAMS
    from tests.gpu.runs import RUNS

    return {each.name: each.shows for each in (*RUNS, *PROGRAMS)}.get(name, "")
