"""The page, with files open in it from the start."""

from __future__ import annotations

import argparse
from pathlib import Path

from memviz.commands.command import Command, add_file, open_trace
from memviz.memory import freeze_startup_objects, without_collection
from memviz.ranks.gather import Gathering, gather_ranks

_MOST_PORTS = 1 << 16


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= _MOST_PORTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use 0 to {_MOST_PORTS - 1}")
    return int(text)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser, many="*")
    parser.add_argument(
        "--port", type=_port, metavar="PORT", help="port of the page (default: 7860 or the next free one)"
    )
    parser.add_argument(
        "--program", type=Path, action="append", default=[], metavar="FILE.py",
        help="Python file for the Run tab: each of its functions returns a model and its inputs; everyone who can open "
        "the page can run them",
    )  # fmt: skip
    parser.add_argument(
        "--ranks", metavar="PLACE", help="show many ranks: a folder, a glob, or a table from `ranks -o`"
    )
    parser.add_argument("--browser", action="store_true", help="open the page in a browser")


def _run(args: argparse.Namespace) -> int:
    from memviz.runner.own_source import functions_of

    with without_collection():
        # Gradio takes seconds to import, and no other command needs it.
        from memviz.ui.app import build_app, launch_options

    for path in args.program:
        # What cannot be offered is said before the page starts.
        functions_of(str(path))
    job = None if args.ranks is None else gather_ranks(Gathering((args.ranks,)))
    traces = [open_trace(path) for path in args.files]
    with without_collection():
        page = build_app(traces, [path.resolve() for path in args.program], job)
    freeze_startup_objects()
    page.launch(server_port=args.port, inbrowser=args.browser, **launch_options())
    return 0


COMMANDS = {"open": Command(_add_arguments, _run)}
