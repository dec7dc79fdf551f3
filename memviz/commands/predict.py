"""Prediction of a user's own script on a GPU that is not present."""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memviz.commands.command import (
    Command,
    add_json,
    add_memory,
    add_platform,
    add_script,
    byte_count,
    pair,
    positive,
)
from memviz.commands.terminal import print_line, progress
from memviz.errors import UsageError
from memviz.memory import without_collection
from memviz.predictor.cards import card_names, card_text, short_name
from memviz.predictor.group.ranks import GroupRank, rank_of_environment
from memviz.results.device_bill import DeviceBill, children_line, device_bill
from memviz.units import bytes_text, count_text

if TYPE_CHECKING:
    from memviz.predictor.estimate import Estimate
    from memviz.runner.predicted_script import ScriptPrediction


class LastLine:
    """Tracks whether stdout is at the start of a line, to print JSON on a line of its own at the end."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        self._stdout, self._raw = sys.stdout, _LineTracking(1, "wb", closefd=False)
        self._stdout.flush()
        wrapped = io.TextIOWrapper(
            io.BufferedWriter(self._raw),
            encoding=self._stdout.encoding,
            errors=self._stdout.errors,
            line_buffering=bool(self._stdout.line_buffering),
            write_through=getattr(self._stdout, "write_through", False),
        )
        sys.stdout = sys.__stdout__ = wrapped  # type: ignore[misc]
        self._wrapped = wrapped

    def write(self, text: str) -> None:
        for stream in (sys.stdout, self._wrapped):
            # The script may have closed it.
            with suppress(ValueError, OSError):
                stream.flush()
        with os.fdopen(self._out, "w", encoding="utf-8") as file:
            file.write(f"{text}\n" if self._raw.at_start_of_line else f"\n{text}\n")


class _LineTracking(io.FileIO):
    at_start_of_line = True

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        if count:
            self.at_start_of_line = bytes(data[count - 1 : count]) == b"\n"
        return count


_MORE = """\
The script runs in this process, as `python SCRIPT ...` would run it, on a simulated CUDA device: nothing is computed
there, and memory is counted as PyTorch's allocator would on the card. Output, downloads and exit status are the
script's own. Files that it writes hold no computed values and go to a separate folder, where the script finds them.
Where the script needs a value that is not computed, it gets a default, which is reported, or it stops with exit
status 3: state the value with --assume. Python processes that it starts (torchrun, mp.spawn, subprocess) are
predicted separately; exit status 4 means that the memory of one of them is unknown.
"""
_NOT_OF_HOST = "Python objects, libraries, other processes, the page cache"
_RARELY_A_SCRIPTS = ("--card", "--assume", "--assume-file", "--settings", "--with", "--torch", "--platform")
"""Options of memviz that are reported among the script's arguments, as scripts seldom have one of that name."""


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the options that a cell of a notebook takes too."""
    parser.add_argument(
        "--card",
        help="card, by part of its name; its memory is the limit (default: no limit); `predict` takes several: L4,T4",
    )  # fmt: skip
    add_memory(parser)
    parser.add_argument(
        "--gpus", type=positive, default=1, metavar="N", help="number of cards of the process: cuda:0 ..."
    )
    parser.add_argument(
        "--torch", default="", metavar="RELEASE", help="use the kernels of another PyTorch release, such as 2.6"
    )
    add_platform(parser)
    parser.add_argument("--settings", help="allocator settings (default: PYTORCH_CUDA_ALLOC_CONF)")
    parser.add_argument("--steps", type=positive, metavar="N", help="stop after N optimizer steps")
    parser.add_argument(
        "--assume", action="append", default=[], metavar="FILE.py:LINE[#N]=VALUE[,VALUE ...]",
        help="value to use where a line needs one that is not computed (#N: Nth such place of a line), or where a "
        "variable is assigned (FILE.py:NAME=VALUE); several values are used in turn; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--assume-file", action="append", default=[], type=Path, metavar="FILE",
        help="file of assumptions, one per line; # starts a comment",
    )  # fmt: skip
    parser.add_argument(
        "--continue", dest="goes_beyond_card", action="store_true",
        help="on out of memory, continue beyond the card's memory and report what the program needs",
    )  # fmt: skip
    parser.add_argument(
        "--holders", dest="notes_holders", action="store_true",
        help="find which variable, container or autograd graph keeps each allocation (with -o)",
    )  # fmt: skip
    parser.add_argument(
        "--compile", dest="compiles", action="store_true",
        help="predict code under torch.compile as compiled (takes a minute or more)",
    )  # fmt: skip
    parser.add_argument(
        "--ideal-fusion", dest="compiles", action="store_const", const="ideal",
        help="predict the lower bound of code under torch.compile: only inputs and results of its graphs in memory",
    )  # fmt: skip


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.pickle", help="write a snapshot; add .gz to compress"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "python -m memviz predict [options] (SCRIPT | NOTEBOOK.ipynb | -m MODULE) [ARGUMENT ...]"
    parser.epilog = _MORE
    add_device(parser)
    parser.add_argument(
        "--with", dest="optimizations", action="append", default=[], metavar="NAME[:KNOB=VALUE,...]",
        help="optimization to apply to the script's models when they are moved to the device; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KNOB=VALUE", help="set a knob of the optimizations; repeatable"
    )
    parser.add_argument("--write-assume", type=Path, metavar="FILE", help="write the values that were assumed")
    parser.add_argument(
        "--world-size", type=positive, metavar="N",
        help="run as one of N processes, as torchrun would start it; the others are simulated",
    )  # fmt: skip
    parser.add_argument(
        "--rank", metavar="R|all", help="rank to predict (default: 0), or all: one per class of equal ranks"
    )
    parser.add_argument(
        "--host-memory", type=byte_count, metavar="SIZE",
        help="host memory, such as 64GiB: report whether the program fits",
    )  # fmt: skip
    add_output(parser)
    parser.add_argument(
        "--outputs", type=Path, metavar="DIR",
        help="keep the files that the script writes in DIR; later runs find them there "
        "(default: removed at the end)",
    )  # fmt: skip
    add_json(parser)
    add_script(parser)


def _predict(args: argparse.Namespace) -> int:
    with without_collection():
        from memviz.runner.predicted_script import ScriptOrder, parse_optimizations, predict_script
        from memviz.runner.record.script import load_module, load_script

    if args.script.endswith(".json"):
        line = f"python -m memviz run {args.script} --on predict"
        raise UsageError(f"{args.script} is not a script. Run a config.json as a model: {line}")
    if len(cards := card_names(args.card or "")) > 1:
        from memviz.commands.predict_ranks import predict_cards

        return predict_cards(args, cards)
    if args.rank == "all" and args.gpus > 1:
        raise UsageError("--gpus cannot be used with --rank all: each rank has one card. Use --world-size.")
    if args.rank == "all":
        from memviz.commands.predict_ranks import predict_all_ranks

        return predict_all_ranks(args)
    names = (argument.partition("=")[0] for argument in args.arguments)
    if misplaced := next((name for name in names if name in _RARELY_A_SCRIPTS), ""):
        print_line(f"{misplaced} after {args.script} is passed to the script; put memviz options before the script")
    stdout = LastLine() if args.json else None
    script = (load_module if args.module else load_script)(args.script, args.arguments)
    order = ScriptOrder(
        card=card_text(args.card, args.memory) or None,
        torch=args.torch,
        platform=args.platform,
        settings=args.settings,
        steps=args.steps,
        assume=stated_answers(args),
        goes_beyond_card=args.goes_beyond_card,
        notes_holders=args.notes_holders,
        compiles=args.compiles,
        gpus=args.gpus,
        rank=_group_rank(args),
        output=args.output and args.output.absolute(),
        overwrite=args.overwrite,
        outputs=args.outputs and args.outputs.absolute(),
        optimizations=parse_optimizations(args.optimizations, list(map(pair, args.set))),
    )
    streams = sys.stdout, sys.stderr
    try:
        done = predict_script(script, order, progress)
    finally:
        # Programs put loggers in their place.
        sys.stdout, sys.stderr = streams
        progress("")
    # To stderr: stdout belongs to the script.
    if done.stopped is not None:
        print_line(f"stopped at {done.stopped}")
    ideal = None
    if done.estimate.bound == "eager" and args.compiles is True and done.stopped is None:
        from memviz.commands.predict_ranks import predict_ideal_fusion

        ideal = predict_ideal_fusion(args)
    for line in summary_lines(done, args.output, host_memory=args.host_memory):
        print_line(line)
    if ideal:
        live, reserved = (bytes_text(ideal[f"peak_{kind}_bytes"]) for kind in ("requested", "reserved"))
        print_line(f"the peaks are upper bounds (eager); lower bounds (ideal fusion): live {live}, reserved {reserved}")
    if args.write_assume is not None:
        _write_assume(args.write_assume, done)
    if stdout is not None:
        from memviz.runner.predicted_script import script_json

        more = {
            "device_bill": bill.as_json() if (bill := bill_of_estimate(done.estimate)) else None,
            "host": _host_json(done.estimate, args.host_memory),
            "ideal_fusion": ideal,
        }
        stdout.write(json.dumps({**script_json(done, args.output), **more}))
    return done.exit_status


def _group_rank(args: argparse.Namespace) -> GroupRank | None:
    if args.world_size is None:
        if args.rank is not None:
            raise UsageError("--rank needs the number of processes: add --world-size N.")
        return rank_of_environment(os.environ)
    if not (args.rank or "0").isdigit():
        raise UsageError(f"--rank takes a number from 0 to {args.world_size - 1}, not {args.rank}.")
    return GroupRank(int(args.rank or 0), args.world_size)


def _lines_of_files(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}).") from None
        # A comment begins the line or follows a space: `train.py:12#2` is a place.
        yield from filter(None, (re.split(r"(?:^|\s)#", line)[0].strip() for line in lines))


def _write_assume(path: Path, done: ScriptPrediction) -> None:
    """Write the answers of the run, as `--assume-file` takes them."""
    head = "# Values assumed in place of values that are not computed, for --assume-file."
    try:
        path.write_text("".join(f"{line}\n" for line in (head, *done.assume)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}).") from None
    print_line(f"assumptions written to {path}; edit them and pass them with --assume-file {path}")


def stated_answers(args: argparse.Namespace) -> dict[str, Any]:
    """Return the answer of each place, or the answers in order where a place is named several times."""
    answers: dict[str, Any] = {}
    for place, value in map(_assumed, [*_lines_of_files(args.assume_file), *args.assume]):
        more = value if isinstance(value, tuple) else (value,)
        answers[place] = (*answers[place], *more) if place in answers else more
    return answers


def _assumed(text: str) -> tuple[str, Any]:
    from memviz.predictor.questions import is_place

    place, equals, value = text.partition("=")
    if not equals or not is_place(place):
        forms = "train.py:12=3.5, train.py:12#2=3.5 (the second such place of the line) or train.py:count=3"
        raise UsageError(f"--assume takes a place and a value, such as {forms}, not {text}.")
    try:
        return place, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise UsageError(f"--assume takes a Python literal, such as True, 3 or 0.5, not {value}.") from None


def summary_lines(
    done: ScriptPrediction, output: Path | None = None, *, host_memory: int | None = None
) -> Iterator[str]:
    from memviz.predictor.accuracy import unproven_sentence
    from memviz.predictor.assumptions import caught_refusal, sentences_of

    estimate = done.estimate
    has_children = any(done.children)
    if estimate.peak_requested or estimate.out_of_memory or not (done.not_known or has_children):
        yield from _figure_lines(done, host_memory)
    if has_children:
        yield from _child_lines(done)
    if done.not_known:
        yield f"the peak of the whole program is unknown: {done.not_known}"
    else:
        if estimate.peak_requested or not has_children:
            yield f"  {estimate.expected_error.sentence}"
        if sentence := unproven_sentence(estimate.unproven):
            yield f"- {sentence}"
    yield from _part_lines(done)
    if done.files:
        yield _files_line(done)
    for sentence in sentences_of(estimate.assumed):
        yield f"- assumed: {sentence}"
    if caught := caught_refusal():
        yield f"- {caught}"
    if done.unused_sentence:
        yield f"error: {done.unused_sentence}"
    if output is not None:
        yield f"snapshot written to {output}; view it with python -m memviz open {output}"


def _files_line(done: ScriptPrediction) -> str:
    if done.outputs is not None:
        return f"- files written by the script: {count_text(done.files)} in {done.outputs}"
    count = "1 file" if done.files == 1 else f"{count_text(done.files)} files"
    return f"- the script wrote {count} to a temporary folder, now removed; --outputs DIR keeps such files"


def _part_lines(done: ScriptPrediction) -> Iterator[str]:
    """Yield the cells of a notebook, and what did not run or was not followed."""
    for cell in done.cells:
        live, left = bytes_text(cell.peak_requested_bytes), bytes_text(cell.end_requested_bytes)
        yield f"  cell {cell.number:<5} live {live} at the peak, {left} at its end"
    if done.skipped:
        yield f"- not run (only Jupyter can): {', '.join(f'`{line}`' for line in done.skipped)}"
    for command, times in done.estimate.commands.items():
        yield f"- not predicted: `{command}`{f' ({count_text(times)} times)' if times > 1 else ''}"


def _child_lines(done: ScriptPrediction) -> Iterator[str]:
    estimate = done.estimate
    yield f"child processes, each predicted separately on {estimate.card.name}:"
    for child in done.children:
        yield f"  {child.sentence()}"
    for sentence in dict.fromkeys(child.expected_error for child in done.children):
        yield f"  {sentence}"
    shared = done.shared_cards()
    for card, count, reserved in shared:
        beside = f"plus a CUDA context of {estimate.context.interval} each"
        yield f"  cuda:{card}: {count} processes with at most {bytes_text(reserved)} together, {beside}"
    if shared and done.fits is None and estimate.limited and not done.not_known:
        yield "  whether they fit on one card depends on when each reaches its peak"
    elif done.fits is not None:
        yield f"  all together: {'fits' if done.fits else 'does not fit'}"


def _host_lines(estimate: Estimate, memory_bytes: int | None) -> Iterator[str]:
    peak, processes = estimate.host, _processes_of_machine(estimate)
    parts = f"{bytes_text(peak.pageable_bytes)} pageable, {bytes_text(peak.pinned_bytes)} pinned"
    yield f"  host       {bytes_text(peak.bytes)} of tensors at the peak: {parts}"
    for line in children_line(peak.workers, "predicted"):
        yield f"             + {line.text}, {line.source}"
    if processes > 1:
        yield f"             {bytes_text(processes * peak.total_bytes)} for {processes} such processes on one machine"
    if memory_bytes is not None:
        fits = "fits" if peak.fits(memory_bytes, processes) else "does not fit"
        yield f"             {fits} in {bytes_text(memory_bytes)} of host memory; not counted: {_NOT_OF_HOST}"


def _processes_of_machine(estimate: Estimate) -> int:
    return 1 if estimate.rank is None else estimate.rank.cards


def _host_json(estimate: Estimate, memory_bytes: int | None) -> dict[str, Any]:
    peak, processes = estimate.host, _processes_of_machine(estimate)
    return {
        "peak_bytes": peak.bytes,
        "pageable_bytes": peak.pageable_bytes,
        "pinned_bytes": peak.pinned_bytes,
        "workers": peak.workers.count,
        "workers_bytes": peak.workers.bytes,
        "processes": processes,
        "memory_bytes": memory_bytes,
        "fits": peak.fits(memory_bytes, processes),
        "not_counted": _NOT_OF_HOST,
    }


def _figure_lines(done: ScriptPrediction, host_memory: int | None) -> Iterator[str]:
    estimate, until = done.estimate, ", incomplete" if done.not_known else ""
    steps = f", {count_text(estimate.steps)} {'step' if estimate.steps == 1 else 'steps'}" if estimate.steps else ""
    rank = "" if estimate.rank is None else f", rank {estimate.rank.number} of {estimate.rank.world_size}"
    card = estimate.card.name
    count = f"for {len(estimate.gpus)} cards " if estimate.gpus else ""
    several = f"{len(estimate.gpus)} x " if estimate.gpus else ""
    kernels = f"for {several}{card} with the kernels" if estimate.limited else f"{count}with the kernels of {card} and"
    yield f"predicted {kernels} of torch {estimate.torch}{rank}{steps}{until}:"
    if not estimate.gpus:
        yield from _peak_lines(estimate)
    if estimate.host.bytes or estimate.host.workers.count:
        yield from _host_lines(estimate, host_memory)
    for name, models in done.applied.items():
        yield f"  {name} changed {', '.join(models) or 'no model'}"
    for warning in estimate.warnings:
        yield f"  warning: {warning}"
    for one in estimate.gpus:
        yield f" cuda:{one.gpu}"
        yield from _peak_lines(one)
        if done.fits is not None:
            yield f"  {_fit_text(done, one)}"
    if done.fits is not None and not estimate.gpus:
        yield f"  {_fit_text(done, estimate)}"
    elif done.fits is None and not done.not_known:
        yield f"  {_common_text(estimate)}"


def _peak_lines(estimate: Estimate) -> Iterator[str]:
    """Yield the peaks of one card."""
    blocks = f"allocated {bytes_text(estimate.peak_allocated)}"
    if estimate.peak_allocated < estimate.peak_requested:
        blocks += " (torch leaves out freed blocks that wait for a stream)"
    yield f"  live       {bytes_text(estimate.peak_requested)} at the peak, {blocks}"
    free, squeezed = estimate.peak_reserved_without_limit, estimate.peak_reserved_on_card
    unlimited = ""
    if free is not None and squeezed is not None and squeezed < free:
        unlimited = f" on the card, {bytes_text(free)} without a limit"
    yield f"  reserved   {bytes_text(estimate.peak_reserved)} at most{unlimited}"
    if bill := bill_of_estimate(estimate):
        yield f"  on card    {bill.line}"


def bill_of_estimate(estimate: Estimate) -> DeviceBill | None:
    """Return what nvidia-smi would show on the named card; None without one."""
    if not estimate.limited:
        return None
    return device_bill(estimate.trace, estimate.trace.devices[estimate.gpu], estimate.peak_reserved)


def _common_text(estimate: Estimate) -> str:
    """Name common cards by verdict, where no --card was given."""
    if not estimate.peak_reserved:
        return "no GPU memory was allocated"
    fits = {short_name(name): word for name, word in estimate.common_fits().items()}
    names = {word: [name for name, has in fits.items() if has == word] for word in ("yes", "close", "no")}
    verdicts = (("fits on", names["yes"]), ("close on", names["close"]), ("does not fit on", names["no"]))
    text = "; ".join(f"{what} {', '.join(cards)}" for what, cards in verdicts if cards)
    return f"{text} (--card NAME sets the limit)"


def _needs_text(done: ScriptPrediction, estimate: Estimate) -> str:
    needs = estimate.needs
    assert needs is not None
    least = "at least " if done.not_known else ""
    beyond = f", {bytes_text(needs.beyond_bytes)} more than usable" if needs.beyond_bytes else ""
    return f"it needs {least}{bytes_text(needs.reserved_bytes)}{beyond}"


def _fit_text(done: ScriptPrediction, estimate: Estimate) -> str:
    from memviz.results.run import usable_text

    name, word = estimate.card.name, estimate.fit_word()
    if estimate.out_of_memory:
        if estimate.needs is not None:
            needs = _needs_text(done, estimate)
            return f"does not fit: {name} ran out of memory, and the program continued beyond it; {needs}"
        times = f"{count_text(estimate.out_of_memory)} times" if estimate.out_of_memory > 1 else "once"
        if estimate.is_limited_by_itself:
            return f"does not fit: the program exceeded its own memory fraction of {name} {times}"
        usable = usable_text(estimate.fit())
        unknown = "its full need is unknown; use predict --continue"
        after = unknown if done.exit_status else "the program continued to its end"
        return f"does not fit: {name} ran out of memory {times}, with {usable}; {after}"
    fit = estimate.fit()
    usable = f"the {bytes_text(fit.usable_bytes)} usable on {name}"
    if word == "close":
        return f"close to the limit: {usable_text(fit)} on {name}"
    if fit.fits:
        return f"fits in {usable}"
    return f"does not fit in {usable}: out of memory at event {count_text(fit.event or 0)}"


COMMANDS = {"predict": Command(_add_arguments, _predict, takes_over=True)}
