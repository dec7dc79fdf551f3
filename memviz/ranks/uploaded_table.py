"""A table of ranks that a visitor uploads: read in a process of its own, and every value checked.

A library in C++ reads the table, and a visitor may have made it to break that library. So `python -m
memviz.ranks.uploaded_table FILE` reads it within limits and writes lines of JSON: what the table says of itself, then
one line per row. A refusal is written to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

from memviz.errors import MemvizError, TraceError, UsageError
from memviz.mesh import sizes_of
from memviz.ranks.parquet import read_table, row_values
from memviz.ranks.reduce_rank import MOST_COLUMNS, MOST_PARTS, MOST_SITES
from memviz.ranks.row import Curve, FailedFile, KindBytes, RankRanOut, RankRow, Reduced, SiteBytes, StepPart
from memviz.ranks.summary import RankSummary, summarize_ranks

MOST_ROWS = 16_384
_LARGEST = 1 << 60
_LONGEST = 4_096
_MOST_KINDS, _MOST_RAN_OUT, _MOST_NUMBER = 64, 16, 10**9


class NoRow(ValueError):
    """With what is wrong, in words."""


def checked_rows(values: Iterable[Any]) -> list[Reduced]:
    """Check that every row of an uploaded table is consistent, as written rows are, and return the rows.

    Raises:
        NoRow: It is no such table.
    """
    try:
        rows = [_row(row) for row in islice(values, MOST_ROWS + 1)]
    except (KeyError, TypeError, AttributeError):
        raise NoRow("its rows are not those of ranks") from None
    if len(rows) > MOST_ROWS:
        raise NoRow(f"it has more than {MOST_ROWS:,} rows")
    return rows


def _row(row: dict[str, Any]) -> Reduced:
    if row["failed"] is not None:
        return FailedFile(_text(row["place"]), _text(row["failed"]), _text(row["etag"]), _whole(row["file_bytes"]))
    made = RankRow(
        place=_text(row["place"]),
        etag=_text(row["etag"]),
        file_bytes=_whole(row["file_bytes"]),
        said_rank=None if row["said_rank"] is None else _whole(row["said_rank"], _MOST_NUMBER),
        said_mesh=_text(row["said_mesh"]),
        origin=_text(row["origin"]),
        device=_text(row["device"]),
        device_count=_whole(row["device_count"]),
        event_count=_whole(row["event_count"]),
        history=_text(row["history"]),
        start_bytes=_whole(row["start_bytes"]),
        peak_bytes=_whole(row["peak_bytes"]),
        peak_event=_whole(row["peak_event"], least=-1),
        end_bytes=_whole(row["end_bytes"]),
        reserved_peak_bytes=_whole(row["reserved_peak_bytes"]),
        reserved_end_bytes=_whole(row["reserved_end_bytes"]),
        categories=tuple(map(_category, _few(row, "categories"))),
        sites=tuple(
            SiteBytes(_text(one["key"]), _text(one["label"]), _whole(one["bytes"])) for one in _few(row, "sites")
        ),
        other_sites_bytes=_whole(row["other_sites_bytes"]),
        ran_out=tuple(map(_ran_out, _few(row, "ran_out"))),
        ran_out_count=_whole(row["ran_out_count"]),
        curve=_curve(row),
    )
    return _adding_up(made)


_MOST_OF = {"categories": _MOST_KINDS, "sites": MOST_SITES, "ran_out": _MOST_RAN_OUT, "parts": MOST_PARTS}


def _few(row: dict[str, Any], name: str) -> Sequence[dict[str, Any]]:
    values = row[name]
    if type(values) is not list or len(values) > _MOST_OF[name]:
        raise NoRow(f"a rank has more {name} than are written")
    return values


def _category(one: dict[str, Any]) -> KindBytes:
    size = _whole(one["bytes"])
    return KindBytes(_text(one["kind"]), size, _whole(one["probable_bytes"], size))


def _ran_out(one: dict[str, Any]) -> RankRanOut:
    return RankRanOut(
        event=_whole(one["event"], least=-1),
        requested_bytes=_whole(one["requested_bytes"]),
        live_bytes=_whole(one["live_bytes"]),
        reserved_bytes=_whole(one["reserved_bytes"]),
        site=_text(one["site"]),
    )


def _curve(row: dict[str, Any]) -> Curve:
    parts = tuple(
        StepPart(
            _whole(part["number"], _MOST_NUMBER, least=-1), _text(part["name"]),
            _whole(part["first_event"], least=-1), _whole(part["last_event"], least=-1),
        )
        for part in _few(row, "parts")
    )  # fmt: skip
    columns, live = _whole(row["columns"], MOST_COLUMNS), row["live"]
    if type(live) is not list or not parts or not columns or len(live) != columns * len(parts):
        raise NoRow("a rank's curve is not as long as its steps say")
    return Curve(parts, columns, tuple(map(_whole, live)))


def _adding_up(row: RankRow) -> RankRow:
    sums = (sum(one.bytes for one in row.categories), sum(one.bytes for one in row.sites) + row.other_sites_bytes)
    if any(total != row.peak_bytes for total in sums) or max(row.curve.live) != row.peak_bytes:
        raise NoRow("a rank's bytes do not add up to its peak")
    return row


def _whole(value: Any, most: int = _LARGEST, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise NoRow("a number in it is none that is written")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _LONGEST:
        raise NoRow("a text in it is none that is written")
    return value


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
    """Set resource limits where the system has them; Windows has none."""
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


def ranks_of_table(path: Path, name: str) -> RankSummary:
    """Raises TraceError with the reason where it is none, is damaged, or takes more than a table may."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TraceError(f"It has more than the {MOST_BYTES:,} bytes that a table of ranks may have.", source=name)
        with tempfile.TemporaryFile() as out:
            _read_in_process(path, name, out)
            out.seek(0)
            mesh = json.loads(_line(out))["mesh"]
            rows = checked_rows(map(json.loads, iter(lambda: _line(out), b"")))
        return summarize_ranks(rows, sizes_of(mesh) if mesh else None)
    except NoRow as wrong:
        raise TraceError(f"It is no table of ranks: {wrong}.", source=name, remedy=_REMEDY) from None
    except UsageError as error:
        raise TraceError(str(error), source=name) from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise TraceError("It is no table of ranks.", source=name, remedy=_REMEDY) from None


def _line(file: IO[bytes]) -> bytes:
    """A row is some ten kilobytes. A longer line is cut, and then is no JSON."""
    return file.readline(_LONGEST_LINE)


def _read_in_process(path: Path, name: str, out: IO[bytes]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", "-m", "memviz.ranks.uploaded_table", str(path)]
    with tempfile.TemporaryFile() as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": errors}
        try:
            done = subprocess.run(command, env=environment, timeout=_SECONDS, check=False, **streams)  # type: ignore[call-overload]
        except subprocess.TimeoutExpired:
            raise TraceError(f"It took longer than {_SECONDS} seconds to read.", source=name) from None
        if done.returncode == REFUSED:
            # It names the file, which lies somewhere else here than where it came from.
            raise TraceError(_text_of_file(errors).replace(path.name, "It", 1), source=name)
        if done.returncode:
            raise TraceError("It is damaged, or made to take more than a table may.", source=name, remedy=_REMEDY)


def _text_of_file(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_LONGEST_LINE).decode("utf-8", "replace").strip()
