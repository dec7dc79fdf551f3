"""A run on a GPU that is there: recorded once for the memory, then made anew and timed with nothing recorded.

Nothing of the recorded run is left when the timed one begins. A model beside its own copy, or an optimizer beside
another's states, would run out of memory where one alone fits.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from memviz.runner.measure.accelerator import Accelerator, first_line
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.measure.disturbances import Disturbances
from memviz.runner.measure.settings_in_effect import expandable_is_off, limit_words, words_of
from memviz.runner.measure.torch_warnings import hearing_torch
from memviz.runner.outcome import Outcome, check, keeping_what_was_recorded, peaks_of, run_with, sizes_of
from memviz.runner.plan import Plan, pieces_of
from memviz.runner.run import Seconds
from memviz.runner.step import RunStep, Tell, convert_on_host, kernels_of_its_own, make_optimizer, prepare, take_steps
from memviz.runner.workloads import Workload
from memviz.runner.workloads.workload import FromConfiguration
from memviz.units import bytes_text, count_text

_REST_BYTES = 32 << 20
"""Of what libraries keep for themselves: workspaces, for example."""
_SHARE = 0.5
"""Of the time that is left, for the seconds; outputs are compared after them."""


def measure(
    plan: Plan,
    tell: Tell,
    accelerator: Accelerator,
    *,
    beside: Disturbances | None = None,
    until: float | None = None,
    recorded: Callable[[Outcome], None] = lambda _: None,
    notes: tuple[str, ...] = (),
) -> Outcome:
    """`notes` are of what happened before; for the others see `execute`."""
    begun = time.perf_counter()
    beside = beside or Disturbances(accelerator)
    before = _live(accelerator)
    done = _recorded(plan, tell, accelerator)
    run = replace(done.run, notes=tuple(dict.fromkeys((*notes, *done.run.notes))))
    recorded(Outcome(run, done.trace))
    tell("timing with the recording off")
    seconds, more = _timed(plan, accelerator, before, until, beside)
    took = time.perf_counter() - begun
    return Outcome(replace(run, seconds=seconds, notes=(*run.notes, *more), took_seconds=took), done.trace)


def _recorded(plan: Plan, tell: Tell, accelerator: Accelerator) -> Outcome:
    """What comes out of here holds no tensor."""
    begun = time.perf_counter()
    try:
        with hearing_torch() as warned:
            tell("building the model")
            model = _made(plan, accelerator)
            measured = CudaDevice(accelerator=accelerator)
            with kernels_of_its_own(), measured as device, keeping_what_was_recorded(device):
                model = prepare(plan, device, model, tell)
                loaded_bytes = device.peak_allocated_bytes
                trace = take_steps(plan, device, model, tell)
    except Exception as error:
        _with_reasons(error, warned.about(error.__cause__ or error))
        raise
    notes = [*words_of(plan, trace), *_disagreements(device), *device.notes, *warned.notes()]
    known = {
        **peaks_of(device, loaded_bytes),
        **sizes_of(model),
        **dict.fromkeys(("flops", "bytes_moved", "host_bytes", "seconds", "fit")),
        "notes": tuple(notes),
        "took_seconds": time.perf_counter() - begun,
    }
    run = run_with(plan, "measured", device.name, known)
    label = f"{run.label} (off on this platform)" if expandable_is_off(plan, trace) else run.label
    return Outcome(replace(run, label=label), trace)


def _made(plan: Plan, accelerator: Accelerator) -> nn.Module:
    """With the same weights each time."""
    torch.manual_seed(plan.workload.seed)
    model = _drawn(plan.workload, accelerator)
    check(plan, model)
    convert_on_host(plan, model)
    return model


def _drawn(workload: Workload, accelerator: Accelerator) -> nn.Module:
    """A file of somebody's own says itself where its tensors begin."""
    if isinstance(workload, FromConfiguration):
        return drawn_on(accelerator, workload.build)
    return workload.build()


def drawn_on(accelerator: Accelerator, build: Callable[[], nn.Module]) -> nn.Module:
    """The processor takes minutes to draw thousands of millions of weights, and a GPU a second.

    The model is built there and handed over in host memory, where a run expects it and places it in its own order.

    Nothing of the building stays on the GPU. A model that does not fit there is drawn by the processor, so that it
    is the run that says so.
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
    """The cache, and the workspaces that products of matrices took: a fresh process has neither."""
    gc.collect()
    if accelerator.kind == "cuda":
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
    accelerator.api.memory.empty_cache()


def _with_reasons(error: Exception, reasons: str) -> None:
    if reasons:
        error.add_note(reasons)


def _disagreements(device: CudaDevice) -> Iterator[str]:
    if device.peaks is not None:
        for name, reconciled in (("allocated peak", device.peaks.allocated), ("reserved peak", device.peaks.reserved)):
            if reconciled.difference:
                yield f"PyTorch's own {name} differs: {reconciled.difference:+,} bytes. {reconciled.reason}"


def _timed(
    plan: Plan, accelerator: Accelerator, live_before: int, until: float | None, beside: Disturbances
) -> tuple[Seconds | None, tuple[str, ...]]:
    """Whatever goes wrong here costs the seconds and nothing that is known already."""
    notes: list[str] = []
    try:
        limited = limit_words(plan, accelerator.api)
        if limited:
            return None, (limited,)
        _let_go(plan, accelerator)
        notes += _what_stays(_live(accelerator) - live_before)
        seconds, retries = _seconds(plan, accelerator, until)
        notes += [*_retried(retries), *beside.notes()]
        return seconds, tuple(notes)
    except (Exception, SystemExit) as error:
        return None, (*notes, f"Its seconds could not be measured: {first_line(error)}")
    finally:
        with suppress(Exception):
            _let_go(plan, accelerator)


def _let_go(plan: Plan, accelerator: Accelerator) -> None:
    forget = getattr(plan.workload, "forget", None)
    if forget is not None:
        forget()
    clear(accelerator)


def _live(accelerator: Accelerator) -> int:
    return CudaDevice(accelerator=accelerator, record=False).allocated_bytes


def _what_stays(stays: int) -> Iterator[str]:
    if stays > _REST_BYTES:
        yield (
            f"{bytes_text(stays)} of the recorded run stayed on the GPU while the seconds were measured: something "
            "outside of the run holds them, as a global variable of the model's file would."
        )


def _retried(retries: int) -> Iterator[str]:
    if retries:
        yield (
            f"The allocator ran out and gave its cache back {count_text(retries)} times while the seconds were "
            "measured: with more memory the step is faster."
        )


def _seconds(plan: Plan, accelerator: Accelerator, until: float | None) -> tuple[Seconds, int]:
    # Drawing the weights counts in no peak: the device resets it when it is entered.
    model = _made(plan, accelerator)
    with kernels_of_its_own(), CudaDevice(accelerator=accelerator, record=False) as device:
        model = prepare(plan, device, model, lambda _: None)
        optimizer = make_optimizer(plan.request.optimizer, model)
        pieces = pieces_of(plan.optimizations)
        step = RunStep(plan.workload, device, model, device.inputs(plan.workload), optimizer, pieces=pieces)
        left = math.inf if until is None else (until - time.monotonic()) * _SHARE
        before = device.retries
        timing = device.seconds(step, warmup=max(1, plan.request.warmup), left_seconds=left)
        low, high = timing.quartiles
        seconds = Seconds(timing.median, timing.spread, timing.count, timing.clock, low, high)
        return seconds, device.retries - before
