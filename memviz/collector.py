"""Python's garbage collector, kept still where it only gets in the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """What is there already is set aside meanwhile, so that whoever collects within looks through what is new alone.

    An import makes many objects that all stay, and each few hundred of them have the collector look through all there
    are: a fifth of the time that the imports of a page or of a run take. What was set aside before stays so.
    """
    was_on, is_first = gc.isenabled(), gc.get_freeze_count() == 0
    gc.disable()
    if is_first:
        gc.freeze()
    try:
        yield
    finally:
        if is_first:
            gc.unfreeze()
        if was_on:
            gc.enable()


def set_aside() -> None:
    """For a server, once it is built: what it has then stays to its end, and no later collection looks through it.

    Everybody waits for a collection, and of a page's quarter of a million objects one takes a sixth of a second.
    """
    gc.collect()
    gc.freeze()
