"""The commands, and the text of `--help` as argparse formats it, without the time to load argparse."""

import os
import sys

VERSION = "0.1.0"
PROGRAM = "python -m memviz"
DESCRIPTION = "Explore PyTorch memory snapshots."
COMMANDS = {
    "summary": "Summarize a snapshot: devices, peaks and notes.",
    "peak": "List what is live at the peak.",
    "findings": "List findings about a snapshot, ranked by bytes.",
    "at": "List what is live after an event or at a time.",
    "diff": "Compare peaks: what holds more, what less.",
    "ranks": "Compare many ranks: the highest peak, outliers and their causes.",
    "history": "Show the peak from commit to commit, from files kept by CI.",
    "replay": "Replay with other allocator settings or on another card.",
    "report": "Write a self-contained HTML page.",
    "export": "Convert a trace: normalized, stripped, as JSON or as CSV.",
    "open": "Start the page with these files open.",
    "run": "Run a model with optimizations: predicted for a card, or measured on a GPU.",
    "fit": "Find the cheapest configuration that makes a model fit on a card, predicted.",
    "reproduce": "Compare four published tables with predictions.",
    "predict": "Predict the GPU memory of your script, without a GPU.",
    "record": "Run your script and record its GPU memory as a snapshot.",
}
"""Each command is a file of this folder that is imported when it is used, so no command pays for another's imports."""
EPILOG = "Every command reads a snapshot of any PyTorch release: a pickle or JSON, plain, gzipped or in a zip."


_INDENT = 4
_COLUMN = 14
"""The column at which descriptions of commands begin."""
_LEAST = 52
"""In narrower terminals argparse breaks the first line too."""


def help_text(columns: int) -> str:
    """Empty where the terminal is too narrow for it."""
    width = columns - 2
    if width < _LEAST:
        return ""
    lines = [
        f"usage: {PROGRAM} [-h] [--version] COMMAND ...",
        "",
        *_wrap(DESCRIPTION, width),
        "",
        "positional arguments:",
    ]
    lines.append("  COMMAND")
    for name, summary in COMMANDS.items():
        lines += _command_rows(name, summary, width)
    lines += ["", "options:", "  -h, --help  show this help message and exit"]
    lines += ["  --version   show program's version number and exit", "", *_wrap(EPILOG, width)]
    return "\n".join(lines) + "\n"


def _command_rows(name: str, text: str, width: int) -> list[str]:
    first, *rest = _wrap(text, width - _COLUMN)
    more = [" " * _COLUMN + line for line in rest]
    head = " " * _INDENT + name
    if len(head) + 2 > _COLUMN:
        return [head, " " * _COLUMN + first, *more]
    return [head.ljust(_COLUMN) + first, *more]


def _wrap(text: str, width: int) -> list[str]:
    """Wrap words to lines of at most `width`; a word may be broken after a hyphen."""
    lines = [""]
    for word in text.split():
        pieces = word.replace("-", "-\0").split("\0")
        for number, piece in enumerate(pieces):
            between = " " if number == 0 and lines[-1] else ""
            if len(lines[-1]) + len(between) + len(piece) <= width:
                lines[-1] += between + piece
            else:
                lines.append(piece)
    return lines


def columns_of_terminal() -> int:
    """Like `shutil.get_terminal_size`, which would import three compressors."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80 if sys.__stdout__ else 80
    except (OSError, ValueError):
        return 80


def print_help() -> bool:
    """Print the help and return True. On False argparse prints it, and reports what went wrong."""
    try:
        text = help_text(columns_of_terminal())
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        return False
    return bool(text)
