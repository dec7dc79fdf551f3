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
from memviz.units import bytes_text, count_text

if TYPE_CHECKING:
    from memviz.predictor.estimate import Estimate
    from memviz.predictor.group.ranks import GroupRank
    from memviz.results.device_bill import DeviceBill
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
The script really runs, in this process and as `python SCRIPT ...` would run it, with a CUDA device that is
pretended: what it prints and downloads is its own, and so is its exit status. The files that it writes are kept
apart, as they hold no computed values; it finds them there. Nothing is computed on that device; its memory is
counted as the card's allocator would. Where the script asks for values that are not computed
it gets a natural answer, which is noted, or is stopped with exit status 3: state the answer with --assume then.
Python processes that it starts (torchrun, mp.spawn, subprocess) are predicted too, each by itself; exit status 4 says
that what one of them takes is not known.
"""
_NOT_OF_HOST = "Python objects, libraries, other processes, the page cache"
_RARELY_A_SCRIPTS = ("--card", "--assume", "--assume-file", "--settings", "--with", "--torch", "--platform")
"""Options of memviz that are reported among the script's arguments, as scripts seldom have one of that name."""


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the options that a cell of a notebook takes too."""
    parser.add_argument(
        "--card",
        help="by a part of its name; its memory is the limit then (default: no limit); `predict` takes several: L4,T4",
    )
    add_memory(parser)
    parser.add_argument("--gpus", type=positive, default=1, metavar="N", help="such cards of the process: cuda:0 ...")
    parser.add_argument("--torch", default="", metavar="RELEASE", help="with the kernels of another release, as in 2.6")
    add_platform(parser)
    parser.add_argument("--settings", help="as in PYTORCH_CUDA_ALLOC_CONF, which holds by default")
    parser.add_argument("--steps", type=positive, metavar="N", help="end after N steps of the optimizer")
    parser.add_argument(
        "--assume", action="append", default=[], metavar="FILE.py:LINE[#N]=VALUE[,VALUE ...]",
        help="the answer where a line asks for values (#N: its Nth question), or where a variable is assigned "
        "(FILE.py:NAME=VALUE), or several, taken in turn; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--assume-file", action="append", default=[], type=Path, metavar="FILE",
        help="assumptions, one a line, with comments after #",
    )  # fmt: skip
    parser.add_argument(
        "--continue", dest="goes_beyond_card", action="store_true",
        help="where memory runs out, go on beyond the card and say what the program needs",
    )  # fmt: skip
    parser.add_argument(
        "--holders", dest="notes_holders", action="store_true",
        help="find which variable, container or autograd graph keeps each allocation (with -o)",
    )  # fmt: skip
    parser.add_argument(
        "--compile", dest="compiles", action="store_true",
        help="compile what the script gives to torch.compile, and predict the compiled code (takes a minute or more)",
    )  # fmt: skip


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.pickle", help="the snapshot; .gz packs it")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it is there already")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "python -m memviz predict [options] (SCRIPT | NOTEBOOK.ipynb | -m MODULE) [ARGUMENT ...]"
    parser.epilog = _MORE
    add_device(parser)
    parser.add_argument(
        "--with", dest="optimizations", action="append", default=[], metavar="NAME[:KNOB=VALUE,...]",
        help="an optimization, applied to the script's models as they reach the device; may be given several times",
    )  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", help="a knob of the optimizations")
    parser.add_argument("--write-assume", type=Path, metavar="FILE", help="write the answers that the run took")
    parser.add_argument(
        "--world-size", type=positive, metavar="N",
        help="run as one process of N, as torchrun would start it; the others are pretended",
    )  # fmt: skip
    parser.add_argument(
        "--rank", metavar="R|all", help="which of them (default: 0), or all: one for each class of equal ones"
    )
    parser.add_argument(
        "--host-memory", type=byte_count, metavar="SIZE", help="of the machine, as in 64GiB: say whether it fits there"
    )
    add_output(parser)
    parser.add_argument(
        "--outputs", type=Path, metavar="DIR",
        help="keep the files that the script writes, apart from the real ones; a further run finds them there "
        "(default: removed at the end)",
    )  # fmt: skip
    add_json(parser)
    add_script(parser)


def _predict(args: argparse.Namespace) -> int:
    with without_collection():
        from memviz.predictor.cards import card_names, card_text
        from memviz.runner.predicted_script import ScriptOrder, parse_optimizations, predict_script
        from memviz.runner.record.script import load_module, load_script

    if args.script.endswith(".json"):
        line = f"python -m memviz run {args.script} --on predict"
        raise UsageError(f"{args.script} is no script. A config.json is run as a model: {line}")
    if len(cards := card_names(args.card or "")) > 1:
        from memviz.commands.predict_ranks import predict_cards

        return predict_cards(args, cards)
    if args.rank == "all" and args.gpus > 1:
        raise UsageError("--gpus is of one process, and each rank has one card: use --world-size alone.")
    if args.rank == "all":
        from memviz.commands.predict_ranks import predict_all_ranks

        return predict_all_ranks(args)
    names = (argument.partition("=")[0] for argument in args.arguments)
    if misplaced := next((name for name in names if name in _RARELY_A_SCRIPTS), ""):
        print_line(
            f"{misplaced} stands after {args.script} and went to it; what is for memviz stands before the script"
        )
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
    try:
        done = predict_script(script, order, progress)
    finally:
        progress("")
    # To stderr: stdout belongs to the script.
    if done.stopped is not None:
        print_line(f"stopped at {done.stopped}")
    for line in summary_lines(done, args.output, host_memory=args.host_memory):
        print_line(line)
    if args.write_assume is not None:
        _write_assume(args.write_assume, done)
    if stdout is not None:
        from memviz.runner.predicted_script import script_json

        more = {
            "device_bill": bill.as_json() if (bill := bill_of_estimate(done.estimate)) else None,
            "host": _host_json(done.estimate, args.host_memory),
        }
        stdout.write(json.dumps({**script_json(done, args.output), **more}))
    return done.exit_status


def _group_rank(args: argparse.Namespace) -> GroupRank | None:
    from memviz.predictor.group.ranks import GroupRank, rank_of_environment

    if args.world_size is None:
        if args.rank is not None:
            raise UsageError("--rank says which process of a group; say of how many with --world-size N.")
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
    head = "# Answers where the program asked for values that are not computed, for --assume-file."
    try:
        path.write_text("".join(f"{line}\n" for line in (head, *done.assume)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}).") from None
    print_line(f"the assumptions are in {path}; change them and give them with --assume-file {path}")


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
        forms = "train.py:12=3.5, train.py:12#2=3.5 (its second question) or train.py:count=3"
        raise UsageError(f"--assume takes a place and a value, as in {forms}; not {text}.")
    try:
        return place, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise UsageError(f"--assume takes a value that Python can read, as in True, 3 or 0.5; not {value}.") from None


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
        yield f"the peak of the whole program is not known: {done.not_known}"
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
        yield f"the snapshot is in {output}; look at it with python -m memviz open {output}"


def _files_line(done: ScriptPrediction) -> str:
    if done.outputs is not None:
        return f"- files that the script writes are kept apart: {count_text(done.files)} in {done.outputs}"
    count = "1 file" if done.files == 1 else f"{count_text(done.files)} files"
    return f"- the script wrote {count}, in a folder apart that was removed: --outputs DIR keeps it"


def _part_lines(done: ScriptPrediction) -> Iterator[str]:
    """Yield the cells of a notebook, and what did not run or was not followed."""
    for cell in done.cells:
        live, left = bytes_text(cell.peak_requested_bytes), bytes_text(cell.end_requested_bytes)
        yield f"  cell {cell.number:<5} live {live} at the highest moment, {left} at its end"
    if done.skipped:
        yield f"- not run, as only Jupyter can: {', '.join(f'`{line}`' for line in done.skipped)}"
    for command, times in done.estimate.commands.items():
        yield f"- not predicted: `{command}`{f' ({count_text(times)} times)' if times > 1 else ''}"


def _child_lines(done: ScriptPrediction) -> Iterator[str]:
    estimate = done.estimate
    yield f"processes that it started, each predicted by itself on {estimate.card.name}:"
    for child in done.children:
        yield f"  {child.sentence()}"
    for sentence in dict.fromkeys(child.expected_error for child in done.children):
        yield f"  {sentence}"
    shared = done.shared_cards()
    for card, count, reserved in shared:
        beside = f"beside a CUDA context of {estimate.context.interval} for each"
        yield f"  cuda:{card} has {count} processes, with {bytes_text(reserved)} at most together, {beside}"
    if shared and done.fits is None and estimate.limited and not done.not_known:
        yield "  whether they fit one card depends on when each has its peak"
    elif done.fits is not None:
        yield f"  all of it {'fits' if done.fits else 'does not fit'}"


def _host_lines(estimate: Estimate, memory_bytes: int | None) -> Iterator[str]:
    from memviz.results.device_bill import children_line

    peak, processes = estimate.host, _processes_of_machine(estimate)
    parts = f"{bytes_text(peak.pageable_bytes)} pageable, {bytes_text(peak.pinned_bytes)} pinned"
    yield f"  host       {bytes_text(peak.bytes)} of tensors at the highest moment: {parts}"
    for line in children_line(peak.workers, "predicted"):
        yield f"             + {line.text}, {line.source}"
    if processes > 1:
        yield f"             {bytes_text(processes * peak.total_bytes)} with {processes} such processes on a machine"
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
    estimate, until = done.estimate, ", until there" if done.not_known else ""
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
    blocks = f"in blocks of {bytes_text(estimate.peak_allocated)}"
    if estimate.peak_allocated < estimate.peak_requested:
        blocks += " as torch counts, which leaves out what is freed and waits for a stream"
    yield f"  live       {bytes_text(estimate.peak_requested)} at the highest moment, {blocks}"
    free, squeezed = estimate.peak_reserved_without_limit, estimate.peak_reserved_on_card
    unlimited = ""
    if free is not None and squeezed is not None and squeezed < free:
        unlimited = f" on the card, {bytes_text(free)} without a limit"
    yield f"  reserved   {bytes_text(estimate.peak_reserved)} at most{unlimited}"
    if bill := bill_of_estimate(estimate):
        yield f"  on card    {bill.line}"


def bill_of_estimate(estimate: Estimate) -> DeviceBill | None:
    """Return what nvidia-smi would show on the named card; None without one."""
    from memviz.results.device_bill import device_bill

    if not estimate.limited:
        return None
    return device_bill(estimate.trace, estimate.trace.devices[estimate.gpu], estimate.peak_reserved)


def _common_text(estimate: Estimate) -> str:
    """Name common cards by verdict, where no --card was given."""
    if not estimate.peak_reserved:
        return "it took no memory of a card"
    from memviz.predictor.cards import short_name

    fits = {short_name(name): word for name, word in estimate.common_fits().items()}
    names = {word: [name for name, has in fits.items() if has == word] for word in ("yes", "close", "no")}
    verdicts = (("held by", names["yes"]), ("close on", names["close"]), ("not by", names["no"]))
    text = "; ".join(f"{what} {', '.join(cards)}" for what, cards in verdicts if cards)
    return f"{text} (--card NAME makes one card's memory the limit)"


def _needs_text(done: ScriptPrediction, estimate: Estimate) -> str:
    needs = estimate.needs
    assert needs is not None
    least = "at least, until it ended, " if done.not_known else ""
    beyond = f", {bytes_text(needs.beyond_bytes)} more than a process gets there" if needs.beyond_bytes else ""
    return f"it needs {least}{bytes_text(needs.reserved_bytes)}{beyond}"


def _fit_text(done: ScriptPrediction, estimate: Estimate) -> str:
    from memviz.results.run import usable_text

    name, word = estimate.card.name, estimate.fit_word()
    if estimate.out_of_memory:
        if estimate.needs is not None:
            needs = _needs_text(done, estimate)
            return f"does not fit: {name} ran out of memory, and the program went on beyond it; {needs}"
        times = f"{count_text(estimate.out_of_memory)} times" if estimate.out_of_memory > 1 else "once"
        if estimate.is_limited_by_itself:
            return f"does not fit: the program ran out of the share of {name} that it allows itself {times}"
        usable = usable_text(estimate.fit())
        unknown = "what it needs in all is not known, and predict --continue says it"
        after = unknown if done.exit_status else "the program went on to its end"
        return f"does not fit: {name} ran out of memory {times}, with {usable}; {after}"
    fit = estimate.fit()
    usable = f"the {bytes_text(fit.usable_bytes)} that a process gets of {name}"
    if word == "close":
        return f"whether it fits is close: {usable_text(fit)} of {name}"
    if fit.fits:
        return f"fits in {usable}"
    return f"does not fit in {usable}: it would run out at event {count_text(fit.event or 0)}"


COMMANDS = {"predict": Command(_add_arguments, _predict, takes_over=True)}
