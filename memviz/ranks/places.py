"""Paths of the ranks' files: a folder, a glob, single files, or a remote address that fsspec knows (`s3://`, `hf://`).

A place is a text that a worker on another machine can open as well. What opens it beyond this machine's own files is
asked for only where an address has `://` in it.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from memviz.errors import TraceError, UsageError, first_line
from memviz.trace.limits import Budget, Limits
from memviz.trace.load import zip_snapshots

MOST = 100_000
"""Files of one question."""
_ENDINGS = (".pickle", ".pkl", ".json", ".pickle.gz", ".pkl.gz", ".json.gz")
_DIGITS = re.compile(r"([0-9]+)")
_OTHER_JSON = ("mesh.json",)
_OF_THIS_MACHINE = ("file://", "local://")
_PROFILE = ".profile.json.gz"
"""The file that `record --profile` writes beside a snapshot repeats the same rank, so it is skipped."""
_TAGS = ("ETag", "etag", "blob_id", "oid", "md5", "checksum", "LastModified", "last_modified", "mtime", "updated")
"""Keys of fsspec's file information that change with the file's content, most reliable first."""


@dataclass(frozen=True)
class Place:
    address: str
    etag: str = ""
    size: int = 0
    """0 where the file system does not say."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.address.replace("\\", "/")).name


def is_remote(address: str) -> bool:
    return "://" in address


def places_of(given: Sequence[str]) -> tuple[Place, ...]:
    """All files of all that is named, each once, by name.

    Raises:
        UsageError: Nothing is there, or more than `MOST` files.
    """
    seen: dict[str, Place] = {}
    for text in given:
        for place in _of(text):
            seen.setdefault(place.address, place)
            if len(seen) > MOST:
                raise UsageError(f"There are more than {MOST:,} files. Name fewer of them.")
    if not seen:
        deeper = f"for deeper ones write {given[0].rstrip('/')}/**/*.pickle."
        remedy = f" Only the folder and its direct subfolders are searched; {deeper}"
        remedy = "" if any(map(glob.has_magic, given)) else remedy
        raise UsageError(f"There is no snapshot in {', '.join(given)}.{remedy}")
    return tuple(sorted(seen.values(), key=lambda place: natural(place.address)))


def _of(text: str) -> Iterator[Place]:
    if not text:
        raise UsageError("A path is empty. Name a folder, a glob or files.")
    if text.startswith(_OF_THIS_MACHINE):
        # As a path, so that a pipe is known for one, and each file is the same one under both names.
        return _local(file_system(text)[1])
    return _remote(text) if is_remote(text) else _local(text)


def natural(text: str) -> tuple[tuple[str, int], ...]:
    """rank2 before rank10."""
    pieces = _DIGITS.split(text)
    numbers = [int(digits[:18]) for digits in pieces[1::2]]
    return tuple(zip(pieces[::2], [*numbers, -1], strict=True))


def _local(text: str) -> Iterator[Place]:
    path = Path(text).expanduser()
    if path.is_dir():
        for file in _snapshots_in(path):
            yield _local_place(file)
    elif path.suffix == _ZIP and path.is_file():
        yield from _zip_places(path)
    elif path.exists() or not glob.has_magic(text):
        # What is named and not there is a row of its own: it stops nobody.
        yield _local_place(path)
    else:
        for name in glob.iglob(str(path), recursive=True):
            if not Path(name).is_dir():
                yield _local_place(Path(name))


_ZIP = ".zip"
_INSIDE = f"{_ZIP}!/"
"""Between an archive and the name of a file in it."""


def _zip_places(path: Path) -> Iterator[Place]:
    with path.open("rb") as file:
        size = path.stat().st_size
        try:
            _, found = zip_snapshots(file, size, Budget(Limits.from_environment(), size))
        except TraceError as error:
            raise error.named(path.name) from None
    for member in found:
        archive = os.path.abspath(path)[: -len(_ZIP)]
        yield Place(f"{archive}{_INSIDE}{member.filename}", f"{member.CRC:x}", member.file_size)


def zip_member(address: str) -> tuple[Path, str] | None:
    """Return the archive and the name of the file in it, where the address is of one."""
    archive, inside, member = address.partition(_INSIDE)
    path = Path(archive + _ZIP)
    return (path, member) if inside and path.is_file() else None


def _snapshots_in(folder: Path) -> list[Path]:
    """Those with a snapshot's ending; of one folder a level below where there are none (`rank_3/snapshot.pickle`)."""
    files = sorted(file for file in folder.iterdir() if not file.is_dir())
    mine = [file for file in files if _is_snapshot(file.name)]
    if mine:
        return mine
    folders = sorted(file for file in folder.iterdir() if file.is_dir() and not file.name.startswith("."))
    closed = {one for one in folders if not os.access(one, os.R_OK | os.X_OK)}
    in_folders = (file for one in folders if one not in closed for file in sorted(one.iterdir()))
    below = [file for file in in_folders if not file.is_dir() and _is_snapshot(file.name)]
    if below:
        # What may not be looked into is a row of its own: a rank may be in there.
        return [*below, *sorted(closed)]
    return [file for file in files if not file.name.startswith(".") and file.suffix != ".parquet"]


def _is_snapshot(name: str) -> bool:
    lower = name.lower()
    if lower.startswith(".") or lower in _OTHER_JSON or lower.endswith(_PROFILE):
        return False
    return lower.endswith(_ENDINGS)


def _local_place(path: Path) -> Place:
    address = os.path.abspath(path)
    try:
        status = os.stat(address)
    except OSError:
        return Place(address)
    return Place(address, f"{status.st_mtime_ns:x}-{status.st_ino:x}", status.st_size)


def _remote(text: str) -> Iterator[Place]:
    system, path = file_system(text)
    try:
        if glob.has_magic(text):
            listed = system.glob(path, detail=True)
        elif system.isdir(path):
            listed = _listed_in(system, path)
        else:
            listed = {path: system.info(path)}
    except FileNotFoundError:
        listed = {path: {"type": "file"}}
    except Exception as error:
        # Whatever a file system of somebody else's raises: it has no words of its own for people.
        raise UsageError(f"{text} cannot be listed ({first_line(error)}).") from None
    for name, row in sorted(listed.items()):
        if row.get("type") != "directory":
            tag = next((str(row[name]) for name in _TAGS if row.get(name)), "")
            yield Place(system.unstrip_protocol(name), tag, int(row.get("size") or 0))


def _listed_in(system: Any, folder: str) -> dict[str, Mapping[str, Any]]:
    """Like `_snapshots_in`: if a folder has no snapshots, list the folders one level below."""
    rows = system.ls(folder, detail=True)
    mine = {row["name"]: row for row in rows if _is_remote_snapshot(row)}
    if mine:
        return mine
    below = (row["name"] for row in rows if row.get("type") == "directory")
    return {row["name"]: row for one in below for row in system.ls(one, detail=True) if _is_remote_snapshot(row)}


def _is_remote_snapshot(row: Mapping[str, Any]) -> bool:
    return row.get("type") != "directory" and _is_snapshot(PurePosixPath(row["name"]).name)


def file_system(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path within it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError(f"{address} needs fsspec: pip install fsspec.") from None
    try:
        system, path = url_to_fs(address)
    except Exception as error:
        # A protocol nobody knows, or one whose package is missing: fsspec's own words say which.
        raise UsageError(f"{address} cannot be opened ({first_line(error)}).") from None
    return system, path
