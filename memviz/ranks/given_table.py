"""A table of ranks that a visitor brings: read in a process of its own, and looked at before it is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from memviz.errors import TraceError, UsageError
from memviz.mesh import sizes_of
from memviz.ranks.checked_rows import NoRow, checked_rows
from memviz.ranks.table_process import REFUSED
from memviz.ranks.together import Ranks, together

FIRST_BYTES = b"PAR1"
MOST_BYTES = 256 << 20
_SECONDS = 120
_LONGEST_LINE = 1 << 20
_ROOT = Path(__file__).parents[2]
_REMEDY = "Write one with `python -m memviz ranks FOLDER -o ranks.parquet`."


def is_table(path: str | os.PathLike[str]) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(FIRST_BYTES)) == FIRST_BYTES
    except OSError:
        return False


def ranks_of_table(path: Path, name: str) -> Ranks:
    """Raises TraceError with the reason where it is none, is damaged, or takes more than a table may."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TraceError(f"It has more than the {MOST_BYTES:,} bytes that a table of ranks may have.", source=name)
        with tempfile.TemporaryFile() as out:
            _read(path, name, out)
            out.seek(0)
            mesh = json.loads(_line(out))["mesh"]
            rows = checked_rows(map(json.loads, iter(lambda: _line(out), b"")))
        return together(rows, sizes_of(mesh) if mesh else None)
    except NoRow as wrong:
        raise TraceError(f"It is no table of ranks: {wrong}.", source=name, remedy=_REMEDY) from None
    except UsageError as error:
        raise TraceError(str(error), source=name) from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise TraceError("It is no table of ranks.", source=name, remedy=_REMEDY) from None


def _line(file: IO[bytes]) -> bytes:
    """A row is some ten kilobytes. A longer line is cut, and then is no JSON."""
    return file.readline(_LONGEST_LINE)


def _read(path: Path, name: str, out: IO[bytes]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", "-m", "memviz.ranks.table_process", str(path)]
    with tempfile.TemporaryFile() as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": errors}
        try:
            done = subprocess.run(command, env=environment, timeout=_SECONDS, check=False, **streams)  # type: ignore[call-overload]
        except subprocess.TimeoutExpired:
            raise TraceError(f"It took longer than {_SECONDS} seconds to read.", source=name) from None
        if done.returncode == REFUSED:
            # It names the file, which lies somewhere else here than where it came from.
            raise TraceError(_whole(errors).replace(path.name, "It", 1), source=name)
        if done.returncode:
            raise TraceError("It is damaged, or made to take more than a table may.", source=name, remedy=_REMEDY)


def _whole(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_LONGEST_LINE).decode("utf-8", "replace").strip()
