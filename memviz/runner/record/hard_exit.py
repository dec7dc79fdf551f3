"""`os._exit` ends a process without any of what is done at an end; a recording of it must be written before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

EXIT = os._exit
"""The real one, whatever stands in its place just then."""


@contextmanager
def before_hard_exit(call: Callable[[], object]) -> Iterator[None]:
    """Calls it first where this process ends so inside. Processes that it forked end as they always do."""
    process = os.getpid()

    def leave(status: int) -> NoReturn:
        try:
            if os.getpid() == process:
                call()
        finally:
            EXIT(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = EXIT
