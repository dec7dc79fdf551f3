"""Runs and programs recorded on this GPU, each in a process of its own: its snapshot, and the peaks torch reports.

Runs go through what `python -m memviz run --on cuda` goes through; only their weights are drawn on the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from memviz.runner.jobs.worker_process import environment_of
from memviz.runner.measure.accelerator import find_accelerator, is_out_of_memory
from memviz.runner.measure.measured_run import measure
from memviz.runner.outcome import Interrupted
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from memviz.runner.run import save_run
from memviz.trace.write import replacing, write_pickle
from tests.gpu.case import Case
from tests.gpu.programs import PROGRAMS, Program, program_named
from tests.gpu.recorded import record
from tests.gpu.results import Results
from tests.gpu.runs import RUNS, Run


def _case_of(made: Program | Run) -> Case:
    if isinstance(made, Program):
        return Case("capture", made.name, {"program": made.name}, 8, 4, dict(made.environment))
    environment = environment_of(Request.from_json(made.request))
    return Case(
        "capture", made.name, {"request": made.request}, made.seconds, made.gib, environment, made.libraries, made.small
    )


CASES = tuple(map(_case_of, (*PROGRAMS, *RUNS)))


def run(case: Case, out: Path) -> dict[str, Any]:
    return take(case.arguments, Results(out).folder_of("capture") / f"{case.name}.pickle.gz")


def take(wanted: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A program by name or a run by its request; `limit` leaves the process so many bytes of the card."""
    total, limit = torch.cuda.get_device_properties(0).total_memory, wanted.get("limit")
    if "program" in wanted:
        program = program_named(wanted["program"])
        limit = program.limit_bytes if limit is None else limit
        return record(program, path, torch.cuda, torch.device("cuda", 0), total=total, limit=limit)
    if limit is not None:
        torch.cuda.init()
        torch.cuda.set_per_process_memory_fraction(limit / total)
    return {**take_run(wanted["request"], path), "fraction": None if limit is None else limit / total}


def take_run(request: Mapping[str, Any], path: Path, accelerator: Any = None) -> dict[str, Any]:
    plan = plan_of(Request.from_json({**request, "on": "cuda", "numerics": False}))
    try:
        done = measure(plan, _say, accelerator or find_accelerator())
    except Interrupted as ended:
        return _until_it_ran_out(ended, path)
    save_run(done.trace, done.run, path)
    run = done.run
    return {
        "peak_allocated_bytes": run.peak_allocated_bytes,
        "peak_reserved_bytes": run.peak_reserved_bytes,
        "peak_requested_bytes": run.peak_requested_bytes,
        "seconds": None if run.seconds is None else asdict(run.seconds),
        "notes": list(run.notes),
        "label": run.label,
        "describes": run.describes,
        "as_run": run.command,
        "events": done.trace.event_count,
        "ran_out": "",
        "file": path.name,
    }


def _until_it_ran_out(ended: Any, path: Path) -> dict[str, Any]:
    cause = ended.__cause__
    if ended.trace is None or not is_out_of_memory(cause):
        raise cause
    with replacing(path) as file:
        write_pickle(ended.trace, file)
    return {"ran_out": str(cause), "live_bytes": ended.live_bytes, "events": ended.trace.event_count, "file": path.name}


def _say(phase: str) -> None:
    """Into the log, for a case that comes to no end."""
    sys.stderr.write(f"{phase}\n")
    sys.stderr.flush()
