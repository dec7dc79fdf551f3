"""Measures what a switch of the Run form costs a warm worker, for every preset, in seconds of processor time.

    python -m tests.benchmarks.switches [PRESET ...] [--switch NAME] [--prices] [--write]

Each preset has a process of its own. It predicts the preset, then the preset again, then with one optimization
switched: the first answer has the imports, the others are what a visitor waits for. With `--prices` it predicts every
optimization alone, without traces, as the page's price list does for sizes that are not stored.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from memviz.errors import MemvizError
from memviz.runner.jobs.worker import SearchPredictions, answer, warm_up
from memviz.runner.listing import listing
from memviz.runner.prices import PRESET_OPTIMIZER, price_requests
from memviz.runner.request import Request, knob_text
from tests.benchmarks.readme import README, measured_on, write_table

_SWITCHES = ("checkpointing", "weight_offload", "split_feed_forward", "allocator_settings")
"""The first that a preset can have is switched."""


class _Refused(Exception):
    pass


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.switches", description=__doc__.split("\n\n")[0])
    parser.add_argument("presets", nargs="*")
    parser.add_argument("--switch", default="")
    parser.add_argument("--prices", action="store_true", help="measure the whole price list, too")
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(_seconds(args.presets[0], args.switch, prices=args.prices)))
        return
    rows = []
    for preset in args.presets or [row["name"] for row in listing()["workloads"] if row["name"] != "config.json"]:
        command = [sys.executable, "-m", __spec__.name, preset, "--here", "--switch", args.switch]
        done = subprocess.run([*command, *["--prices"] * args.prices], stdout=subprocess.PIPE, check=True)
        rows.append(json.loads(done.stdout))
        print(_row(rows[-1]), flush=True)
    if args.write:
        head = f"{measured_on()} Seconds of processor time, in one process per preset."
        names = ["preset", "first answer", "the same again", "switch", "figures after", "trace written after"]
        names += ["all prices"] * args.prices
        lines = [head, "", f"| {' | '.join(names)} |", "|---" * len(names) + "|", *map(_row, rows)]
        write_table("switches", "\n".join(lines))


def _row(cells: list[Any]) -> str:
    return f"| {' | '.join(f'{cell:.2f}' if isinstance(cell, float) else str(cell) for cell in cells)} |"


def _seconds(preset: str, switch: str, *, prices: bool) -> list[Any]:
    rows = listing()
    knobs = next(row["knobs"] for row in rows["workloads"] if row["name"] == preset)
    trains = {knob["name"]: knob_text(knob["default"]) for knob in knobs}.get("mode") == "training"
    base = Request(preset, {}, on="predict", optimizer=PRESET_OPTIMIZER if trains else "none", numerics=False)
    asked = {one.name: one.request for one in price_requests(base, rows) if one.request is not None}
    warm_up()
    cells = [preset, _answer(base)[0], _answer(base)[0]]
    for name in [switch] if switch else [one for one in _SWITCHES if one in asked]:
        with suppress(_Refused):
            cells += [name, *_answer(asked[name])]
            break
    if prices:
        begun = time.process_time()
        predictions = SearchPredictions(lambda *_, **__: None)
        for number, request in enumerate(asked.values()):
            # What the model cannot have is refused.
            with suppress(ValueError, MemvizError):
                predictions.run(number, request)
        cells.append(time.process_time() - begun)
    return cells


def _answer(request: Request) -> tuple[float, float]:
    """Return the seconds until the figures are sent, and until the trace is written."""
    sent: dict[str, float] = {}
    begun = time.process_time()

    def send(kind: str, number: int, **values: Any) -> None:
        sent.setdefault(kind, time.process_time() - begun)
        if kind == "failed":
            raise _Refused(values["text"])

    with tempfile.TemporaryDirectory() as folder:
        answer(0, request, Path(folder), send)
    return sent["figures"], sent["done"]


if __name__ == "__main__":
    main()
