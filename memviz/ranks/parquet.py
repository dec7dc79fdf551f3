"""Rows as a parquet file, which any table program reads, and back; an interrupted reading continues from it.

One row is one file. Lists (categories, sites, steps, the curve) are lists there too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from memviz.errors import UsageError, first_line
from memviz.ranks.numbers import numbered
from memviz.ranks.places import Place, natural
from memviz.ranks.row import Curve, FailedFile, KindBytes, RankRanOut, RankRow, Reduced, SiteBytes, StepPart
from memviz.trace.write import replacing

ENDING = ".parquet"
_VERSION, _READ = "2", ("1", "2")
_KEY, _DEVICE, _MESH = b"memviz.ranks", b"memviz.device", b"memviz.mesh"
_REMEDY = "pip install pyarrow"
_LISTS = ("categories", "sites", "ran_out")
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
        raise UsageError(f"{path} has no name of a table. Rows are written as {ENDING}, such as ranks{ENDING}.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written: {'it' if path.is_dir() else 'its place'} is {_what(path)}.")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: this user may not. Name a file in a folder of your own.")


def _what(path: Path) -> str:
    return "a folder" if path.is_dir() else "no folder"


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
        rows = [_row(values) for batch in file.iter_batches(_AT_ONCE) for values in batch.to_pylist()]
    except FileNotFoundError:
        raise UsageError(f"{path.name}: There is no such file.") from None
    except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path.name} is damaged, or no parquet file ({first_line(error)}).") from None
    device = said[_DEVICE].decode("utf-8", "replace") if _DEVICE in said else None
    return RankTable(rows, device, said.get(_MESH, b"").decode("utf-8", "replace"))


def row_values(row: Reduced) -> dict[str, Any]:
    """Return the row as plain values by the table's columns."""
    values = {name: None for name in ("failed", "rank")}
    return {**values, **_flat(row, None)}


def _schema(device: str | None, mesh: str) -> Any:
    arrow = _arrow()
    text, whole = arrow.string(), arrow.int64()
    lists = {
        "categories": {"kind": text, "bytes": whole, "probable_bytes": whole},
        "sites": {"key": text, "label": text, "bytes": whole},
        "ran_out": {
            "event": whole,
            "requested_bytes": whole,
            "live_bytes": whole,
            "reserved_bytes": whole,
            "site": text,
        },
        "parts": {"number": whole, "name": text, "first_event": whole, "last_event": whole},
    }
    texts = ("place", "etag", "said_mesh", "origin", "device", "history", "failed")
    plain = [field.name for field in fields(RankRow) if field.name not in ("curve", *lists)]
    columns = [arrow.field(name, text if name in texts else whole) for name in ("rank", *plain, "failed", "columns")]
    columns += [arrow.field(name, arrow.list_(arrow.struct(list(parts.items())))) for name, parts in lists.items()]
    metadata = {_KEY: _VERSION.encode(), **({} if device is None else {_DEVICE: device.encode()})}
    metadata |= {_MESH: mesh.encode()} if mesh else {}
    return arrow.schema([*columns, arrow.field("live", arrow.list_(whole))], metadata)


def _flat(row: Reduced, rank: int | None) -> dict[str, Any]:
    # A table is written again and again while it grows, and `asdict` copies every number: eight times as long.
    values = dict(vars(row))
    if isinstance(row, FailedFile):
        return {**values, "failed": values.pop("reason"), "rank": rank}
    values |= {name: [dict(vars(one)) for one in values[name]] for name in _LISTS}
    curve = values.pop("curve")
    parts = [dict(vars(part)) for part in curve.parts]
    return {**values, "rank": rank, "parts": parts, "columns": curve.columns, "live": list(curve.live)}


def _row(values: dict[str, Any]) -> Reduced:
    if values["failed"] is not None:
        return FailedFile(values["place"], values["failed"], values["etag"], values["file_bytes"])
    parts = tuple(StepPart(**part) for part in values["parts"])
    made: dict[str, Any] = {
        "categories": tuple(KindBytes(**part) for part in values["categories"]),
        "sites": tuple(SiteBytes(**site) for site in values["sites"]),
        "ran_out": tuple(RankRanOut(**one) for one in values["ran_out"]),
        "curve": Curve(parts, values["columns"], tuple(values["live"])),
    }
    plain = {field.name: values[field.name] for field in fields(RankRow) if field.name not in made}
    return RankRow(**plain, **made)


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
        self._before = _usable(path, device)

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


def _usable(path: Path, device: str | None) -> dict[str, RankRow]:
    if not path.exists():
        return {}
    table = read_table(path)
    return {row.place: row for row in table.rows if isinstance(row, RankRow)} if table.device == device else {}
