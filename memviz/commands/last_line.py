"""A line of our own after all that somebody else's program prints, whatever it does with its stdout."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any


class LastLine:
    """From now on stdout remembers whether a line was begun there."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        self._stdout, self._raw = sys.stdout, _Remembering(1, "wb", closefd=False)
        self._stdout.flush()
        wrapped = io.TextIOWrapper(
            io.BufferedWriter(self._raw),
            encoding=self._stdout.encoding,
            errors=self._stdout.errors,
            line_buffering=bool(self._stdout.line_buffering),
            write_through=getattr(self._stdout, "write_through", False),
        )
        sys.stdout = sys.__stdout__ = wrapped  # type: ignore[misc]
        self._wrapped = wrapped

    def write(self, text: str) -> None:
        for stream in (sys.stdout, self._wrapped):
            # The script may have closed it.
            with suppress(ValueError, OSError):
                stream.flush()
        with os.fdopen(self._out, "w", encoding="utf-8") as file:
            file.write(f"{text}\n" if self._raw.at_start_of_line else f"\n{text}\n")


class _Remembering(io.FileIO):
    at_start_of_line = True

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        if count:
            self.at_start_of_line = bytes(data[count - 1 : count]) == b"\n"
        return count
