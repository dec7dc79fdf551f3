"""The process that reads a visitor's table: `python -m memviz.ranks.table_process FILE`, within bounds of its own.

A table is read by a library in C++, and a visitor may have made it to break that. So it happens where nothing else
is, and what comes out is lines of JSON: what the table says of itself, then one a row, so that whoever reads them
holds no more than one. Why there are none stands on the error stream.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from memviz.errors import MemvizError
from memviz.ranks.checked_rows import MOST_ROWS
from memviz.ranks.parquet import read_table, row_values

REFUSED = 3
MOST_OUT = MOST_UNPACKED = 256 << 20
_MOST_BYTES = 2 << 30
_MOST_SECONDS = 60


def main() -> int:
    _limit()
    try:
        table = read_table(Path(sys.argv[1]), most_rows=MOST_ROWS, most_bytes=MOST_UNPACKED)
    except MemvizError as error:
        sys.stderr.write(str(error))
        return REFUSED
    except MemoryError:
        sys.stderr.write("It takes more memory than a table may.")
        return REFUSED
    sys.stdout.write(json.dumps({"device": table.device, "mesh": table.mesh}) + "\n")
    for row in table.rows:
        sys.stdout.write(json.dumps(row_values(row)) + "\n")
    return 0


def _limit() -> None:
    """Where the system has limits; Windows has none of these."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        for kind, most in (
            (resource.RLIMIT_AS, _MOST_BYTES),
            (resource.RLIMIT_CPU, _MOST_SECONDS),
            (resource.RLIMIT_FSIZE, MOST_OUT),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    sys.exit(main())
