"""The small captures as they may go into `sample_traces/`: no paths, packed, with the table that their README owes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.trace.strip import strip_paths
from memviz.trace.write import replacing, write_pickle
from tests.gpu.case import Case
from tests.gpu.comparing import gpu_of
from tests.gpu.programs import PROGRAMS
from tests.gpu.results import Results
from tests.gpu.runs import RUNS

LARGEST = 600_000
"""Bytes of a packed file that still belongs into a repository."""
_SHOWN = {each.name: each.shows for each in (*RUNS, *PROGRAMS) if each.shows}

CASES = tuple(
    Case("samples", name, {"shows": shows}, 10, needs_gpu=False, of=("capture", name)) for name, shows in _SHOWN.items()
)


def run(case: Case, out: Path) -> dict[str, Any]:
    captured = case.result_in(Results(out))
    trace = load_trace(out / "capture" / captured["result"]["file"])
    machine = captured["machine"]
    facts = {
        **trace.about.facts,
        "command": captured["command"],
        "driver": machine["nvidia_smi"],
        "shows": case.arguments["shows"],
    }
    about = replace(trace.about, origin="measured", on=machine["device"], facts=facts)
    path = Results(out).folder_of("samples") / f"{case.name}.pickle.gz"
    with replacing(path) as file:
        write_pickle(strip_paths(replace(trace, about=about)), file)
    line = timeline(gpu_of(trace))
    return {
        "file": path.name,
        "shows": case.arguments["shows"],
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
