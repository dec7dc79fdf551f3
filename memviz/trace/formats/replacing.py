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
    """A file that takes the place of an older one only when it is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as plain:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=plain, mode="wb", filename="", mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield plain
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}).") from None
    finally:
        partial.unlink(missing_ok=True)
