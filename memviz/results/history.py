"""Peaks of one program from commit to commit, read from files that CI keeps, and what moved them.

Read are the outputs of `predict --json`, `peak --json` and `diff --json`, and snapshots. One file at a time is held.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memviz.errors import UsageError
from memviz.ranks.gather import reduce_here
from memviz.ranks.places import Place, natural, places_of
from memviz.ranks.row import FailedFile, RankRow, Reduced
from memviz.ranks.summary import REST, NamedDelta, PeakDifference
from memviz.results.headline import Headline, differing_names, shorten, trace_name
from memviz.results.ranks import cause_words
from memviz.results.result import named_fields
from memviz.trace.model import is_reserved_known
from memviz.units import bytes_text, counted, delta_text, limit_bytes, percent_text

_MOST_JSON = 8 << 20
"""Bytes of an output of a command. Larger JSON is read as a snapshot, within its limits."""
_MOST_LOG = 16 << 20
_AT_ONCE = 64
_CAUSES = 8
_LONGEST = 300
_MOST_SIZE = 1 << 62
_COMMIT = re.compile(r"(?<![0-9a-z])[0-9a-f]{7,40}(?![0-9a-z])")
Parts = Mapping[str, int]


@dataclass(frozen=True)
class _Figures:
    peak_bytes: int
    reserved_bytes: int | None
    origin: str
    ran_out: bool = False
    sites: Parts | None = None
    """Bytes at the peak; those that the file leaves out are the rest of `peak_bytes`. None: the file does not say."""
    categories: Parts | None = None
    compared: tuple[int, str, Parts] | None = None
    """The peak that the file compares with, what its rows are, and their differences."""


@dataclass(frozen=True)
class HistoryPoint(PeakDifference):
    name: str
    file: str
    commit: str
    """Hash and title of the commit, where the list of commits has it."""
    origin: str
    """For example "predicted for NVIDIA A10"; empty where the file does not say."""
    peak_bytes: int
    reserved_peak_bytes: int | None
    ran_out: bool
    delta_bytes: int
    """From the point before; 0 for the first."""
    because: tuple[NamedDelta, ...]
    categories: tuple[NamedDelta, ...]
    is_move: bool
    """The peak changed by more than the threshold."""
    is_comparable: bool
    """False where the point before is of another origin."""


@dataclass(frozen=True)
class History:
    points: tuple[HistoryPoint, ...]
    skipped: tuple[FailedFile, ...]

    @property
    def moves(self) -> tuple[HistoryPoint, ...]:
        return tuple(point for point in self.points if point.is_move)

    @property
    def headline(self) -> Headline:
        first, last = self.points[0], self.points[-1]
        if len(self.points) == 1:
            answer = f"Only one file, no history yet: {shorten(first.name)} peaks at {bytes_text(first.peak_bytes)}."
            return Headline(answer, self._skipped_sentence())
        delta = last.peak_bytes - first.peak_bytes
        over = f"Over {counted(len(self.points), 'file')} the peak"
        answer = f"{over} stays at {bytes_text(last.peak_bytes)}."
        if delta:
            way = f"{'rises' if delta > 0 else 'falls'} from {bytes_text(first.peak_bytes)}"
            share = f" ({percent_text(delta, first.peak_bytes)})" if first.peak_bytes else ""
            answer = f"{over} {way} to {bytes_text(last.peak_bytes)}, {delta_text(delta)}{share}."
        sentences = [self._moves_sentence(), self._skipped_sentence()]
        return Headline(answer, " ".join(filter(None, sentences)))

    def _moves_sentence(self) -> str:
        if not self.moves:
            return "No file changed it."
        most = max(self.moves, key=lambda point: abs(point.delta_bytes))
        moved = f"{counted(len(self.moves), 'file')} changed it, most of all"
        return f"{moved} {shorten(most.name)} by {delta_text(most.delta_bytes)}{cause_words(most)}."

    def _skipped_sentence(self) -> str:
        many = len(self.skipped)
        return f"{counted(many, 'file')} {'is' if many == 1 else 'are'} skipped." if many else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "headline": self.headline.as_json(),
            "points": [
                {
                    **named_fields(one, "name", "file", "commit", "origin", "peak_bytes", "reserved_peak_bytes"),
                    **named_fields(one, "ran_out", "delta_bytes", "is_move", "is_comparable"),
                    "sites": [{"site": row.name, "delta_bytes": row.delta_bytes} for row in one.because],
                    "categories": [{"category": row.name, "delta_bytes": row.delta_bytes} for row in one.categories],
                }
                for one in self.points
            ],
            "skipped": [{"file": one.place, "reason": one.reason} for one in self.skipped],
        }


@dataclass(frozen=True)
class HistoryRequest:
    folder: Path
    by_time: bool = False
    """Order files by the time they were written instead of by name."""
    commits: Path | None = None
    """The output of `git log --format="%h %s"`: its order is taken, and the titles."""
    least_move: tuple[float, str] = (0.01, "share")
    """A share of the peak before, or bytes."""


def read_history(wanted: HistoryRequest, progress: Callable[[int, int], None] | None = None) -> History:
    """Read the files of a folder, or of the folders in it.

    Raises:
        UsageError: Not one file has figures.
    """
    if not wanted.folder.is_dir():
        raise UsageError(
            f"{wanted.folder} is not a folder. Name the folder of the files that CI keeps, one per commit."
        )
    places, skipped = list(places_of([str(wanted.folder)])), []
    paths = {place.address for place in places}
    for path in sorted(wanted.folder.iterdir()):
        if path.is_file() and not path.name.startswith(".") and str(path.absolute()) not in paths:
            skipped.append(FailedFile(path.name, "Not a snapshot or JSON file by its name."))
    stems = [trace_name(_relative_address(wanted.folder, place.address)) for place in places]
    names = dict(zip((place.address for place in places), differing_names(stems), strict=True))
    commits = _read_commits(wanted.commits) if wanted.commits else {}
    commit_of = {place.address: _commit_of(names[place.address], commits) for place in places}
    if commits:
        unlisted = [place for place in places if commit_of[place.address] is _NO_COMMIT]
        skipped += [FailedFile(place.address, "No commit of the list is in its name.") for place in unlisted]
        places = [place for place in places if commit_of[place.address] is not _NO_COMMIT]

    def key(place: Place) -> tuple[int, int, Any]:
        path = Path(place.address)
        written = path.stat().st_mtime_ns if wanted.by_time and path.exists() else 0
        return commit_of[place.address].number, written, natural(names[place.address])

    points: list[HistoryPoint] = []
    before: _Figures | None = None
    for done, (place, found) in enumerate(_figures_of(sorted(places, key=key)), start=1):
        if progress is not None:
            progress(done, len(places))
        if isinstance(found, FailedFile):
            skipped.append(found)
            continue
        file, commit = _relative_address(wanted.folder, place.address), commit_of[place.address].text
        points.append(_point(names[place.address], file, commit, before=before, found=found, least=wanted.least_move))
        before = found
    skipped = [replace(one, place=_relative_address(wanted.folder, one.place)) for one in skipped]
    if not points:
        raise UsageError(f"No file of {wanted.folder} has figures. {skipped[0].place}: {skipped[0].reason}")
    return History(tuple(points), tuple(sorted(skipped, key=lambda one: natural(one.place))))


def _relative_address(folder: Path, address: str) -> str:
    return os.path.relpath(address, folder.absolute()) if os.path.isabs(address) else address


def _point(
    name: str, file: str, commit: str, *, before: _Figures | None, found: _Figures, least: tuple[float, str]
) -> HistoryPoint:
    if before is None and found.compared is not None:
        # The baseline of the first comparison is the previous point.
        before = _Figures(found.compared[0], None, "")
    delta = 0 if before is None else found.peak_bytes - before.peak_bytes
    comparable = before is None or not before.origin or not found.origin or before.origin == found.origin
    sites: tuple[NamedDelta, ...] = ()
    categories: tuple[NamedDelta, ...] = ()
    if before is not None and comparable and delta:
        sites = _differences(before, found, "site")
        categories = _differences(before, found, "category")
    most = limit_bytes(least, before.peak_bytes if before else 0)
    return HistoryPoint(
        name=name,
        file=file,
        commit=commit,
        origin=found.origin,
        peak_bytes=found.peak_bytes,
        reserved_peak_bytes=found.reserved_bytes,
        ran_out=found.ran_out,
        delta_bytes=delta,
        because=sites,
        categories=categories,
        is_move=comparable and abs(delta) > most,
        is_comparable=comparable,
    )


def _differences(before: _Figures, found: _Figures, by: str) -> tuple[NamedDelta, ...]:
    """Return the largest differences and the rest, which add up; empty where the files do not say."""
    delta = found.peak_bytes - before.peak_bytes
    if found.compared is not None and found.compared[:2] == (before.peak_bytes, by):
        deltas = dict(found.compared[2])
    else:
        old, new = (before.sites, found.sites) if by == "site" else (before.categories, found.categories)
        if old is None or new is None:
            return ()
        # A row that one file has and the other leaves out may be there in smaller.
        known = (set(old) if sum(new.values()) == found.peak_bytes else set(old) & set(new)) | (
            set(new) if sum(old.values()) == before.peak_bytes else set()
        )
        deltas = {name: new.get(name, 0) - old.get(name, 0) for name in known}
    rows = sorted((-abs(size), name, size) for name, size in deltas.items() if size)[:_CAUSES]
    named = [NamedDelta(name, size) for _, name, size in rows]
    rest = delta - sum(one.delta_bytes for one in named)
    return (*named, *([NamedDelta(REST, rest)] if named and rest else []))


def _figures_of(places: Sequence[Place]) -> Iterator[tuple[Place, _Figures | FailedFile]]:
    for first in range(0, len(places), _AT_ONCE):
        some = places[first : first + _AT_ONCE]
        outputs = {place.address: _read_output(place) for place in some}
        snapshots = [place for place in some if outputs[place.address] is None]
        rows = {row.place: row for row in reduce_here(snapshots)}
        for place in some:
            found = outputs[place.address]
            yield place, _of_snapshot(rows[place.address]) if found is None else found


def _of_snapshot(row: Reduced) -> _Figures | FailedFile:
    if not isinstance(row, RankRow):
        return row
    sites: dict[str, int] = {}
    for site in row.sites:
        sites[site.label] = sites.get(site.label, 0) + site.bytes
    known = is_reserved_known(row.peak_bytes, row.reserved_peak_bytes)
    reserved = row.reserved_peak_bytes if known else None
    categories = {part.kind: part.bytes for part in row.categories}
    return _Figures(row.peak_bytes, reserved, row.origin, bool(row.ran_out_count), sites, categories)


class _NoFiguresError(ValueError):
    """The JSON has no figures for a history."""


def _read_output(place: Place) -> _Figures | FailedFile | None:
    """Read the output of a command; None where the file is to be read as a snapshot."""
    if not place.address.lower().endswith(".json") or place.size > _MOST_JSON:
        return None
    try:
        path = Path(place.address)
        if not path.is_file():
            return None
        with path.open("rb") as file:
            text = file.read(_MOST_JSON).decode("utf-8", "replace")
        value = _parsed(text)
        if isinstance(value, list) or (
            isinstance(value, dict) and {"segments", "device_traces", "traceEvents"} & set(value)
        ):
            return None
        return _figures_of_json(value)
    except _NoFiguresError as error:
        reason = str(error)
    except RecursionError:
        reason = "The JSON is nested too deeply."
    except ValueError:
        reason = "The JSON is not valid."
    except (KeyError, TypeError, AttributeError):
        reason = "It has no output of predict, peak or diff --json."
    return FailedFile(place.address, reason)


def _parsed(text: str) -> Any:
    """Parse JSON, or the last line: a script that is predicted may print before its figures."""
    try:
        return json.loads(text)
    except ValueError:
        lines = text.strip().splitlines()
        if len(lines) < 2:
            raise
        return json.loads(lines[-1])


def _figures_of_json(value: Any) -> _Figures:
    if "peak_requested_bytes" in value:
        return _figures_of_prediction(value)
    if "a" in value and "b" in value:
        a, b = value["a"], value["b"]
        rows = {_delta_name(row, value): int(row["delta_bytes"]) for row in value["rows"]}
        known = b["reserved_is_known"] is True
        compared = _size(a["peak_bytes"]), str(value["by"]), rows
        reserved = _size(b["reserved_peak_bytes"]) if known else None
        return _Figures(_size(b["peak_bytes"]), reserved, "", b.get("ran_out_at_event") is not None, compared=compared)
    if "peak_bytes" in value and "rows" in value:
        parts: dict[str, int] = {}
        for row in value["rows"]:
            parts[_delta_name(row, value)] = parts.get(_delta_name(row, value), 0) + _size(row["bytes"])
        by = value["by"]
        sites, categories = parts if by == "site" else None, parts if by == "category" else None
        return _Figures(_size(value["peak_bytes"]), None, "", sites=sites, categories=categories)
    raise _NoFiguresError("It is JSON, but neither a snapshot nor the output of predict, peak or diff --json.")


def _figures_of_prediction(value: Any) -> _Figures:
    if value["not_known"] is not None or value["stopped"] is not None:
        raise _NoFiguresError("The prediction stopped early, so its peak is not known.")
    parts = {str(name).replace("_", " ")[:_LONGEST]: _size(size) for name, size in value["by_category"].items()}
    parts = {"KV cache" if name == "kv cache" else name: size for name, size in parts.items()}
    peak, reserved = _size(value["peak_requested_bytes"]), _size(value["peak_reserved_bytes"])
    origin = f"predicted for {str(value['card'])[:_LONGEST]}"
    return _Figures(peak, reserved, origin, value["out_of_memory"] > 0, categories=parts)


def _delta_name(row: Any, value: Any) -> str:
    return str(row["site" if value["by"] == "site" else "key"])[:_LONGEST]


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST_SIZE:
        raise _NoFiguresError("A value in it is not a number of bytes.")
    return value


@dataclass(frozen=True)
class _Commit:
    number: int
    """The oldest first."""
    text: str


_NO_COMMIT = _Commit(0, "")
_SHORT = 7
"""Characters by which hashes are matched, as git shortens them."""


def _read_commits(path: Path) -> dict[str, _Commit]:
    """Return commits by their short hashes; `git log` writes the newest first."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_LOG).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).") from None
    found = [line.strip() for line in reversed(lines) if _COMMIT.match(line.strip())]
    if not found:
        raise UsageError(f'{path} lists no commit. Write it with: git log --format="%h %s" > {path.name}')
    return {line[:_SHORT]: _Commit(number, line[:_LONGEST]) for number, line in enumerate(found)}


def _commit_of(name: str, commits: Mapping[str, _Commit]) -> _Commit:
    return next((commits[token[:_SHORT]] for token in _COMMIT.findall(name) if token[:_SHORT] in commits), _NO_COMMIT)
