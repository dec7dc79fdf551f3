"""A script of one's own, run with PyTorch's history on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from memviz.commands.command import Command, add_script, positive

if TYPE_CHECKING:
    from memviz.runner.measure.accelerator import Accelerator

_MORE = """\
The script runs in this process, as `python SCRIPT ...` would run it, and its exit status is kept.
FILE is written when it ends, also by an error, by running out of memory, by Ctrl-C or by SIGTERM;
SIGUSR1 writes FILE with .signal1, .signal2 ... in its name and lets the script go on.
Under torchrun (`torchrun ... -m memviz record ...`) every process writes its own FILE.rank0, FILE.rank1 ...,
or those that --ranks chooses; a rank that fails writes its own in any case. `memviz ranks` reads them together.
With --profile the trace of torch's profiler is written beside it when the script ends, also by Ctrl-C or SIGTERM.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "python -m memviz record -o FILE [options] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    parser.epilog = _MORE
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".pickle; .gz packs it")
    parser.add_argument(
        "--stacks",
        choices=("python", "all", "none"),
        default="python",
        help="frames of Python, of C++ as well, or no stacks at all (default: %(default)s)",
    )
    parser.add_argument(
        "--max-entries",
        type=positive,
        metavar="N",
        help="events to keep, the last ones (default: what fits a quarter of the free memory, at most 5,000,000)",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="run torch's profiler too, for a few steps at most, and write its trace beside FILE (.profile.json.gz)",
    )
    parser.add_argument(
        "--holders",
        action="store_true",
        help="find what keeps each tensor in every file, not only at memviz.mark and where memory runs out",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it is there already")
    parser.add_argument(
        "--ranks",
        default="all",
        metavar="LIST",
        help="under torchrun, which ranks write: numbers, spans, first, last, stage or all, as in 0,last",
    )
    parser.add_argument(
        "--mesh",
        default="",
        metavar="SIZES",
        help="what the ranks are, the outermost axis first, for their files' names: pp=2,dp=4",
    )
    add_script(parser)


def record(args: argparse.Namespace, accelerator: Accelerator | None = None) -> int:
    from memviz.runner.record.recorded_script import RecordOptions, record_script
    from memviz.runner.record.script import load_module, load_script

    load = load_module if args.module else load_script
    options = RecordOptions(
        args.output,
        args.stacks,
        args.max_entries,
        args.overwrite,
        args.ranks,
        args.mesh,
        args.profile,
        args.holders,
    )
    return record_script(load(args.script, args.arguments), options, accelerator)


COMMANDS = {"record": Command(_add_arguments, record, takes_over=True)}
