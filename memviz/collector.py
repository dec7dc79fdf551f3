"""Python's garbage collector, kept still where it only gets in the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """What is there already is set aside meanwhile, so that whoever collects within looks through what is new alone.

    An import makes many objects that all stay, and each few hundred of them have the collector look through all there
    are: a fifth of the time that the imports of a page or of a run take.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
