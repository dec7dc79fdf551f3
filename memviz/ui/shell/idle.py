"""A page that nobody asks rests.

Gradio's queue looks for questions a thousand times a second and for progress a hundred times, whether or not anybody
is there: a twentieth of a core, and several pages share a machine. A question that waits for the next look waits as
long as half a frame of a screen.
"""

from __future__ import annotations

from typing import Any

_LOOK_SECONDS = 0.01
_PROGRESS_SECONDS = 0.1


def rest_when_idle(page: Any) -> None:
    """Once it is up; what its queue reads anew at each look."""
    page._queue.sleep_when_free = max(_LOOK_SECONDS, page._queue.sleep_when_free)
    page._queue.progress_update_sleep_when_free = _PROGRESS_SECONDS
