"""The command line in a process of its own, as cheap as a function call where that can be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests import forked

ROOT = Path(__file__).parents[1]


def memviz(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m memviz ARGUMENTS`, waited for."""
    command = ["-m", "memviz", *map(str, arguments)]
    more = {"cwd": folder or ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdin": subprocess.DEVNULL}
    return forked.run(command, **more)
