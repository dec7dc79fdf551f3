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
FILE is written when the script ends, also after an error, out of memory, Ctrl-C or SIGTERM.
SIGUSR1 writes FILE with .signal1, .signal2 ... in its name while the script continues.
Under torchrun (`torchrun ... -m memviz record ...`) every process writes its own FILE.rank0, FILE.rank1 ...,
or only those of --ranks; a rank that fails always writes its file. `memviz ranks` reads them together.
With --profile, the trace of torch.profiler is written next to FILE when the script ends, also after Ctrl-C or SIGTERM.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "python -m memviz record -o FILE [options] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    parser.epilog = _MORE
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".pickle; add .gz to compress")
    parser.add_argument(
        "--stacks", choices=("python", "all", "none"), default="python",
        help="stack frames: of Python only, also of C++, or none (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-entries", type=positive, metavar="N",
        help="keep the last N events (default: as many as fit in a quarter of free memory, at most 5,000,000)",
    )  # fmt: skip
    parser.add_argument(
        "--profile", action="store_true",
        help="also run torch.profiler and write its trace next to FILE (.profile.json.gz); for a few steps at most",
    )  # fmt: skip
    parser.add_argument(
        "--holders", action="store_true",
        help="find what holds each tensor in every file, not only at memviz.mark and on out of memory",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--ranks", default="all", metavar="LIST",
        help="ranks that write under torchrun: numbers, ranges, first, last, stage or all, such as 0,last",
    )  # fmt: skip
    parser.add_argument(
        "--mesh", default="", metavar="SIZES", help="device mesh, outermost axis first, for the file names: pp=2,dp=4"
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
