"""A script of anybody's, unmodified, on a card that is not there: `python train.py` as it would run there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memviz.runner.predict.assumptions import UnknownNumber
from memviz.runner.predict.estimate import Estimate, estimate_of
from memviz.runner.predict.exit_functions import ExitFunctions, exit_functions
from memviz.runner.predict.group.rank import GroupRank
from memviz.runner.predict.model_changes import ModelChanges
from memviz.runner.predict.optimizer_steps import OptimizerSteps
from memviz.runner.predict.predicted_program import device_for
from memviz.runner.predict.prediction_errors import Stopped, interrupted, size_needed
from memviz.runner.record.recording import free_path
from memviz.runner.record.script import Script
from memviz.trace.formats.replacing import replacing
from memviz.trace.formats.write_snapshot import write_pickle
from optimizations import Optimization

STOPPED = 3
"""The exit status of a program that asked for values that nobody computes."""
UNUSED = 2
"""The exit status where an answer was stated for a line that asks for none, as of every wrong use of the command."""
NOT_KNOWN = 4
"""The exit status where the program came to a good end and processes that it started had the card, if anything did."""
INTERRUPTED = 128 + signal.SIGINT
_ONLY_OWN = "which are not predicted: predict the script that they run, with --world-size N for several"


@dataclass(frozen=True)
class ScriptOrder:
    card: str | None = None
    torch: str = ""
    settings: str | None = None
    steps: int | None = None
    assume: Mapping[str, Any] = field(default_factory=dict)
    output: Path | None = None
    overwrite: bool = False
    rank: GroupRank | None = None
    """Which process of a group it runs as."""
    optimizations: tuple[Optimization, ...] = ()
    """Applied to the script's models as they reach the device."""

    @property
    def settings_text(self) -> str | None:
        """Those of an optimization hold where none are said."""
        said = [text for change in self.optimizations for text in change.environment.values()]
        return said[0] if self.settings is None and said else self.settings


@dataclass(frozen=True)
class ScriptPrediction:
    exit_status: int
    estimate: Estimate
    stopped: Stopped | None = None
    """Why it could not go on to its end."""
    applied: Mapping[str, list[str]] = field(default_factory=dict)
    """Optimizations, and the classes of the models that each changed."""
    unused_assume: tuple[str, ...] = ()
    """Lines that an answer was stated for, and none of them asked."""
    unused_sentence: str = ""
    """What was stated in vain, with the lines that did ask."""

    @property
    def not_known(self) -> str:
        """The reason why the peaks are not those of the whole program; empty where they are."""
        if self.stopped is not None:
            return f"the program was stopped at {self.stopped.where or 'a line that is not known'}"
        own = "took no memory of a card"
        if self.estimate.children_used_the_card:
            return f"a fork of the program used the card, {_ONLY_OWN}"
        if not self.estimate.peak_reserved and self.estimate.commands:
            return f"the program's own process {own} and it started other processes of Python, {_ONLY_OWN}"
        if self.exit_status and not self.estimate.peak_reserved and not self.estimate.out_of_memory:
            return f"the program {own} before it ended with exit status {int(self.exit_status)}"
        if self.exit_status:
            return (
                f"the program ended with exit status {int(self.exit_status)}, and only what ran until then is counted"
            )
        return ""

    @property
    def fits(self) -> bool | None:
        """On the card that was named; None where none was, or the program took too little before its end to tell."""
        if self.stopped is not None or not self.estimate.limited:
            return None
        fits = self.estimate.fits()
        return None if fits and self.not_known else fits


def predict_script(
    script: Script, order: ScriptOrder, tell: Callable[[str], None] = lambda words: None
) -> ScriptPrediction:
    """Runs it to its end, and everything that it wants done at exit, then writes what the card would have written."""
    if order.output is not None:
        free_path(order.output, overwrite=order.overwrite)
    device = device_for(
        order.card, torch=order.torch, settings=order.settings_text, assume=order.assume, rank=order.rank
    )
    changes = ModelChanges(order.optimizations, device.recorder.assumptions)
    process = os.getpid()
    with (
        device,
        exit_functions() as at_exit,
        changes.following(),
        OptimizerSteps(order.steps, lambda taken: tell(_steps(taken))) as steps,
    ):
        status, stopped = _run(script, at_exit)
        if os.getpid() != process:
            # One that the program forked, at its own end.
            sys.stdout.flush()
            os._exit(status)
        trace = device.finish()
        estimate = estimate_of(device, trace, steps=steps.taken)
    if order.output is not None:
        with replacing(order.output) as file:
            write_pickle(trace, file)
    assumed = device.recorder.assumptions
    done = ScriptPrediction(status, estimate, stopped, changes.applied, assumed.unused, assumed.unused_sentence)
    if status or not (done.not_known or done.unused_assume):
        return done
    return replace(done, exit_status=UNUSED if done.unused_assume else NOT_KNOWN)


def _steps(count: int) -> str:
    return f"{count} steps" if count > 1 else "1 step"


def _run(script: Script, at_exit: ExitFunctions) -> tuple[int, Stopped | None]:
    try:
        script.run_to_its_end()
        status = 0
    except SystemExit as error:
        status = _status_of(error)
    except KeyboardInterrupt as error:
        at_exit.run()
        return INTERRUPTED, interrupted(error)
    except BaseException as error:
        stopped = _cause(error)
        if stopped is not None:
            stopped.was_not_caught()
            return STOPPED, stopped
        script.show(error)
        status = 1
    at_exit.run()
    return status, None


def _status_of(error: SystemExit) -> int:
    """As Python ends: nothing is 0, and what is no number is printed."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _cause(error: BaseException | None) -> Stopped | None:
    """Libraries wrap what stops them into errors of their own."""
    while error is not None:
        if isinstance(error, Stopped):
            return error
        if isinstance(error, TypeError) and UnknownNumber.__name__ in str(error):
            # torch only says that a size is of a wrong type.
            return size_needed(error)
        error = error.__cause__ or error.__context__
    return None
