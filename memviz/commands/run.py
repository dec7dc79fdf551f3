"""A workload with optimizations, predicted for a card or measured on a GPU, in a process of its own."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memviz.commands.command import (
    Command,
    add_host_memory,
    add_json,
    add_knobs,
    add_memory,
    add_optimizer,
    add_parallel,
    add_platform,
    print_json,
    print_table,
    printable,
    request_of,
)
from memviz.commands.terminal import progress
from memviz.errors import UsageError
from memviz.results.run import (
    bill_of_run,
    host_text,
    is_training,
    optimizer_text,
    peak_text,
    rank_class_text,
    reserved_on_card,
    usable_text,
    with_optimizer,
)
from memviz.runner.jobs.limits import most_seconds
from memviz.runner.jobs.worker_process import RunError, RunEvent, Worker, environment_of
from memviz.runner.request import Request, Run, load_of, run_json
from memviz.trace.write import replacing
from memviz.units import bytes_text, count_text, percent_text, work_text


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", nargs="?", help="a name from --list, a config.json, or FILE.py[:function]")
    parser.add_argument("--list", action="store_true", help="list workloads, optimizations and cards")
    add_knobs(parser, "optimization to apply; repeatable")
    parser.add_argument(
        "--on", choices=("auto", "predict", "cuda"), default="auto",
        help="predict, or measure on a GPU (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--card", help="card to predict for, by part of its name")
    add_memory(parser)
    add_host_memory(parser)
    add_optimizer(parser)
    parser.add_argument(
        "--warmup", type=int, default=1, metavar="N", help="steps before the counted ones (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="counted steps (default: %(default)s)")
    parser.add_argument(
        "--load", choices=("host", "device"), default="host",
        help="where weights are cast, quantized or offloaded; with device, the full weights are on the card first and "
        "count (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--conversion", choices=("before", "measured", "on-host"),
        help="old name of --load: measured means device, the others host",
    )  # fmt: skip
    parser.add_argument(
        "--torch", default="", metavar="RELEASE",
        help="predict with the kernels of another PyTorch release, such as 2.6 (default: the installed one)",
    )  # fmt: skip
    add_platform(parser)
    add_parallel(parser)
    parser.add_argument("--keep-output", action="store_true", help="keep the output of the warm-up alive")
    parser.add_argument("--no-numerics", action="store_true", help="do not compare outputs on a reduced model")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="time limit (default: MEMVIZ_MAX_RUN_SECONDS, or 900)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.pickle", help="write the trace")
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    if args.list:
        from memviz.runner.listing import listing

        print_json(listing()) if args.json else _print_listing(listing())
        return 0
    if not args.workload:
        raise UsageError("Name a workload. `python -m memviz run --list` lists them.")
    if args.output and args.output.suffix not in (".pickle", ".pkl", ".gz"):
        raise UsageError(f"{args.output}: the trace is a snapshot. Use a name with .pickle.")
    run, path = run_one(_request(args), keep=args.output, timeout=args.timeout)
    if args.json:
        print_json(run_json(run, path))
    else:
        _print(run, path)
    return 0


def _request(args: argparse.Namespace) -> Request:
    return request_of(
        args,
        on=args.on,
        warmup=args.warmup,
        steps=args.steps,
        load=args.load if args.conversion is None else load_of(args.conversion),
        keep_output=args.keep_output,
        numerics=not args.no_numerics,
        torch=args.torch,
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


def run_one(request: Request, *, keep: Path | None = None, timeout: float | None = None) -> tuple[Run, Path | None]:
    """Return the run, and the path of its trace where that is kept. Progress goes to a terminal only."""
    timeout = timeout or most_seconds()
    with tempfile.TemporaryDirectory(prefix="memviz-") as folder:
        with Worker(Path(folder), timeout=timeout, environment=environment_of(request)) as worker:
            last = _last_event(worker.run([request]))
        if last.kind == "failed" or last.run is None:
            where = f"\n  at {last.where}" if last.where and last.what == "exception" else ""
            last_output = f"\nIts last output:\n{last.where}" if last.where and last.what == "killed" else ""
            raise RunError(f"{last.text}{where}{last_output}")
        if keep is not None and last.file is not None:
            with last.file.open("rb") as written, replacing(keep) as target:
                shutil.copyfileobj(written, target)
        return last.run, keep


def _last_event(events: Iterator[RunEvent]) -> RunEvent:
    last: RunEvent | None = None
    try:
        for event in events:
            last = event
            if event.phase:
                progress(f"{event.phase} ...")
    finally:
        progress("")
    assert last is not None
    return last


def _print(run: Run, path: Path | None) -> None:
    print(
        f"{printable(run.describes)}\n{run.label}: {run.mode} {'for' if run.mode == 'predicted' else 'on'} {run.device}"
    )
    if run.why:
        print(run.why)
    gap = percent_text(run.peak_reserved_bytes - run.peak_allocated_bytes, run.peak_reserved_bytes)
    print(f"\n  weights    {bytes_text(run.weights_bytes)}, {count_text(run.parameters)} parameters")
    print(f"  allocated  {bytes_text(run.peak_allocated_bytes)} {peak_text(run)}")
    without = "without a limit" if reserved_on_card(run) is not None else "at its peak"
    print(f"  reserved   {bytes_text(run.peak_reserved_bytes)} {without}, {gap} of it above the allocated peak")
    if host := host_text(run):
        print(f"  on host    {host}")
    if run.fit is not None:
        print(f"  on card    {bill_of_run(run).line}")
    print(f"  counted    {run.window}")
    for ranks in run.classes:
        print(f"  {rank_class_text(ranks, run.rank)}")
    if is_training(run):
        print(f"  optimizer  {optimizer_text(run)}")
    if run.flops:
        print(f"  work       {work_text(run.flops)}, {bytes_text(run.bytes_moved or 0)} moved")
    if run.seconds:
        print(f"  seconds    {run.seconds.median:.4g}, {run.seconds.spread_words}")
    _print_fit(run)
    for warning in run.warnings:
        print(f"Warning: {printable(warning)}")
    if run.expected_error is not None:
        print(run.expected_error.sentence)
    _print_numerics(run)
    for note in run.notes:
        print(f"- {printable(note)}")
    if path:
        print(f"\nTrace written to {printable(str(path))}; view it with python -m memviz open {printable(str(path))}")


def _print_fit(run: Run) -> None:
    if run.fit is None:
        return

    usable = f"{bytes_text(run.fit.usable_bytes)} usable on {run.device}"
    if run.fit.word == "close":
        print(f"\nIt is close{with_optimizer(run)}: {usable_text(run.fit)} on {run.device}.")
    elif run.fit.fits:
        spare = run.fit.usable_bytes - run.fit.peak_reserved_bytes
        squeezed = reserved_on_card(run)
        less = "" if squeezed is None else f" On the card it frees cached memory and reserves {bytes_text(squeezed)}."
        print(f"\nIt fits in the {usable}{with_optimizer(run)}: {bytes_text(spare)} to spare.{less}")
    else:
        request = f"requesting {bytes_text(run.fit.requested_bytes or 0)} at event {count_text(run.fit.event or 0)}"
        print(f"\nIt does not fit in the {usable}{with_optimizer(run)}: out of memory {request}.")


def _print_numerics(run: Run) -> None:
    if run.numerics is None:
        return
    if "error" in run.numerics:
        print(f"\nThe outputs could not be compared: {printable(str(run.numerics['error']))}")
        return
    print(f"\nOutputs, on {printable(str(run.numerics['on']))}: {printable(str(run.numerics['verdict']['words']))}")
    if caution := run.numerics["verdict"].get("caution"):
        print(printable(str(caution)))
    if run.numerics["verdict"].get("short") == "not exercised":
        return
    differences = [output["difference"] for output in run.numerics.get("outputs", ())]
    finite = [difference for difference in differences if "relative_absmax" in difference]
    if worst := max(finite, key=lambda difference: float(difference["relative_l2"]), default=None):
        absmax, scale, l2 = (float(worst[key]) for key in ("absmax", "relative_absmax", "relative_l2"))
        print(f"Differs by at most {absmax:.1e}, {scale:.1e} of the output's largest value; relative L2 {l2:.1e}.")


def _print_listing(listing: dict[str, Any]) -> None:
    for group in ("workloads", "optimizations"):
        print(group.upper())
        for kind in listing[group]:
            print(f"  {kind['name']}  {kind['title']}. {kind['sentence']}")
            rows = []
            for knob in kind["knobs"]:
                default = json.dumps(knob["default"]) if isinstance(knob["default"], bool) else str(knob["default"])
                choices = f" ({', '.join(map(str, knob['choices']))})" if knob["choices"] else ""
                rows.append([f"    {knob['name']}", default, f"{knob['help']}{choices}"])
            if rows:
                print_table(["    knob", "default", ""], rows, number_columns=0)
        print()
    print("CARDS")
    cards = [
        [f"  {card['name']}", f"{bytes_text(card['memory_bytes'])}{', unproven' if card['unproven'] else ''}"]
        for card in listing["cards"]
    ]
    print_table(["  name", "memory"], cards, number_columns=0)


COMMANDS = {"run": Command(_add_arguments, _run)}
