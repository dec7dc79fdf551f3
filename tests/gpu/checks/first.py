"""What a measured run stands or falls with, asked before anything is measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from memviz.errors import UsageError
from memviz.runner.jobs.worker_process import environment_of
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.measure.measured_run import measure
from memviz.runner.output_check.outputs import numerics_of
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from memviz.runner.workloads.init_weights import drawn_on
from tests.gpu.check import Answers, asked
from tests.gpu.machine import ROOT

_LARGE = {"sequence": "2048", "dim": "2048", "layers": "8"}
_GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL, with SLURM and Kubernetes."""


def start(_folder: Path, accelerator: Accelerator | None = None) -> Answers:
    """A driver that is too old, or a PyTorch without kernels for this card, is said in words."""
    try:
        (accelerator or find_accelerator()).start()
        words = ""
    except UsageError as error:
        words = str(error)
    yield asked("why the card cannot be used", "", words)


_EXPANDABLE = """
import json, torch, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    kept = torch.ones(32 << 20, device="cuda")
snapshot = torch.cuda.memory._snapshot()
print(json.dumps({
    "settings": snapshot.get("allocator_settings", {}).get("expandable_segments"),
    "segments": any(each.get("is_expandable") for each in snapshot["segments"]),
    "warned": [str(each.message) for each in said],
}))
"""


def expandable(_folder: Path, program: str = _EXPANDABLE) -> Answers:
    """What the recording says of itself, and what its segments are; where it is off, torch warns of it."""
    chosen = environment_of(Request("feed_forward", optimizations=(("allocator_settings", {}),)))
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, env={**os.environ, **chosen}, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-300:]}
    yield asked("expandable segments are on", {"settings": True, "segments": True, "warned": []}, found)


def drawn(_folder: Path, accelerator: Accelerator | None = None, settings: dict[str, str] | None = None) -> Answers:
    """Weights are drawn on the card and nothing of that stays: not a byte that is live, not a segment."""
    accelerator = accelerator or find_accelerator()
    accelerator.start()
    drawn_on(accelerator, plan_of(Request("feed_forward", settings or _LARGE)).workload.build)
    figures = accelerator.api.memory.memory_stats_as_nested_dict(0)
    for name in ("allocated", "reserved"):
        yield asked(f"bytes {name} after drawing", 0, figures[f"{name}_bytes"]["all"]["current"])


def barely_fits(
    _folder: Path, accelerator: Accelerator | None = None, settings: dict[str, str] | None = None
) -> Answers:
    """The timed run needs no more than the recorded one: an AdamW run that barely fits is timed on the same card."""
    accelerator = accelerator or find_accelerator()
    accelerator.start()
    request = Request("feed_forward", {**(settings or _LARGE), "mode": "training"}, on="cuda", optimizer="adamw")
    run = measure(plan_of(request), lambda _: None, accelerator).run
    timed = accelerator.api.memory.memory_stats_as_nested_dict(0)["allocated_bytes"]["all"]["peak"]
    yield asked("it has seconds", True, run.seconds is not None)
    near = timed <= 1.01 * run.peak_allocated_bytes
    yield asked("peak of the timed run", f"about {run.peak_allocated_bytes}", timed, ok=near)


_MANY = """
import os, signal, sys, torch
def deeper(depth):
    return deeper(depth - 1) if depth else [torch.ones(8, device="cuda") for _ in range(20)]
for _ in range(10_000):
    deeper(30)
print("ready", flush=True)
signal.pause()
"""


def dump_time(folder: Path, program: str = _MANY) -> Answers:
    """With C++ stacks, which are looked up when a snapshot is taken: as long as a job has that is told to end."""
    script, file = folder / "many.py", folder / "many.pickle"
    script.write_text(program, encoding="utf-8")
    line = [sys.executable, "-m", "memviz", "record", "--stacks", "all", "--overwrite", "-o", str(file), str(script)]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline().strip()
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        process.wait()
        took = time.perf_counter() - began
    yield asked("the script came to its end", "ready", ready)
    yield asked("the recording is there", True, file.exists())
    yield asked("seconds to write it", f"at most {_GRACE_SECONDS:.0f}", round(took, 1), ok=took <= _GRACE_SECONDS)


def noise(_folder: Path) -> Answers:
    """In bfloat16 a step repeated is the same to the bit, or the claim of equal bits cannot be judged on this card."""
    for dtype in ("bfloat16", "float32"):
        settings = {"mode": "training", "dtype": dtype, "sequence": "512", "dim": "512", "layers": "4"}
        plan = plan_of(Request("feed_forward", settings, (("checkpointing", {}),), on="cuda"))
        torch.manual_seed(0)
        found = numerics_of(plan, lambda _: None, "measured")
        assert found is not None
        yield asked(f"checkpointing keeps its word in {dtype}", True, found["verdict"]["ok"])
