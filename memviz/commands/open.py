"""The page, with files open in it from the start."""

from __future__ import annotations

import argparse

from memviz.commands.command import Command, add_file, open_trace


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser, many="*")
    parser.add_argument("--port", type=int, help="where the page answers (default: 7860 or the next that is free)")
    parser.add_argument("--browser", action="store_true", help="open it in a browser")


def _run(args: argparse.Namespace) -> int:
    # Gradio takes seconds to import, and no other command needs it.
    from memviz.ui.app import build_app, launch_options

    page = build_app([open_trace(path) for path in args.files])
    page.launch(server_port=args.port, inbrowser=args.browser, **launch_options())
    return 0


COMMAND = Command("open", "Start the page, with these files open in it.", _add_arguments, _run)
