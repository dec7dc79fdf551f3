"""The command line in its own process, forked where possible to be as fast as a function call."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests import forked

ROOT = Path(__file__).parents[1]


def memviz(
    *arguments: object,
    folder: Path | None = None,
    of: Callable[[], forked.ForkServer] = forked.light,
    module: str = "memviz",
) -> subprocess.CompletedProcess[str]:
    """`python -m memviz ARGUMENTS`, waited for."""
    # A script that is predicted runs in the very process.
    is_of_runs = of is forked.with_torch and arguments[0] != "predict"
    command = ["-m", *(["tests.forking"] if is_of_runs else []), module, *map(str, arguments)]
    more = {"cwd": folder or ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdin": subprocess.DEVNULL}
    return forked.run(command, of=of, **more)


OF_RUNS = forked.with_torch if forked.CAN_FORK_RUNS else forked.light
"""Fork server for commands that run models, with torch imported where possible."""


def predict(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return memviz("predict", *arguments, folder=folder, of=OF_RUNS)
