"""The cheapest configuration with which a model fits on a card, predicted; and how large a batch it may take."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from memviz.commands.command import (
    Command,
    add_host_memory,
    add_json,
    add_knobs,
    add_memory,
    add_optimizer,
    add_parallel,
    add_platform,
    option,
    positive,
    print_json,
    print_table,
    printable,
    request_of,
)
from memviz.commands.terminal import progress
from memviz.errors import UsageError
from memviz.results.fit import cost_figure, cost_unit, fit_cell, largest_text, preserved_text, remaining_text, stop_text
from memviz.runner.fit.cost import KEEPS
from memviz.runner.fit.predictions import Predictor, is_cacheable
from memviz.runner.request import command_of
from memviz.units import bytes_text, count_text, counted, duration_text, parse_seconds

if TYPE_CHECKING:
    from memviz.runner.fit.fit import FitAnswer
    from memviz.runner.fit.measurement import Gpu, Measurement
    from memviz.runner.fit.search import Trial
    from memviz.runner.plan import Plan

_MOST_ROWS = 12
_BETWEEN_LINES = 30.0
"""Seconds between lines of progress where there is no terminal."""
_MEASURED = 3


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", help="a name from `run --list`, a config.json, or FILE.py:function")
    parser.add_argument("--card", help="card to fit on, by part of its name (default: RTX 4090)")
    add_memory(parser)
    add_host_memory(parser)
    add_platform(parser)
    add_knobs(parser, "optimization used in every configuration, and in the reference of --keep; repeatable")
    parser.add_argument(
        "--keep", choices=KEEPS, default="outputs",
        help="what must not change: outputs (up to rounding), training (optimizer and number format may change), or "
        "nothing (weights may be quantized too) (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--largest", choices=("batch", "sequence"),
        help="find the largest that fits with the chosen configuration, or with the smallest if none fits",
    )  # fmt: skip
    parser.add_argument("--grid", action="store_true", help="also map batch x sequence, with the exact limit")
    parser.add_argument(
        "--time-limit", type=option(parse_seconds), metavar="TIME",
        help="stop after TIME, such as 90s, 10m or 2h, and show the results so far",
    )  # fmt: skip
    parser.add_argument(
        "--tries", type=positive, metavar="N",
        help="predict at most N configurations (default: 300; stops earlier when more gain nothing)",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true", help="list every predicted configuration, not only the Pareto front"
    )
    add_optimizer(parser)
    add_parallel(parser)
    parser.add_argument(
        "--scheduler", metavar="ADDRESS",
        help="predict on the workers of this Dask scheduler; they need the same memviz and PyTorch",
    )  # fmt: skip
    parser.add_argument(
        "--measure", type=_count, nargs="?", const=_MEASURED, metavar="N",
        help="measure the N cheapest configurations that fit, on the local GPU or, with --scheduler, on the workers' "
        "GPUs (default: %(const)s)",
    )  # fmt: skip
    parser.add_argument("--processes", type=_count, metavar="N", help="parallel processes (default: one per core)")
    add_json(parser)


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 256")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    from memviz.runner.fit.fit import by_cost, find_fit, fit_json, trial_json, trial_label
    from memviz.runner.fit.search import Stop

    request, progress_line, stop = request_of(args), _Progress(), Stop(args.time_limit)
    if args.measure:
        from memviz.runner.fit.measurement import check_can_be_measured

        check_can_be_measured(request)
    try:
        with _machines(args) as (predictor, gpus):
            answer = find_fit(
                request,
                predictor,
                keep=args.keep,
                largest=args.largest or "",
                grid=args.grid,
                tries=args.tries,
                stop=stop,
                tell=progress_line.update,
                tell_largest=lambda value: progress_line.show(f"{args.largest or 'sequence'} {count_text(value)} ..."),
            )
            measured = _measured(answer, gpus, args.measure) if args.measure and not answer.stopped else None
    finally:
        progress("")
    ways = answer.searched.ways
    if args.json:
        from memviz.runner.fit.measurement import measured_json

        rows = None if measured is None else [measured_json(each, trial_label(each.way)) for each in measured]
        more = {"ways": [trial_json(trial) for trial in by_cost(ways)]} if args.all else {}
        print_json({**fit_json(answer), "measured": rows, **more})
    elif ways:
        _print(answer, measured, by_cost(ways) if args.all else ())
    if answer.stopped and (args.json or not ways):
        print(f"memviz: {_stop_sentence(answer)}", file=sys.stderr)
    if not ways and not answer.stopped:
        reasons = answer.searched.refused
        refused = "The only configuration tried could not be predicted"
        if len(reasons) > 1:
            refused = f"None of the {count_text(len(reasons))} configurations tried could be predicted"
        raise UsageError(f"{refused}. {reasons[0]}")
    return stop.status if answer.stopped else 0


_STOPPED_BY = {
    "time limit": "Stopped by --time-limit.",
    "interrupted": "Stopped by Ctrl-C.",
    "terminated": "Stopped by a signal.",
}


def _stop_sentence(answer: FitAnswer) -> str:
    searched = answer.searched
    sentence = stop_text(_STOPPED_BY[answer.stopped], searched.tried, searched.planned)
    return f"{sentence} Run the same command again to continue." if is_cacheable(answer.request) else sentence


@contextmanager
def _machines(args: argparse.Namespace) -> Iterator[tuple[Predictor, list[Gpu]]]:
    """Yield the predictor and the GPUs to measure on; missing ones raise before the search begins."""
    if args.scheduler is None:
        from memviz.runner.fit.measurement import gpus_of_this_machine

        gpus = gpus_of_this_machine() if args.measure else []
        with Predictor(processes=args.processes) as predictor:
            yield predictor, gpus
        return
    from memviz.dask_client import dask_client
    from memviz.runner.fit.measurement import DaskWorker, same_versions, worker_gpus, worker_threads

    with dask_client(args.scheduler) as client:
        gpus = worker_gpus(client, args.scheduler) if args.measure else []
        if gpus and not same_versions(client):
            # Their PyTorch is built for a GPU and ours is not: what they predict would not be kept as ours.
            with Predictor(processes=args.processes) as predictor:
                yield predictor, gpus
            return
        threads = worker_threads(client, args.scheduler)
        with Predictor(processes=args.processes or threads, make_worker=lambda: DaskWorker(client)) as predictor:
            yield predictor, gpus


def _measured(answer: FitAnswer, gpus: list[Gpu], count: int) -> list[Measurement]:
    from memviz.runner.fit.measurement import measured, select_gpus, trials_to_measure
    from memviz.runner.plan import plan_of

    ways = trials_to_measure(answer.listed, count)
    used = select_gpus(gpus, plan_of(answer.request).card.model)
    progress(f"measuring {counted(len(ways), 'configuration')} on {counted(len(used), 'GPU')} ...")
    return measured(ways, used, lambda done: progress(f"{done} of {counted(len(ways), 'configuration')} measured ..."))


class _Progress:
    """Progress: one line on a terminal; elsewhere a line every 30 seconds, and as soon as something fits."""

    def __init__(self) -> None:
        from memviz.runner.jobs.service import Pace

        self._way: Trial | None = None
        self._pace = Pace()
        self._printed_at = float("-inf")

    def update(self, trial: Trial | None, done: int, of: int) -> None:
        from memviz.runner.fit.fit import short_label

        is_first = self._way is None
        if trial is not None and trial.fits and (self._way is None or trial.cost.rank < self._way.cost.rank):
            self._way = trial
        left, best = remaining_text(self._pace.seconds_left(done, of)), "none fits yet"
        if self._way is not None:
            verb = "is close" if self._way.prediction.fit == "close" else "fits"
            best = f"{short_label(self._way)} {verb}: {bytes_text(self._way.peak_reserved_bytes)}"
        self.show(f"{done} of {of} configurations tried{left}; {best} ...", at_once=is_first and self._way is not None)

    def show(self, line: str, *, at_once: bool = False) -> None:
        progress(line)
        print_now = at_once or time.monotonic() - self._printed_at >= _BETWEEN_LINES
        if print_now and not sys.stderr.isatty():
            self._printed_at = time.monotonic()
            print(f"memviz: {printable(line)}", file=sys.stderr, flush=True)


def _print(answer: FitAnswer, measured: list[Measurement] | None = None, every: Sequence[Trial] = ()) -> None:
    from memviz.runner.fit.search import WITHOUT_GAIN
    from memviz.runner.plan import plan_of

    plan, chosen = plan_of(answer.request), answer.chosen
    room = f"the {bytes_text(answer.usable_bytes)} usable on {plan.card.name}"
    if memory := answer.request.host_memory_bytes:
        room += f" and {bytes_text(memory)} of host memory"
    if chosen is None:
        _print_least(answer, room)
    else:
        _print_chosen(answer, chosen, room)
    _print_grid(answer)
    print()
    _print_ways(answer, every)
    searched, refused = answer.searched, len(answer.searched.refused)
    predicted = f"Predicted {count_text(searched.tried - refused)} of {count_text(searched.of)} configurations"
    predicted += f" and stopped: the last {WITHOUT_GAIN} gained almost nothing" if searched.is_settled else ""
    are = "1 was refused" if refused == 1 else f"{count_text(refused)} were refused, the first because"
    rest = f"; {are}: {searched.refused[0]}" if refused else "."
    print(f"\n{printable(f'{predicted}{rest}')}")
    if answer.stopped:
        print(_stop_sentence(answer))
    if any(trial.cost.seconds_low is not None for trial in answer.listed):
        print(f"Seconds are estimated from the work of a {plan.unit} and the card's data sheet, not measured.")
    if measured is not None:
        _print_measured(measured, plan)
    if chosen is not None:
        print(f"\n{printable(chosen.prediction.command)}\n")
        for line in chosen.prediction.code.splitlines():
            print(printable(line))


def _print_least(answer: FitAnswer, room: str) -> None:
    from memviz.runner.fit.fit import short_label

    print(f"No configuration tried fits in {room}.")
    least = answer.grown
    if least is not None:
        print(f"The smallest is {short_label(least)}: {bytes_text(least.peak_reserved_bytes)} reserved, predicted.")
    _print_largest(answer)
    if answer.largest is not None:
        print(printable(command_of(answer.largest.request)))
    elif answer.keep != "nothing" and not answer.stopped:
        print(f"`--keep {KEEPS[KEEPS.index(answer.keep) + 1]}` allows more changes.")


def _print_chosen(answer: FitAnswer, chosen: Trial, room: str) -> None:
    from memviz.runner.fit.fit import short_label, trial_json

    label, reserved = short_label(chosen), bytes_text(chosen.peak_reserved_bytes)
    if chosen.prediction.fit == "close":
        print(f"{label} is close: {reserved} reserved, predicted, fit in {room}, but may not on a real card.")
    else:
        print(f"{label} fits in {room}: {reserved} reserved, predicted.")
    if sentence := (chosen.prediction.expected_error or {}).get("sentence"):
        print(sentence)
    print(printable(preserved_text(trial_json(chosen))))
    plain = answer.as_it_is
    if plain is not None and plain.fits and plain is not chosen:
        peak = bytes_text(plain.peak_reserved_bytes)
        print(f"Without changes it fits too, with {peak}; this configuration is estimated to be cheaper.")
    _print_largest(answer)


def _print_largest(answer: FitAnswer) -> None:
    from memviz.runner.fit.fit import largest_json

    largest = largest_json(answer)
    if largest is not None:
        print(printable(largest_text(largest)))


def _print_grid(answer: FitAnswer) -> None:
    if answer.grid is None or not answer.grid.rows:
        return
    print("\nGiB reserved without a memory limit, by sequence and batch. A ! marks what does not fit.")
    batches = answer.grid.batches
    rows = []
    for row in answer.grid.rows:
        peaks = ((row.peaks.get(batch), "" if batch <= row.largest else "!") for batch in batches)
        cells = ("" if peak is None else f"{peak / (1 << 30):.1f}{mark}" for peak, mark in peaks)
        rows.append([count_text(row.sequence), *cells, count_text(row.largest)])
    print_table(["sequence", *map(count_text, batches), "largest batch"], rows, number_columns=1)


def _print_ways(answer: FitAnswer, every: Sequence[Trial]) -> None:
    """Print every configuration, or of the Pareto front the rows around the chosen one."""
    from memviz.runner.fit.fit import trial_json, trial_label

    ways, chosen = every or answer.listed, answer.chosen
    most = len(every) or _MOST_ROWS
    at = 0 if chosen is None else ways.index(chosen)
    first = max(0, at - most // 2) if at >= most else 0
    rows = []
    for way in ways[first : first + most]:
        trial = trial_json(way)
        mark = ", chosen" if way is chosen else ""
        reserved = bytes_text(way.peak_reserved_bytes)
        rows.append([reserved, cost_figure(trial), f"{fit_cell(trial)}{mark}", trial_label(way)])
    per = cost_unit(trial_json(ways[0]))
    if first:
        print(f"{count_text(first)} cheaper configurations that do not fit are not shown")
    print_table(["reserved", per, "", "configuration, cheapest first"], rows, number_columns=1)
    if len(ways) > first + most:
        print(f"and {len(ways) - first - most} more that use less memory and cost more")
    if not every and (beside := len(answer.searched.ways) - len(ways)) > 0:
        print(f"{count_text(beside)} others are no better than one of these in memory or cost; --all lists them.")


def _print_measured(measured: list[Measurement], plan: Plan) -> None:
    from memviz.runner.fit.fit import trial_label

    if not measured:
        print("\nNo configuration is predicted to fit, so none was measured.")
        return
    card = plan.card.model
    rows = []
    for each in measured:
        reserved = "not measured" if each.run is None else bytes_text(each.run.peak_reserved_bytes)
        seconds = None if each.run is None else each.run.seconds
        time_text = f"{duration_text(round(seconds.median * 1e6))}, {seconds.spread_words}" if seconds else ""
        predicted = bytes_text(each.way.prediction.peak_reserved_bytes)
        rows.append([trial_label(each.way), each.gpu, reserved, predicted, time_text])
    print()
    heads = ["measured", "on", "reserved", f"predicted for {card}", f"seconds per {plan.unit}"]
    print_table(heads, rows, number_columns=2)
    for each in measured:
        if each.run is None:
            print(f"- {printable(trial_label(each.way))}: {printable(each.why)}")
    if not all(each.gpu.startswith(card) for each in measured):
        print(f"GPUs other than {card} may choose other kernels, and their times differ.")


COMMANDS = {"fit": Command(_add_arguments, _run)}
