"""A measured run: recorded once for its memory, then built anew and timed without recording.

Its notes say which allocator settings took effect and what PyTorch warned of: its C++ says nowhere else that a setting
has no effect on this platform, or why an attention kernel refused its inputs.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from memviz.allocator.settings import Settings, parse_settings
from memviz.errors import UsageError
from memviz.runner.jobs.worker_process import LEFT_OUT
from memviz.runner.measure.accelerator import Accelerator, Disturbances, error_sentence
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.plan import Plan, pieces_of
from memviz.runner.request import Seconds
from memviz.runner.step import (
    Outcome,
    RunStep,
    Tell,
    attention_kernels_restored,
    check,
    convert_on_host,
    keeping_what_was_recorded,
    make_optimizer,
    peaks_of,
    prepare,
    run_with,
    sizes_of,
    take_steps,
    torch_warnings,
    weights_at_peak,
)
from memviz.runner.workloads.workload import FromConfiguration
from memviz.trace.model import Trace
from memviz.units import bytes_text, count_text, percent_text

_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_OFF = (
    "Expandable segments were requested but are off: this PyTorch does not support them on this "
    "platform. The figures are without them."
)


def expandable_is_off(plan: Plan, trace: Trace) -> bool:
    """Return True if chosen but without effect: by recorded settings (torch 2.3 or later), else by segments."""
    chosen = _chosen_settings(plan)
    if chosen is None or not chosen.expandable_segments:
        return False
    if "expandable_segments" in trace.settings:
        return trace.settings["expandable_segments"] is not True
    return not any(device.segments.is_expandable.any() for device in trace.devices if device.kind == "gpu")


def settings_text(plan: Plan, trace: Trace) -> Iterator[str]:
    if expandable_is_off(plan, trace):
        yield _OFF
    left_out = os.environ.get(LEFT_OUT)
    if left_out:
        why = "this run has its own settings" if _CONF in plan.environment else "a run uses only its own settings"
        yield f"{left_out} of the shell was not in effect: {why}."
    inherited = str(trace.settings.get(_CONF) or "")
    if inherited and _CONF not in plan.environment:
        yield f"The allocator had the settings {inherited}, which are not from this run."


def limit_text(plan: Plan, api: Any) -> str:
    """Why a run with limited memory has no seconds; empty where nothing limits it."""
    chosen = _chosen_settings(plan)
    fraction_of = getattr(api.memory, "get_per_process_memory_fraction", None)
    fractions = [
        1.0 if chosen is None else chosen.per_process_memory_fraction,
        1.0 if fraction_of is None else fraction_of(0),
    ]
    if min(fractions) >= 1:
        return ""
    share = percent_text(min(fractions), 1)
    return (
        f"Its seconds were not measured, because its memory is limited to {share} of the card: "
        "a step with less memory takes longer, depending on the limit."
    )


def _chosen_settings(plan: Plan) -> Settings | None:
    """None also where PyTorch accepts settings that we cannot read: the measurement is good all the same."""
    try:
        return parse_settings(plan.environment[_CONF])
    except (KeyError, UsageError):
        return None


_REST_BYTES = 32 << 20
"""Allowance for memory that libraries keep, such as workspaces."""
_SHARE = 0.5
"""Fraction of the time left that timing may take; outputs are compared after it."""


def measure(
    plan: Plan,
    tell: Tell,
    accelerator: Accelerator,
    *,
    disturbances: Disturbances | None = None,
    until: float | None = None,
    recorded: Callable[[Outcome], None] = lambda _: None,
    notes: tuple[str, ...] = (),
) -> Outcome:
    """`notes` are of what happened before; for the others see `execute`."""
    begun = time.perf_counter()
    disturbances = disturbances or Disturbances(accelerator)
    before = _live_bytes(accelerator)
    done = _record_run(plan, tell, accelerator)
    run = replace(done.run, notes=tuple(dict.fromkeys((*notes, *done.run.notes))))
    recorded(Outcome(run, done.trace))
    tell("timing with the recording off")
    seconds, more = _time_steps(plan, accelerator, before, until, disturbances)
    took = time.perf_counter() - begun
    return Outcome(replace(run, seconds=seconds, notes=(*run.notes, *more), took_seconds=took), done.trace)


def _record_run(plan: Plan, tell: Tell, accelerator: Accelerator) -> Outcome:
    """Run and record the steps. The result holds no tensor, so that timing starts with free memory."""
    begun = time.perf_counter()
    try:
        with torch_warnings() as warned:
            tell("building the model")
            model = _build_model(plan, accelerator)
            measured = CudaDevice(accelerator=accelerator)
            with attention_kernels_restored(plan), measured as device, keeping_what_was_recorded(device):
                model = prepare(plan, device, model, tell)
                loaded_bytes = device.peak_allocated_bytes
                trace = take_steps(plan, device, model, tell)
    except Exception as error:
        if reasons := warned.about(error.__cause__ or error):
            error.add_note(reasons)
        raise
    notes = list(settings_text(plan, trace))
    for name, peak in vars(device.peaks).items() if device.peaks is not None else ():
        if peak.difference:
            notes.append(f"PyTorch's own {name} peak differs: {peak.difference:+,} bytes. {peak.reason}")
    notes += [*device.notes, *warned.notes()]
    values = {
        **peaks_of(device, loaded_bytes),
        **sizes_of(model),
        "weights_at_peak_bytes": weights_at_peak(plan, model, trace),
        **dict.fromkeys(("flops", "bytes_moved", "host_bytes", "seconds", "fit")),
        "notes": tuple(notes),
        "took_seconds": time.perf_counter() - begun,
    }
    run = run_with(plan, "measured", device.name, values)
    label = f"{run.label} (off on this platform)" if expandable_is_off(plan, trace) else run.label
    return Outcome(replace(run, label=label), trace)


def _build_model(plan: Plan, accelerator: Accelerator) -> nn.Module:
    """Build the model with the same weights each time."""
    torch.manual_seed(plan.workload.seed)
    # A user's file decides itself where its tensors are made.
    is_own = not isinstance(plan.workload, FromConfiguration)
    model = plan.workload.build() if is_own else drawn_on(accelerator, plan.workload.build)
    check(plan, model)
    convert_on_host(plan, model)
    return model


def drawn_on(accelerator: Accelerator, build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model in host memory, with weights drawn on the GPU, where nothing stays.

    The processor takes minutes to draw billions of weights, and a GPU a second. A model that does not fit there is
    drawn by the processor, so that the run itself runs out of memory.
    """
    try:
        with torch.device(accelerator.kind):
            return build().to("cpu")
    except torch.OutOfMemoryError:
        pass
    finally:
        clear(accelerator)
    return build()


def clear(accelerator: Accelerator) -> None:
    """Free the cache and the workspaces of matrix products, as in a new process."""
    gc.collect()
    if accelerator.kind == "cuda":
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
    accelerator.api.memory.empty_cache()


def _time_steps(
    plan: Plan, accelerator: Accelerator, live_before: int, until: float | None, disturbances: Disturbances
) -> tuple[Seconds | None, tuple[str, ...]]:
    """Time the steps of a new model. A failure costs the seconds, and not the recorded memory."""
    notes: list[str] = []
    try:
        limited = limit_text(plan, accelerator.api)
        if limited:
            return None, (limited,)
        _let_go(plan, accelerator)
        stays = _live_bytes(accelerator) - live_before
        if stays > _REST_BYTES:
            notes.append(
                f"{bytes_text(stays)} of the recorded run stayed on the GPU during timing: something outside the run "
                "holds them, such as a global variable in the model's file."
            )
        seconds, retries = _seconds(plan, accelerator, until)
        if retries:
            notes.append(
                f"The allocator ran out of memory and freed its cache {count_text(retries)} times during timing: "
                "with more memory the step is faster."
            )
        return seconds, (*notes, *disturbances.notes())
    except (Exception, SystemExit) as error:
        return None, (*notes, f"Its seconds could not be measured: {error_sentence(error)}")
    finally:
        with suppress(Exception):
            _let_go(plan, accelerator)


def _let_go(plan: Plan, accelerator: Accelerator) -> None:
    forget = getattr(plan.workload, "forget", None)
    if forget is not None:
        forget()
    clear(accelerator)


def _live_bytes(accelerator: Accelerator) -> int:
    return CudaDevice(accelerator=accelerator, record=False).allocated_bytes


def _seconds(plan: Plan, accelerator: Accelerator, until: float | None) -> tuple[Seconds, int]:
    # Drawing the weights counts in no peak: the device resets it when it is entered.
    model = _build_model(plan, accelerator)
    with attention_kernels_restored(plan), CudaDevice(accelerator=accelerator, record=False) as device:
        model = prepare(plan, device, model, lambda _: None)
        optimizer = make_optimizer(plan.request.optimizer, model)
        pieces = pieces_of(plan.optimizations)
        step = RunStep(plan.workload, device, model, device.inputs(plan.workload), optimizer, pieces=pieces)
        left = math.inf if until is None else (until - time.monotonic()) * _SHARE
        before = device.retries
        seconds = device.seconds(step, warmup=max(1, plan.request.warmup), left_seconds=left)
        return seconds, device.retries - before
