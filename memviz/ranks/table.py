"""Rows of ranks as a parquet file, which any table program reads, and back; an interrupted reading continues from it.

One row is one file. Lists (categories, sites, steps, the curve) are lists there too. Every value that is read is
checked, because anybody can upload a table. A library in C++ reads the file, and it may have been made to break that
library or to fill memory. So `python -m memviz.ranks.table FILE` reads an uploaded table within limits and writes lines
of JSON: what the table says of itself, then one line per row. A refusal is written to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from memviz.errors import MemvizError, TraceError, UsageError, first_line
from memviz.mesh import sizes_of
from memviz.ranks.numbers import numbered
from memviz.ranks.places import Place, natural
from memviz.ranks.reduce_rank import MOST_COLUMNS, MOST_PARTS, MOST_RAN_OUT, MOST_SITES
from memviz.ranks.row import Curve, FailedFile, KindBytes, RankRanOut, RankRow, Reduced, SiteBytes, StepPart
from memviz.ranks.summary import RankSummary, summarize_ranks
from memviz.trace.write import replacing

ENDING = ".parquet"
_VERSION, _READ = "2", ("1", "2")
_KEY, _DEVICE, _MESH = b"memviz.ranks", b"memviz.device", b"memviz.mesh"
_REMEDY = "pip install pyarrow"
_LISTS: dict[str, tuple[type[Any], int]] = {
    "categories": (KindBytes, 64),
    "sites": (SiteBytes, MOST_SITES),
    "ran_out": (RankRanOut, MOST_RAN_OUT),
    "parts": (StepPart, MOST_PARTS),
}
"""Columns that hold rows of their own, and how many of them at most."""
_BOUNDS = {
    "said_rank": (0, 10**9),
    "columns": (0, MOST_COLUMNS),
    "number": (-1, 10**9),
    **dict.fromkeys(("peak_event", "event", "first_event", "last_event"), (-1, 1 << 60)),
}
"""Least and most of the numbers that are not bytes."""
_LARGEST = 1 << 60
_LONGEST = 4_096
_AT_ONCE = 4096
"""Rows of one group within the file: what a reader needs at a time."""


@cache
def _arrow() -> Any:
    """pyarrow with its parquet, loaded where a file is asked for only."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"A file of rows needs pyarrow, which is not installed here: {_REMEDY}.") from None
    return pyarrow


def check_output(path: Path) -> None:
    """Now, and not after an hour of reading."""
    _arrow()
    if path.suffix != ENDING:
        raise UsageError(f"{path} is not a table name. Rows are written as {ENDING}, such as ranks{ENDING}.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "it is a folder" if path.is_dir() else "its parent is not a folder"
        raise UsageError(f"{path} cannot be written: {what}.")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: no permission. Name a file in a folder of your own.")


@dataclass(frozen=True)
class RankTable:
    rows: list[Reduced]
    device: str | None = None
    """The one that was asked for."""
    mesh: str = ""
    """Sizes of the axes, as in 'pp=2,dp=4': what stood in a `mesh.json` beside the files."""


def write_rows(path: Path, rows: Sequence[Reduced], device: str | None = None, mesh: str = "") -> None:
    """Whole or not at all; what was there before is replaced."""
    arrow = _arrow()
    ranks, _ = numbered(rows)
    number_of = {rank.row.place: rank.number for rank in ranks}
    table = arrow.Table.from_pylist(
        [_flat(row, number_of.get(row.place)) for row in rows], schema=_schema(device, mesh)
    )
    with replacing(path) as file:
        arrow.parquet.write_table(table, file, compression="zstd", row_group_size=_AT_ONCE)


def read_table(path: Path, *, most_rows: int | None = None, most_bytes: int | None = None) -> RankTable:
    """Everything in it; `most_bytes` is what it says to take once it is unpacked.

    Raises:
        UsageError: It is no such table, or one of another version.
    """
    arrow = _arrow()
    try:
        file = arrow.parquet.ParquetFile(path)
        said = file.schema_arrow.metadata or {}
        if said.get(_KEY, b"").decode("utf-8", "replace") not in _READ:
            raise UsageError(f"{path.name} is a table, but not of ranks as this version of memviz writes them.")
        if most_rows is not None and file.metadata.num_rows > most_rows:
            raise UsageError(f"{path.name} has {file.metadata.num_rows:,} rows, more than {most_rows:,}.")
        meta = file.metadata
        unpacked = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
        if most_bytes is not None and unpacked > most_bytes:
            raise UsageError(f"{path.name} unpacks to {unpacked:,} bytes, more than {most_bytes:,}.")
        rows = [_checked_row(values) for batch in file.iter_batches(_AT_ONCE) for values in batch.to_pylist()]
    except FileNotFoundError:
        raise UsageError(f"{path.name}: The file does not exist.") from None
    except InvalidRow as wrong:
        raise UsageError(f"{path.name} is not a table of ranks: {wrong}.") from None
    except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path.name} is damaged, or no parquet file ({first_line(error)}).") from None
    device = said[_DEVICE].decode("utf-8", "replace") if _DEVICE in said else None
    return RankTable(rows, device, said.get(_MESH, b"").decode("utf-8", "replace"))


def row_values(row: Reduced) -> dict[str, Any]:
    """Return the row as plain values by the table's columns."""
    return {"failed": None, **_flat(row, None)}


_KINDS: tuple[type[Any], ...] = (RankRow, KindBytes, SiteBytes, RankRanOut, StepPart)
_SCALARS: dict[type[Any], dict[str, str]] = {
    kind: {field.name: str(field.type) for field in fields(kind) if field.type in ("int", "int | None", "str")}
    for kind in _KINDS
}
"""Names of a row's plain fields, with their types."""


def _schema(device: str | None, mesh: str) -> Any:
    arrow = _arrow()

    def columns(kind: type[Any]) -> list[Any]:
        types = {name: arrow.string() if type == "str" else arrow.int64() for name, type in _SCALARS[kind].items()}
        return [arrow.field(name, type) for name, type in types.items()]

    whole = arrow.int64()
    plain = [arrow.field("rank", whole), *columns(RankRow), arrow.field("failed", arrow.string())]
    lists = [arrow.field(name, arrow.list_(arrow.struct(columns(kind)))) for name, (kind, _) in _LISTS.items()]
    metadata = {_KEY: _VERSION.encode(), **({} if device is None else {_DEVICE: device.encode()})}
    metadata |= {_MESH: mesh.encode()} if mesh else {}
    curve = [arrow.field("columns", whole), *lists, arrow.field("live", arrow.list_(whole))]
    return arrow.schema([*plain, *curve], metadata)


def _flat(row: Reduced, rank: int | None) -> dict[str, Any]:
    # A table is written again and again while it grows, and `asdict` copies every number: eight times as long.
    values = dict(vars(row))
    if isinstance(row, FailedFile):
        return {**values, "failed": values.pop("reason"), "rank": rank}
    curve = values.pop("curve")
    values |= {"rank": rank, "parts": curve.parts, "columns": curve.columns, "live": list(curve.live)}
    return values | {name: [dict(vars(one)) for one in values[name]] for name in _LISTS}


class InvalidRow(ValueError):
    """With what is wrong, in words."""


def _checked_row(values: Mapping[str, Any]) -> Reduced:
    if values["failed"] is not None:
        place, reason, etag = (_text(values[name]) for name in ("place", "failed", "etag"))
        return FailedFile(place, reason, etag, _whole(values["file_bytes"]))
    for name, (_, most) in _LISTS.items():
        if type(values[name]) is not list or len(values[name]) > most:
            raise InvalidRow(f"a rank has more {name} than memviz writes")
    lists: dict[str, Any] = {
        name: tuple(_part(kind, part) for part in values[name]) for name, (kind, _) in _LISTS.items()
    }
    parts, columns, live = lists.pop("parts"), _whole(values["columns"], "columns"), values["live"]
    if type(live) is not list or not parts or not columns or len(live) != columns * len(parts):
        raise InvalidRow("a rank's curve is not as long as its steps say")
    if set(map(type, live)) != {int} or min(live) < 0:
        raise InvalidRow("it has a number that memviz does not write")
    row = RankRow(**_checked_values(RankRow, values), **lists, curve=Curve(parts, columns, tuple(live)))
    sums = (sum(one.bytes for one in row.categories), sum(one.bytes for one in row.sites) + row.other_sites_bytes)
    if any(total != row.peak_bytes for total in (*sums, max(live))):
        raise InvalidRow("a rank's bytes do not add up to its peak")
    return row


def _part(kind: type[Any], values: Mapping[str, Any]) -> Any:
    if kind is KindBytes:
        # Tables of version 1 do not say what is only probable.
        values = {"probable_bytes": 0, **values}
    part = kind(**_checked_values(kind, values))
    if kind is KindBytes and part.probable_bytes > part.bytes:
        raise InvalidRow("it has a number that memviz does not write")
    return part


def _checked_values(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, type_name in _SCALARS[kind].items():
        value = values[name]
        if value is None and type_name == "int | None":
            made[name] = None
        else:
            made[name] = _text(value) if type_name == "str" else _whole(value, name)
    return made


def _whole(value: Any, name: str = "") -> int:
    least, most = _BOUNDS.get(name, (0, _LARGEST))
    if type(value) is not int or not least <= value <= most:
        raise InvalidRow("it has a number that memviz does not write")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _LONGEST:
        raise InvalidRow("it has a text that memviz does not write")
    return value


_LEAST_NEW = 64
_SHARE_NEW = 8
"""The whole file is written anew when an eighth more has come: in all that is some times the file, however long."""


class RowFile:
    def __init__(self, path: Path, device: str | None = None, mesh: str = "") -> None:
        """Raises UsageError where nothing can be written there, or something else lies there."""
        check_output(path)
        self._path = path
        self._device = device
        self._mesh = mesh
        self._rows: list[Reduced] = []
        self._saved = 0
        """Rows of this question that the file holds."""
        self._before: dict[str, RankRow] = {}
        if path.exists() and (table := read_table(path)).device == device:
            self._before = {row.place: row for row in table.rows if isinstance(row, RankRow)}

    def known(self, place: Place) -> RankRow | None:
        """Read before, and the same file since. A file that failed is tried again."""
        row = self._before.get(place.address)
        is_same = row is not None and bool(place.etag) and (row.etag, row.file_bytes) == (place.etag, place.size)
        if row is None or not is_same:
            return None
        self._saved += 1
        return row

    def keeping(self, rows: Iterable[Reduced]) -> Iterator[Reduced]:
        """Passes them on. They are written now and then, and at the end, whatever ends it.

        Nothing is written that has fewer of them than the file has already: whoever is stopped again loses no row.
        """
        try:
            for row in rows:
                self._rows.append(row)
                if len(self._rows) >= self._saved + max(_LEAST_NEW, self._saved // _SHARE_NEW):
                    self._save()
                yield row
        except BaseException:
            if len(self._rows) > self._saved:
                self._save()
            raise
        self._save()

    def _save(self) -> None:
        # In the order of the places, whichever was read first.
        in_order = sorted(self._rows, key=lambda row: natural(row.place))
        write_rows(self._path, in_order, self._device, self._mesh)
        self._saved = len(self._rows)


MOST_ROWS = 16_384
FIRST_BYTES = b"PAR1"
MOST_BYTES = MOST_OUT = MOST_UNPACKED = 256 << 20
_MOST_MEMORY = 2 << 30
_MOST_CPU_SECONDS, _MOST_SECONDS = 60, 120
_LONGEST_LINE = 1 << 20
_REFUSED = 3
_HOW_TO_WRITE = "Write one with `python -m memviz ranks FOLDER -o ranks.parquet`."


def checked_rows(values: Iterable[Any]) -> list[Reduced]:
    """Check that every row of an uploaded table is consistent, as written rows are, and return the rows.

    Raises:
        InvalidRow: It is no such table.
    """
    try:
        rows = [_checked_row(row) for row in islice(values, MOST_ROWS + 1)]
    except (KeyError, TypeError, AttributeError):
        raise InvalidRow("its rows are not those of ranks") from None
    if len(rows) > MOST_ROWS:
        raise InvalidRow(f"it has more than {MOST_ROWS:,} rows")
    return rows


def main() -> int:
    _limit()
    try:
        table = read_table(Path(sys.argv[1]), most_rows=MOST_ROWS, most_bytes=MOST_UNPACKED)
    except MemvizError as error:
        sys.stderr.write(str(error))
        return _REFUSED
    except MemoryError:
        sys.stderr.write("It needs more memory than a table may.")
        return _REFUSED
    sys.stdout.write(json.dumps({"device": table.device, "mesh": table.mesh}) + "\n")
    for row in table.rows:
        sys.stdout.write(json.dumps(row_values(row)) + "\n")
    return 0


def _limit() -> None:
    """Set resource limits where the system has them; Windows has none."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        for kind, most in (
            (resource.RLIMIT_AS, _MOST_MEMORY),
            (resource.RLIMIT_CPU, _MOST_CPU_SECONDS),
            (resource.RLIMIT_FSIZE, MOST_OUT),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (most, most))


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
    except InvalidRow as wrong:
        raise TraceError(f"It is not a table of ranks: {wrong}.", source=name, remedy=_HOW_TO_WRITE) from None
    except UsageError as error:
        raise TraceError(str(error), source=name) from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise TraceError("It is not a table of ranks.", source=name, remedy=_HOW_TO_WRITE) from None


def _line(file: IO[bytes]) -> bytes:
    """A row is some ten kilobytes. A longer line is cut, and then is no JSON."""
    return file.readline(_LONGEST_LINE)


def _read_in_process(path: Path, name: str, out: IO[bytes]) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-W", "ignore", "-m", "memviz.ranks.table", str(path)]
    with tempfile.TemporaryFile() as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": errors}
        try:
            done = subprocess.run(command, env=environment, timeout=_MOST_SECONDS, check=False, **streams)  # type: ignore[call-overload]
        except subprocess.TimeoutExpired:
            raise TraceError(f"It took longer than {_MOST_SECONDS} seconds to read.", source=name) from None
        if done.returncode == _REFUSED:
            # It names the file, which lies somewhere else here than where it came from.
            errors.seek(0)
            reason = errors.read(_LONGEST_LINE).decode("utf-8", "replace").strip()
            raise TraceError(reason.replace(path.name, "It", 1), source=name)
        if done.returncode:
            raise TraceError(
                "It is damaged, or built to exceed the memory of a table.", source=name, remedy=_HOW_TO_WRITE
            )


if __name__ == "__main__":
    sys.exit(main())
