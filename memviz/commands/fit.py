"""The cheapest way to make a model fit on a card, predicted; and how large a batch it may take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memviz.commands.command import (
    Command,
    add_json,
    add_parallel,
    pair,
    parallel_texts,
    print_json,
    print_table,
    printable,
)
from memviz.commands.terminal import progress
from memviz.errors import UsageError
from memviz.units import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from memviz.runner.fit.fit import FitAnswer
    from memviz.runner.fit.front import TriedWay
    from memviz.runner.fit.measured_ways import Gpu, MeasuredWay
    from memviz.runner.fit.predictions import Predictor
    from memviz.runner.fit.search import Searched
    from memviz.runner.plan import Plan
    from memviz.runner.request import Request

_KEEPS = ("outputs", "training", "nothing")
_MOST_ROWS = 12
_MEASURED = 3


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", help="a name from `run --list`, a config.json, or FILE.py:function")
    parser.add_argument("--card", help="the card it is to fit on, by a part of its name (default: RTX 4090)")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", help="a knob of the workload")
    parser.add_argument(
        "--with", dest="optimizations", action="append", default=[], metavar="NAME[:KNOB=VALUE,...]",
        help="an optimization that is on in every way that is tried",
    )  # fmt: skip
    parser.add_argument(
        "--keep", choices=_KEEPS, default="outputs",
        help="what must stay: outputs to rounding; the model, trained with another optimizer or number format; or "
        "nothing, so that weights may be stored in fewer bits (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--largest", choices=("batch", "sequence"), help="how large it may get the way that is chosen")
    parser.add_argument("--grid", action="store_true", help="map batch x sequence that way, with the border exact")
    parser.add_argument(
        "--optimizer", choices=("none", "sgd", "adamw", "adamw-fused", "adamw-for-loop"), default="none",
        help="that steps after backward (default: %(default)s, gradients add up)",
    )  # fmt: skip
    add_parallel(parser)
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="of Dask, whose workers predict; they need the same memviz and PyTorch"
    )
    parser.add_argument(
        "--measure", type=_count, nargs="?", const=_MEASURED, metavar="N",
        help="measure the N cheapest ways that fit, on the GPU here or, with --scheduler, on those of the workers that "
        "have one (default: %(const)s)",
    )  # fmt: skip
    parser.add_argument("--processes", type=_count, metavar="N", help="that predict at once (default: one a core)")
    add_json(parser)


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 256")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    from memviz.runner.fit.fit import find_fit, fit_json

    request, best = _request(args), _Best()
    if args.measure:
        from memviz.runner.fit.measured_ways import check_can_be_measured

        check_can_be_measured(request)
    try:
        with _machines(args) as (predictor, gpus):
            answer = find_fit(
                request,
                predictor,
                keep=args.keep,
                largest=args.largest or "",
                grid=args.grid,
                tell=best.tell,
                tell_largest=lambda value: progress(f"{args.largest or 'sequence'} {count_text(value)} ..."),
            )
            measured = _measured(answer, gpus, args.measure) if args.measure else None
    except KeyboardInterrupt:
        progress("")
        print(f"memviz: {best.stopped}", file=sys.stderr)
        raise
    finally:
        progress("")
    if args.json:
        print_json({**fit_json(answer), "measured": None if measured is None else _measured_json(measured)})
    elif answer.searched.ways:
        _print(answer, measured)
    if not answer.searched.ways:
        raise UsageError(_all_refused(answer.searched.refused))
    return 0


def _all_refused(reasons: tuple[str, ...]) -> str:
    """A search in which nothing ran says nothing about memory."""
    many = len(reasons)
    ways = "The only way that was tried" if many == 1 else f"None of the {count_text(many)} ways that were tried"
    return f"{ways} could {'not ' if many == 1 else ''}be predicted. {reasons[0]}"


@contextmanager
def _machines(args: argparse.Namespace) -> Iterator[tuple[Predictor, list[Gpu]]]:
    """What predicts, and what is measured on: looked for first, so that nobody waits for a search to hear of none."""
    from memviz.runner.fit.predictions import Predictor

    if args.scheduler is None:
        from memviz.runner.fit.measured_ways import gpus_of_this_machine

        gpus = gpus_of_this_machine() if args.measure else []
        with Predictor(processes=args.processes) as predictor:
            yield predictor, gpus
        return
    from memviz.dask_client import dask_client
    from memviz.runner.fit.far_gpus import gpus_of_workers
    from memviz.runner.fit.far_predictions import FarWorker, predict_alike, threads_of

    with dask_client(args.scheduler) as client:
        gpus = gpus_of_workers(client, args.scheduler) if args.measure else []
        if gpus and not predict_alike(client):
            # Their PyTorch is built for a GPU and ours is not: what they predict would not be kept as ours.
            with Predictor(processes=args.processes) as predictor:
                yield predictor, gpus
            return
        threads = threads_of(client, args.scheduler)
        with Predictor(processes=args.processes or threads, make_worker=lambda: FarWorker(client)) as predictor:
            yield predictor, gpus


def _measured(answer: FitAnswer, gpus: list[Gpu], count: int) -> list[MeasuredWay]:
    from memviz.runner.fit.measured_ways import chosen_ways, measured, of_card
    from memviz.runner.plan import plan_of

    ways = chosen_ways(answer.front(answer.shown), count)
    used = of_card(gpus, plan_of(answer.request).card.name)
    progress(f"measuring {count_text(len(ways))} ways on {count_text(len(used))} GPUs ...")
    return measured(ways, used, lambda done: progress(f"{done} of {len(ways)} ways measured ..."))


def _measured_json(measured: list[MeasuredWay]) -> list[dict[str, Any]]:
    from memviz.runner.fit.fit import way_label
    from memviz.runner.fit.measured_ways import measured_json

    return [measured_json(each, way_label(each.way)) for each in measured]


def _request(args: argparse.Namespace) -> Request:
    from memviz.runner.config_source import with_config
    from memviz.runner.knobs import parse_named
    from memviz.runner.request import DEFAULT_CARD, Request

    request = Request(
        workload=args.workload,
        settings=dict(map(pair, args.set)),
        optimizations=tuple(parse_named(text) for text in args.optimizations),
        card=args.card or DEFAULT_CARD,
        optimizer=args.optimizer,
        parallel=parallel_texts(args),
    )
    return with_config(request)


class _Best:
    """What stands in the line of progress."""

    def __init__(self) -> None:
        self._way: TriedWay | None = None
        self._done = self._of = 0

    def tell(self, way: TriedWay | None, done: int, of: int) -> None:
        self._done, self._of = done, of
        if way is not None and way.fits and (self._way is None or way.cost.rank < self._way.cost.rank):
            self._way = way
        progress(f"{done} of {of} ways predicted, {self._words()} ...")

    @property
    def stopped(self) -> str:
        if not self._done:
            return "Stopped before any way was predicted."
        kept = f"Stopped after {count_text(self._done)} of {count_text(self._of)} ways, {self._words()}."
        return f"{kept} What was predicted is kept: the same command goes on from there."

    def _words(self) -> str:
        from memviz.runner.fit.fit import way_label

        if self._way is None:
            return "none fits yet"
        return f"{way_label(self._way)} fits: {bytes_text(self._way.peak_reserved_bytes)}"


def _print(answer: FitAnswer, measured: list[MeasuredWay] | None = None) -> None:
    from memviz.runner.fit.fit import way_label
    from memviz.runner.plan import plan_of

    plan, chosen = plan_of(answer.request), answer.chosen
    room = f"the {bytes_text(answer.usable_bytes)} that a process gets of {plan.card.name}"
    if chosen is None:
        least = min(answer.searched.ways, key=lambda way: way.peak_reserved_bytes, default=None)
        print(f"Nothing that was tried fits in {room}.")
        if least is not None:
            print(f"The least is {way_label(least)}: {bytes_text(least.peak_reserved_bytes)} reserved.")
        if answer.keep != "nothing":
            print(f"`--keep {_KEEPS[_KEEPS.index(answer.keep) + 1]}` lets more be changed.")
    else:
        close = ", but it is close" if chosen.prediction.fit == "close" else ""
        reserved = bytes_text(chosen.peak_reserved_bytes)
        print(f"{way_label(chosen)} fits in {room}{close}: {reserved} reserved, predicted.")
        print((chosen.prediction.expected_error or {}).get("sentence", ""))
        print(_kept(chosen))
        plain = answer.as_it_is
        if plain is not None and plain.fits and plain is not chosen:
            peak = bytes_text(plain.peak_reserved_bytes)
            print(f"It fits as it is too, at {peak}: this way is cheaper, by its estimate.")
    _print_largest(answer)
    _print_grid(answer)
    print()
    _print_front(answer, plan.unit)
    print(f"\n{printable(_tried_words(answer.searched))}")
    print(f"Seconds are an estimate from the work of a {plan.unit} and the card's data sheet, and no measurement.")
    if measured is not None:
        _print_measured(measured, plan)
    if chosen is not None:
        print(f"\n{printable(chosen.prediction.command)}\n")
        for line in chosen.prediction.code.splitlines():
            print(printable(line))


def _tried_words(searched: Searched) -> str:
    refused = len(searched.refused)
    predicted = f"Predicted {count_text(searched.tried - refused)} of {count_text(searched.of)} ways that go together"
    if not refused:
        return f"{predicted}."
    are = "1 was" if refused == 1 else f"{count_text(refused)} were"
    return f"{predicted}; {are} refused{'' if refused == 1 else ', the first'}: {searched.refused[0]}"


def _kept(way: TriedWay) -> str:
    return {
        "outputs": "Its outputs stay as they are, to the bit or to rounding.",
        "training": "It trains the same model with another optimizer or number format.",
        "nothing": "Its outputs change: `python -m memviz run` says how far.",
    }[way.candidate.keeps]


def _print_largest(answer: FitAnswer) -> None:
    from memviz.headlines.fit import largest_words
    from memviz.runner.fit.fit import largest_json

    largest = largest_json(answer)
    if largest is not None:
        print(printable(largest_words(largest)))


def _print_grid(answer: FitAnswer) -> None:
    if answer.grid is None or not answer.grid.rows:
        return
    print(
        "\nGiB reserved without a limit, by sequence and batch; with ! it does not fit. The last column is the border."
    )
    batches = answer.grid.batches
    rows = [
        [
            count_text(row.sequence),
            *(_cell(row.peaks.get(batch), batch <= row.largest) for batch in batches),
            count_text(row.largest),
        ]
        for row in answer.grid.rows
    ]
    print_table(["sequence", *map(count_text, batches), "largest batch"], rows, left=1)


def _cell(peak: int | None, fits: bool) -> str:
    return "" if peak is None else f"{peak / (1 << 30):.1f}{'' if fits else '!'}"


def _print_front(answer: FitAnswer, unit: str) -> None:
    from memviz.runner.fit.fit import way_label

    front = answer.front(answer.shown)
    rows = [
        [way_label(way), bytes_text(way.peak_reserved_bytes), _seconds(way), _fits(way)] for way in front[:_MOST_ROWS]
    ]
    print_table(["cheapest first", "reserved", f"seconds a {unit}", "fits"], rows, left=1)
    if len(front) > _MOST_ROWS:
        print(f"and {len(front) - _MOST_ROWS} that take less and cost more")


def _print_measured(measured: list[MeasuredWay], plan: Plan) -> None:
    from memviz.runner.fit.fit import way_label

    if not measured:
        print("\nNothing fits as predicted, so nothing was measured.")
        return
    card = plan.card.name
    rows = [
        [
            printable(way_label(each.way)),
            printable(each.gpu),
            "not measured" if each.run is None else bytes_text(each.run.peak_reserved_bytes),
            bytes_text(each.way.prediction.peak_reserved_bytes),
            _measured_seconds(each),
        ]
        for each in measured
    ]
    print()
    heads = ["measured", "on", "reserved", f"predicted for {card}", f"seconds a {plan.unit}"]
    print_table(heads, rows, left=2)
    for each in measured:
        if each.run is None:
            print(f"- {printable(way_label(each.way))}: {printable(each.why)}")
    if not all(each.gpu.startswith(card) for each in measured):
        print(f"Where the GPU is no {card}, it may choose other kernels, and its seconds are its own.")


def _fits(way: TriedWay) -> str:
    return "close" if way.prediction.fit == "close" else "yes" if way.fits else "no"


def _measured_seconds(each: MeasuredWay) -> str:
    seconds = None if each.run is None else each.run.seconds
    return "" if seconds is None else f"{duration_text(round(seconds.median * 1e6))}, {seconds.spread_words}"


def _seconds(way: TriedWay) -> str:
    low, high = way.cost.seconds_low, way.cost.seconds_high
    if low is None or high is None:
        return f"{way.cost.flops / 1e12:,.1f} TFLOP"
    return f"{duration_text(round(low * 1e6))} to {duration_text(round(high * 1e6))}"


COMMAND = Command(_add_arguments, _run)
