"""What may wait until nobody is busy: it would take the processor from what the visitor is waiting for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_QUIET_SECONDS = 0.5
_LONGEST_SECONDS = 10.0
"""On a page of many visitors somebody is always busy."""
_LOOK_SECONDS = 0.1


async def rested(is_busy: Callable[[], bool], is_wanted: Callable[[], bool]) -> bool:
    """Once it has been quiet for a moment, or after the longest time; False as soon as nobody wants it any more."""
    begun = busy = time.monotonic()
    while is_wanted():
        now = time.monotonic()
        if is_busy():
            busy = now
        if now - busy >= _QUIET_SECONDS or now - begun >= _LONGEST_SECONDS:
            return True
        await asyncio.sleep(_LOOK_SECONDS)
    return False
