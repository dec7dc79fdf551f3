"""A file that is written whole or not at all."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from memviz.errors import UsageError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of an older one only when it is complete; a link to it stays a link."""
    if os.path.isdir(path) or not path.name:
        raise UsageError(f"{path} is a folder. Name a file in it.")
    try:
        if os.path.exists(path) and not path.is_file():
            # A pipe or a device, such as /dev/null, is written to; nothing may take its place.
            with path.open("wb") as plain, _packed(path, plain) as file:
                yield file
            return
        with _whole(path.resolve() if path.is_symlink() else path) as whole, _packed(path, whole) as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}).{_remedy(path, error)}") from None


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    # Short, so that every name that a file may have can be written.
    partial = path.with_name(f".{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with partial.open("xb") as plain:
            yield plain
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _packed(path: Path, plain: BinaryIO) -> Iterator[BinaryIO]:
    if path.suffix != ".gz":
        yield plain
        return
    with gzip.GzipFile(fileobj=plain, mode="wb", filename="", mtime=0) as packed:
        yield cast(BinaryIO, packed)


def _remedy(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return f" Make the folder {path.parent} first."
    return ""
