"""What `--help` says, word for word as argparse would say it, without argparse: it takes longer to load than Python."""

import os
import sys

from memviz.commands.listed import COMMANDS, DESCRIPTION, EPILOG, PROGRAM

_INDENT = 4
_COLUMN = 14
"""Where the words about a command begin."""
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
        *_filled(DESCRIPTION, width),
        "",
        "positional arguments:",
    ]
    lines.append("  COMMAND")
    for name, words in COMMANDS.items():
        lines += _row(name, words, width)
    lines += ["", "options:", "  -h, --help  show this help message and exit"]
    lines += ["  --version   show program's version number and exit", "", *_filled(EPILOG, width)]
    return "\n".join(lines) + "\n"


def _row(name: str, words: str, width: int) -> list[str]:
    first, *rest = _filled(words, width - _COLUMN)
    more = [" " * _COLUMN + line for line in rest]
    head = " " * _INDENT + name
    if len(head) + 2 > _COLUMN:
        return [head, " " * _COLUMN + first, *more]
    return [head.ljust(_COLUMN) + first, *more]


def _filled(words: str, width: int) -> list[str]:
    """As many words a line as go in; a word may be broken after a hyphen."""
    lines = [""]
    for word in words.split():
        pieces = word.replace("-", "-\0").split("\0")
        for number, piece in enumerate(pieces):
            between = " " if number == 0 and lines[-1] else ""
            if len(lines[-1]) + len(between) + len(piece) <= width:
                lines[-1] += between + piece
            else:
                lines.append(piece)
    return lines


def columns_of_terminal() -> int:
    """As `shutil.get_terminal_size` finds it, which would load three compressors."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80 if sys.__stdout__ else 80
    except (OSError, ValueError):
        return 80


def shown() -> bool:
    """Whether it is written. Where anything stands in the way, argparse says it, and what went wrong."""
    try:
        text = help_text(columns_of_terminal())
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        return False
    return bool(text)
