"""Rows that are kept as they come, so that whoever was interrupted goes on where they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from memviz.ranks.parquet import check_output, read_table, write_rows
from memviz.ranks.places import Place, natural
from memviz.ranks.row import RankRow, Reduced

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
