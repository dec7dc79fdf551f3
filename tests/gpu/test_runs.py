"""Runs and programs recorded on a real GPU: replayed under their own settings, predicted, and repeated under others.

The traces stay in pytest's base folder (`--basetemp OUT`); figures are printed (`-rP`).
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from memviz.allocator.replayer import Replayer
from memviz.allocator.settings import parse_settings
from memviz.analysis.timeline import timeline
from memviz.runner.execute import predict
from memviz.runner.jobs.worker_process import Worker, environment_of
from memviz.runner.plan import plan_of
from memviz.trace.load import load_trace
from memviz.trace.model import Action, Trace
from tests.gpu.comparing import gpu_of, most_different, out_of_memory_at, sizes_of
from tests.gpu.conftest import Gpu, Python
from tests.gpu.programs import PROGRAMS, Program
from tests.gpu.runs import RUNS, Run
from tests.replays import replay

_LARGEST_ERROR_PERCENT = 5.0
_GRANULE = 2 << 20


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_run_is_one_that_the_command_line_accepts(run: Run):
    plan = plan_of(replace(run.request, on="cuda"))
    assert {change.name for change in plan.optimizations} == dict(run.optimizations).keys()


@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_run_is_replayed_exactly_and_predicted(run: Run, tmp_path: Path, gpu: Gpu):
    if run.library:
        pytest.importorskip(run.library)
    if run.gib > gpu.card.memory_gib:
        pytest.skip(f"needs about {run.gib:g} GiB of the card")
    request = replace(run.request, on="cuda", numerics=False)
    with Worker(tmp_path, environment=environment_of(request)) as worker:
        *_, last = worker.run([request])
    assert last.run is not None and last.file is not None, last.text
    trace = load_trace(last.file)
    assert_replays_exactly(trace)
    release = ".".join(map(str, gpu.release))
    plan = replace(plan_of(replace(request, on="predict", torch=release)), card=gpu.card)
    done = predict(plan, lambda phase: None)
    errors = {}
    for name in ("allocated", "reserved"):
        measured, predicted = (getattr(made, f"peak_{name}_bytes") for made in (last.run, done.run))
        errors[name] = round(100 * (predicted / measured - 1), 2)
    seconds = None if last.run.seconds is None else asdict(last.run.seconds)
    show(run.name, error_percent=errors, seconds=seconds, notes=last.run.notes)
    differences = [most_different(trace, done.trace, by) for by in ("category", "module")]
    assert max(map(abs, errors.values())) <= _LARGEST_ERROR_PERCENT, differences


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_is_replayed_exactly(program: Program, tmp_path: Path, gpu: Gpu, python: Python):
    trace, figures = record(program, tmp_path, python)
    events = gpu_of(trace).events
    assert (events.action == Action.ALLOC).sum() == figures["allocs"]
    assert (events.action == Action.FREE_REQUESTED).sum() == figures["frees"]
    assert_replays_exactly(trace)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lengths-expandable", "lengths-max-split"])
def test_replay_under_other_settings_is_what_comes_of_them(name: str, tmp_path: Path, gpu: Gpu, python: Python):
    plain, other = program_named("lengths"), program_named(name)
    base, _ = record(plain, tmp_path, python)
    repeated, figures = record(other, tmp_path, python)
    predicted = replay(base, gpu_of(base), settings=parse_settings(other.conf), total=figures["total"])
    assert_alike(repeated, predicted)


@pytest.mark.gpu
@pytest.mark.parametrize("share", [0.5, -0.1], ids=["tight", "short"])
def test_replay_with_less_memory_is_what_comes_of_it(share: float, tmp_path: Path, gpu: Gpu, python: Python):
    """Between the allocated and the reserved peak the allocator frees its cache; below the first it runs out."""
    program = program_named("lengths")
    base, figures = record(program, tmp_path, python)
    low, high = figures["peak_allocated_bytes"], figures["peak_reserved_bytes"]
    limit = int(low + share * (high - low) if share > 0 else low * (1 + share)) // _GRANULE * _GRANULE
    repeated, figures = record(program, tmp_path, python, limit)
    settings = Replayer(base, gpu_of(base)).recorded
    settings = replace(settings, per_process_memory_fraction=figures["fraction"])
    assert_alike(repeated, replay(base, gpu_of(base), settings=settings, total=figures["total"]))


def program_named(name: str) -> Program:
    return next(program for program in PROGRAMS if program.name == name)


def record(program: Program, folder: Path, python: Python, limit: int | str = "") -> tuple[Trace, dict[str, Any]]:
    variables = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if program.conf else ()
    file = folder / f"{program.name}{limit}.pickle.gz"
    done = python("-m", "tests.gpu.programs", program.name, file, limit, **dict.fromkeys(variables, program.conf))
    figures = json.loads(done.stdout)
    show(program.name, **figures)
    return load_trace(file), figures


def assert_replays_exactly(trace: Trace) -> None:
    """The allocator model lands on every recorded address."""
    done = replay(trace, gpu_of(trace))
    assert done.agreement is not None
    assert (done.agreement.address_mismatches, done.exact) == (0, True), done.agreement.first_mismatch
    assert done.peak_reserved_bytes == timeline(gpu_of(trace)).reserved_peak_bytes


def assert_alike(repeated: Trace, predicted: Any) -> None:
    measured, replayed = gpu_of(repeated), predicted.trace.devices[0]
    assert predicted.peak_reserved_bytes == timeline(measured).reserved_peak_bytes
    growth = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    assert sizes_of(replayed, *growth) == sizes_of(measured, *growth)
    short = predicted.oom
    ran_out = short and {"served": len(sizes_of(replayed, Action.ALLOC)), "asked": short.requested_bytes}
    assert ran_out == out_of_memory_at(measured)


def show(name: str, **figures: Any) -> None:
    print(json.dumps({"name": name, **figures}, default=list))  # noqa: T201
